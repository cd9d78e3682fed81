/* SPDX-License-Identifier: Apache-2.0
 *
 * Import of one tensor and its release. The only file that knows capsules and the functions of the
 * exchange API. Of the ways in, the first that an object offers is taken:
 *
 *   1. the exchange API's non-owning conversion: nothing to give back,
 *   2. its owning conversion: a deleter to call (both only where there is nothing to wait for),
 *   3. for CuPy's arrays on CuPy's stream: their attributes (cupy_array.c),
 *   4. __dlpack__(), versioned if the producer can, else legacy: a capsule to take over,
 *   5. for NumPy arrays of types that DLPack export refuses: the buffer protocol (numpy.c).
 *
 * A capsule is renamed when we take its tensor over; before that its own destructor would free
 * the tensor, afterwards nvs_tensor_release() does.
 */
#include "nvfp4sparse.h"

#include "cupy_array.h"

#include <stdlib.h>

static int
not_a_tensor(PyObject *object, const char *name, const struct nvs_tensor *tensor)
{
    bool is_tracer = tensor->info.framework == NVS_FRAMEWORK_JAX;
    PyObject *type_name = PyType_GetName(Py_TYPE(object));
    if (type_name != NULL) {
        PyErr_Format(PyExc_TypeError,
                     "sparse_gemm: %s must be a tensor that exports DLPack (__dlpack__ and "
                     "__dlpack_device__), got %U%s",
                     name, type_name,
                     is_tracer ? ": inside jax.jit call nvfp4sparse.jax.sparse_gemm" : "");
        Py_DECREF(type_name);
    }
    return -1;
}

/* An attribute that every DLPack producer has; TypeError without it. */
static PyObject *
producer_method(PyObject *object, const char *method, const char *name,
                const struct nvs_tensor *tensor)
{
    PyObject *bound = PyObject_GetAttrString(object, method);
    if (bound == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        not_a_tensor(object, name, tensor);
    }
    return bound;
}

static bool
has_elements(const DLTensor *view)
{
    bool found = true;
    for (int32_t i = 0; i < view->ndim; i++) {
        found = found && view->shape[i] != 0;
    }
    return found;
}

static int
open_by_api(PyObject *object, const char *name, struct nvs_tensor *tensor)
{
    const DLPackExchangeAPI *api = tensor->info.api;
    bool is_torch = tensor->info.framework == NVS_FRAMEWORK_TORCH;
    if (api->dltensor_from_py_object_no_sync != NULL) {
        DLTensor view;
        if (api->dltensor_from_py_object_no_sync(object, &view) == 0) {
            return is_torch && view.data == NULL && has_elements(&view)
                       ? nvs_torch_no_memory(name)
                       : nvs_tensor_read(&view, 0, name, tensor);
        }
    }
    else {
        DLManagedTensorVersioned *managed = NULL;
        if (api->managed_tensor_from_py_object_no_sync(object, &managed) == 0 && managed != NULL) {
            tensor->hold = NVS_HOLD_VERSIONED;
            tensor->held = managed;
            if (managed->version.major == DLPACK_MAJOR_VERSION) {
                return nvs_tensor_read(&managed->dl_tensor, managed->flags, name, tensor);
            }
        }
    }
    if (is_torch) {
        return nvs_torch_no_memory(name);
    }
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_BufferError,
                     "sparse_gemm: %s: its DLPack exchange API failed without a reason", name);
    }
    return -1;
}

static int
query_device(PyObject *object, const char *name, struct nvs_tensor *tensor)
{
    PyObject *pair = NULL;
    PyObject *method = producer_method(object, "__dlpack_device__", name, tensor);
    int result = -1;
    if (method == NULL || (pair = PyObject_CallNoArgs(method)) == NULL) {
        goto done;
    }
    bool is_pair = PyTuple_Check(pair) && PyTuple_Size(pair) == 2;
    long type = is_pair ? PyLong_AsLong(PyTuple_GetItem(pair, 0)) : -1;
    long id = is_pair && !PyErr_Occurred() ? PyLong_AsLong(PyTuple_GetItem(pair, 1)) : -1;
    if (!is_pair || PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_BufferError,
                     "sparse_gemm: %s comes from a broken DLPack producer: __dlpack_device__() "
                     "must return two ints",
                     name);
        goto done;
    }
    if (type != (int32_t)type || id != (int32_t)id) {
        PyErr_Format(PyExc_BufferError, "sparse_gemm: %s is on DLPack device (%ld, %ld)", name,
                     type, id);
        goto done;
    }
    DLDevice device = {(int32_t)type, (int32_t)id};
    result = nvs_tensor_set_device(device, name, tensor);
done:
    Py_XDECREF(method);
    Py_XDECREF(pair);
    return result;
}

int
nvs_tensor_open(struct nvs_state *state, PyObject *object, const char *name,
                const struct nvs_stream *stream, struct nvs_tensor *tensor)
{
    bool elsewhere = false;
    if (nvs_type_info(state, Py_TYPE(object), &tensor->info) < 0) {
        return -1;
    }
    const DLPackExchangeAPI *api = tensor->info.api;
    if (api == NULL) {
        return tensor->info.is_cupy_array ? nvs_cupy_open(state, object, name, tensor)
                                          : query_device(object, name, tensor);
    }
    if (stream != NULL && nvs_works_elsewhere(stream, api, name, &elsewhere) < 0) {
        return -1;
    }
    if ((elsewhere ? query_device(object, name, tensor) : open_by_api(object, name, tensor)) < 0) {
        return -1;
    }
    return tensor->info.framework == NVS_FRAMEWORK_TORCH
               ? nvs_torch_check_grad(state, object, name, tensor)
               : 0;
}

