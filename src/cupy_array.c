/* SPDX-License-Identifier: Apache-2.0
 *
 * CuPy's arrays by their attributes: what tensor.c does in place of __dlpack__(), which takes CuPy
 * over a microsecond per array, and what stream.c asks for CuPy's current stream. No producer is
 * told a stream this way, so it is for calls that work on CuPy's current one, where there is
 * nothing to wait for; and for cupy.ndarray itself, since a subclass may export something else.
 */
#include "cupy_array.h"

/* The tuple that nvfp4sparse._frameworks.cupy_facts() makes: a function, names of attributes, and
 * a dtype for each row of dtypes[]. CuPy's arrays have NumPy's one object for each of these. */
enum fact {
    CURRENT_STREAM,
    DATA,
    PTR,
    DEVICE_ID,
    SHAPE,
    STRIDES,
    DTYPE,
    FIRST_DTYPE,
};

static const DLDataType dtypes[] = {
    {kDLUInt, 8, 1}, {kDLInt, 8, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}, {kDLFloat, 32, 1},
};

enum {
    DTYPES = sizeof(dtypes) / sizeof(dtypes[0]),
    FACTS = FIRST_DTYPE + DTYPES,
};

int
nvs_cupy_find(struct nvs_state *state, PyTypeObject *type, bool *is_cupy_array)
{
    PyObject *none = NULL;
    PyObject *module = nvs_frameworks(state);
    PyObject *facts = module ? PyObject_CallMethod(module, "cupy_facts", "O", type) : NULL;
    if (facts == NULL) {
        return -1;
    }
    *is_cupy_array = PyTuple_Check(facts) && PyTuple_Size(facts) == FACTS;
    if (!*is_cupy_array || !atomic_compare_exchange_strong(&state->cupy_facts, &none, facts)) {
        Py_DECREF(facts); /* no such type, or another thread was first */
    }
    return 0;
}

/* Borrowed. */
static PyObject *
get_fact(const struct nvs_state *state, int which)
{
    PyObject *facts = atomic_load_explicit(&state->cupy_facts, memory_order_acquire);
    return PyTuple_GetItem(facts, which);
}

static PyObject *
get_attribute(const struct nvs_state *state, PyObject *object, enum fact name)
{
    return PyObject_GetAttr(object, get_fact(state, name));
}

PyObject *
nvs_cupy_current_stream(const struct nvs_state *state, int device_id)
{
    PyObject *function = get_fact(state, CURRENT_STREAM);
    PyObject *id = PyLong_FromLong(device_id);
    PyObject *stream = id ? PyObject_CallFunctionObjArgs(function, id, NULL) : NULL;
    PyObject *handle = stream ? get_attribute(state, stream, PTR) : NULL;
    Py_XDECREF(id);
    Py_XDECREF(stream);
    return handle;
}

int
nvs_cupy_open(const struct nvs_state *state, PyObject *array, const char *name,
              struct nvs_tensor *tensor)
{
    PyObject *data = get_attribute(state, array, DATA);
    PyObject *number = data ? get_attribute(state, data, DEVICE_ID) : NULL;
    PyObject *address = number ? get_attribute(state, data, PTR) : NULL;
    long id = address ? PyLong_AsLong(number) : -1;
    tensor->data = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(data);
    Py_XDECREF(number);
    Py_XDECREF(address);
    if ((id == -1 || tensor->data == NULL) && PyErr_Occurred()) {
        return -1;
    }
    return nvs_tensor_set_device((DLDevice){kDLCUDA, (int32_t)id}, name, tensor);
}

/* The ints of a tuple, as many as there is room for; returns how many there are, or -1. */
static int
get_ints(const struct nvs_state *state, PyObject *array, enum fact name, int64_t ints[NVS_MAX_NDIM])
{
    PyObject *tuple = get_attribute(state, array, name);
    Py_ssize_t count = tuple ? PyTuple_Size(tuple) : -1;
    for (Py_ssize_t i = 0; i < count && i < NVS_MAX_NDIM; i++) {
        ints[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    }
    Py_XDECREF(tuple);
    return PyErr_Occurred() ? -1 : (int)count;
}

/* The row of dtypes[] of an array, DTYPES for another dtype, or -1. */
static int
find_dtype(const struct nvs_state *state, PyObject *array)
{
    PyObject *dtype = get_attribute(state, array, DTYPE);
    int row = dtype ? 0 : -1;
    while (row >= 0 && row < DTYPES && get_fact(state, FIRST_DTYPE + row) != dtype) {
        row++;
    }
    Py_XDECREF(dtype);
    return row;
}

int
nvs_cupy_import(const struct nvs_state *state, PyObject *array, const char *name,
                struct nvs_tensor *tensor)
{
    int64_t shape[NVS_MAX_NDIM];
    int64_t strides[NVS_MAX_NDIM]; /* CuPy's are bytes */
    int row = find_dtype(state, array);
    int ndim = row < 0 ? -1 : get_ints(state, array, SHAPE, shape);
    int count = ndim < 0 ? -1 : get_ints(state, array, STRIDES, strides);
    if (count < 0) {
        return -1;
    }
    if (row == DTYPES || ndim > NVS_MAX_NDIM || count != ndim) {
        return 0;
    }
    int size = dtypes[row].bits / 8;
    for (int i = 0; i < ndim; i++) {
        if (strides[i] % size != 0) {
            return 0;
        }
        strides[i] /= size;
    }
    const DLTensor view = {tensor->data, tensor->device, ndim, dtypes[row], shape, strides, 0};
    return nvs_tensor_read(&view, 0, name, tensor);
}
