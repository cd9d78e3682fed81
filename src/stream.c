/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose stream a call works on, asked anew for each call:
 *
 *   stream= is given                          that one
 *   a_vals has the exchange API (PyTorch)     its framework's current stream of the device
 *   a_vals from CuPy, or an older PyTorch     the same, asked through Python
 *   a_vals from elsewhere (JAX, ...)          the legacy default stream
 *
 * Producers that are asked through __dlpack__ are told the stream (tensor.c), and so order their
 * pending work before ours. The exchange API orders nothing: tensors of a framework whose current
 * stream is another than ours go by way of __dlpack__ too, unless stream= was given.
 */
#include "nvfp4sparse.h"

#include "cupy_array.h"
#include "driver.h"

/* A stream handle out of a Python int. Returns -1 for what cannot be one. */
static int
handle_from_int(PyObject *number, struct nvs_stream *stream)
{
    size_t handle = PyLong_AsSize_t(number);
    if (handle == (size_t)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError,
                         "sparse_gemm: stream must be a stream handle (0 is the legacy default "
                         "stream), got %R",
                         number);
        }
        return -1;
    }
    stream->handle = (void *)handle;
    return 0;
}

/* __cuda_stream__() gives (version, handle), and only version 0 exists. Some objects have the pair
 * as an attribute. */
static int
handle_from_object(PyObject *object, struct nvs_stream *stream)
{
    int result = -1;
    PyObject *pair = PyObject_GetAttrString(object, "__cuda_stream__");
    if (pair == NULL) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Format(PyExc_TypeError,
                         "sparse_gemm: stream must be None, an int handle or an object with "
                         "__cuda_stream__, got %R",
                         object);
        }
        return -1;
    }
    if (PyCallable_Check(pair)) {
        PyObject *called = PyObject_CallNoArgs(pair);
        Py_DECREF(pair);
        pair = called;
        if (pair == NULL) {
            return -1;
        }
    }
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2 ||
        !PyLong_Check(PyTuple_GetItem(pair, 0)) || !PyLong_Check(PyTuple_GetItem(pair, 1))) {
        PyErr_Format(PyExc_TypeError,
                     "sparse_gemm: stream.__cuda_stream__() must return (0, handle), got %R", pair);
        goto done;
    }
    long version = PyLong_AsLong(PyTuple_GetItem(pair, 0));
    if (version != 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "sparse_gemm: stream.__cuda_stream__() must return (0, handle), got %R", pair);
        goto done;
    }
    result = handle_from_int(PyTuple_GetItem(pair, 1), stream);
done:
    Py_DECREF(pair);
    return result;
}

/* The handle of a framework's current stream as a new int. */
static PyObject *
ask_framework(struct nvs_state *state, const struct nvs_tensor *first)
{
    int id = (int)first->device.device_id;
    if (first->info.is_cupy_array) {
        return nvs_cupy_current_stream(state, id);
    }
    PyObject *module = nvs_frameworks(state);
    return module ? PyObject_CallMethod(module, "current_stream", "si",
                                        nvs_framework_name(first->info.framework), id)
                  : NULL;
}

int
nvs_work_stream(const DLPackExchangeAPI *api, int device_id, const char *name, void **handle)
{
    if (api->current_work_stream(kDLCUDA, device_id, handle) == 0) {
        return 0;
    }
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_BufferError,
                     "sparse_gemm: %s: its current_work_stream() failed without a reason", name);
    }
    return -1;
}

static int
current_stream(struct nvs_state *state, const struct nvs_tensor *first, struct nvs_stream *stream)
{
    const DLPackExchangeAPI *api = first->info.api;
    stream->owner = first->info.framework;
    if (api != NULL && api->current_work_stream != NULL) {
        return nvs_work_stream(api, first->device.device_id, "a_vals", &stream->handle);
    }
    if (first->info.framework == NVS_FRAMEWORK_TORCH ||
        first->info.framework == NVS_FRAMEWORK_CUPY) {
        PyObject *number = ask_framework(state, first);
        if (number == NULL) {
            return -1;
        }
        int result = handle_from_int(number, stream);
        Py_DECREF(number);
        return result;
    }
    stream->owner = NVS_FRAMEWORK_OTHER;
    stream->handle = CU_STREAM_LEGACY;
    return 0;
}

int
nvs_resolve_stream(struct nvs_state *state, PyObject *argument, const struct nvs_tensor *first,
                   struct nvs_stream *stream)
{
    stream->given = argument != NULL;
    stream->owner = NVS_FRAMEWORK_OTHER;
    stream->handle = NULL;
    stream->device = first->device;
    stream->api = first->info.api;
    if (first->device.device_type == kDLCPU) {
        if (argument != NULL) {
            PyErr_Format(PyExc_ValueError,
                         "sparse_gemm: stream must be None for tensors in host memory, got %R",
                         argument);
            return -1;
        }
        return 0;
    }
    if (argument == NULL) {
        return current_stream(state, first, stream);
    }
    return PyLong_Check(argument) ? handle_from_int(argument, stream)
                                  : handle_from_object(argument, stream);
}

bool
nvs_is_own_stream(const struct nvs_stream *stream, const struct nvs_tensor *tensor)
{
    return !stream->given && stream->owner != NVS_FRAMEWORK_OTHER &&
           stream->owner == tensor->info.framework;
}

/* 0 and 1 are both the legacy default stream. */
static size_t
stream_number(const void *handle)
{
    return handle ? (size_t)handle : (size_t)CU_STREAM_LEGACY;
}

int
nvs_works_elsewhere(const struct nvs_stream *stream, const DLPackExchangeAPI *api, const char *name,
                    bool *elsewhere)
{
    void *current = NULL;
    *elsewhere = false;
    if (api == stream->api || stream->given || stream->device.device_type != kDLCUDA ||
        api->current_work_stream == NULL) {
        return 0;
    }
    if (nvs_work_stream(api, stream->device.device_id, name, &current) < 0) {
        return -1;
    }
    *elsewhere = stream_number(current) != stream_number(stream->handle);
    return 0;
}

int
nvs_check_stream(const struct nvs_call *call)
{
    struct nvs_fault fault;
    int id = 0;
    if (!call->stream.given) {
        return 0;
    }
    if (nvs_device_of_stream(call->device, call->stream.handle, &id, &fault) < 0) {
        return nvs_raise_fault(&fault);
    }
    if (id != call->device->id) {
        PyErr_Format(PyExc_ValueError,
                     "sparse_gemm: stream must belong to the tensors' device cuda:%d, got a stream "
                     "of cuda:%d",
                     call->device->id, id);
        return -1;
    }
    return 0;
}