/* The keywords of __dlpack__: the stream where there is one to tell, and our version. */
static PyObject *
export_keywords(const struct nvs_stream *stream, const struct nvs_tensor *tensor, bool versioned)
{
    PyObject *keywords = PyDict_New();
    PyObject *value = NULL;
    if (keywords == NULL) {
        return NULL;
    }
    if (tensor->device.device_type == kDLCUDA) {
        /* DLPack: -1 asks for no waiting, 1 is the legacy default stream, 0 is not allowed. */
        value = nvs_is_own_stream(stream, tensor)
                    ? PyLong_FromLong(-1)
                    : PyLong_FromSize_t(stream->handle ? (size_t)stream->handle : 1);
        if (value == NULL || PyDict_SetItemString(keywords, "stream", value) < 0) {
            goto fail;
        }
        Py_CLEAR(value);
    }
    if (versioned) {
        value = Py_BuildValue("(ii)", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
        if (value == NULL || PyDict_SetItemString(keywords, "max_version", value) < 0) {
            goto fail;
        }
        Py_CLEAR(value);
    }
    return keywords;
fail:
    Py_XDECREF(value);
    Py_DECREF(keywords);
    return NULL;
}

/* __dlpack__(stream=..., max_version=...), and without max_version for a producer that does not
 * know the word (DLPack before 1.0). */
static PyObject *
export_capsule(PyObject *object, const char *name, const struct nvs_stream *stream,
               const struct nvs_tensor *tensor)
{
    PyObject *capsule = NULL;
    PyObject *nothing = PyTuple_New(0);
    PyObject *method = producer_method(object, "__dlpack__", name, tensor);
    bool again = method != NULL && nothing != NULL;
    for (int versioned = 1; again && versioned >= 0; versioned--) {
        PyObject *keywords = export_keywords(stream, tensor, versioned);
        if (keywords == NULL) {
            break;
        }
        capsule = PyObject_Call(method, nothing, keywords);
        Py_DECREF(keywords);
        again = capsule == NULL && versioned && PyErr_ExceptionMatches(PyExc_TypeError);
        if (again) {
            PyErr_Clear();
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(nothing);
    return capsule;
}

static int
take_over(PyObject *capsule, const char *name, struct nvs_tensor *tensor)
{
    if (PyCapsule_IsValid(capsule, DLPACK_CAPSULE_VERSIONED)) {
        DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, DLPACK_CAPSULE_VERSIONED);
        if (PyCapsule_SetName(capsule, DLPACK_CAPSULE_VERSIONED_USED) < 0) {
            return -1;
        }
        tensor->hold = NVS_HOLD_VERSIONED;
        tensor->held = managed;
        if (managed->version.major != DLPACK_MAJOR_VERSION) {
            PyErr_Format(PyExc_BufferError,
                         "sparse_gemm: %s was exported as DLPack %u.%u, this build reads %d.x",
                         name, (unsigned)managed->version.major, (unsigned)managed->version.minor,
                         DLPACK_MAJOR_VERSION);
            return -1;
        }
        return nvs_tensor_read(&managed->dl_tensor, managed->flags, name, tensor);
    }
    if (PyCapsule_IsValid(capsule, DLPACK_CAPSULE)) {
        DLManagedTensor *managed = PyCapsule_GetPointer(capsule, DLPACK_CAPSULE);
        if (PyCapsule_SetName(capsule, DLPACK_CAPSULE_USED) < 0) {
            return -1;
        }
        tensor->hold = NVS_HOLD_LEGACY;
        tensor->held = managed;
        return nvs_tensor_read(&managed->dl_tensor, 0, name, tensor);
    }
    PyErr_Format(PyExc_BufferError,
                 "sparse_gemm: %s comes from a broken DLPack producer: __dlpack__() must return a "
                 "capsule named \"" DLPACK_CAPSULE "\" or \"" DLPACK_CAPSULE_VERSIONED "\" that "
                 "was not consumed before",
                 name);
    return -1;
}

int
nvs_tensor_import(struct nvs_state *state, PyObject *object, const char *name,
                  const struct nvs_stream *stream, struct nvs_tensor *tensor)
{
    if (tensor->imported) {
        return 0;
    }
    if (tensor->info.is_cupy_array && nvs_is_own_stream(stream, tensor) &&
        (nvs_cupy_import(state, object, name, tensor) < 0 || tensor->imported)) {
        return tensor->imported ? 0 : -1;
    }
    PyObject *capsule = export_capsule(object, name, stream, tensor);
    if (capsule == NULL) {
        if (tensor->info.framework == NVS_FRAMEWORK_NUMPY &&
            PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Clear();
            return nvs_numpy_import(object, name, tensor);
        }
        return -1;
    }
    int result = take_over(capsule, name, tensor);
    Py_DECREF(capsule);
    return result;
}

void
nvs_tensor_release(struct nvs_tensor *tensor)
{
    enum nvs_hold hold = tensor->hold;
    tensor->hold = NVS_HOLD_NOTHING;
    if (hold == NVS_HOLD_NOTHING) {
        return;
    }
    /* A deleter may run any code of its producer's. */
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (hold == NVS_HOLD_LEGACY) {
        DLManagedTensor *managed = tensor->held;
        if (managed->deleter != NULL) {
            managed->deleter(managed);
        }
    }
    else if (hold == NVS_HOLD_VERSIONED) {
        DLManagedTensorVersioned *managed = tensor->held;
        if (managed->deleter != NULL) {
            managed->deleter(managed);
        }
    }
    else {
        PyBuffer_Release(tensor->held);
        free(tensor->held);
    }
    PyErr_Restore(type, value, traceback);
}
