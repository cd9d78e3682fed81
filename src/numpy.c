/* SPDX-License-Identifier: Apache-2.0
 *
 * NumPy arrays that NumPy does not export as DLPack: those of ml_dtypes' types, and read-only ones
 * before NumPy 2.1. Their elements are looked at as unsigned integers of the same size, for which
 * NumPy has the buffer protocol.
 */
#include "nvfp4sparse.h"

#include <stdlib.h>
#include <string.h>

static const struct numpy_dtype {
    const char *name; /* numpy.dtype.name */
    const char *view; /* the integer type of the same size */
    DLDataType dtype;
} dtypes[] = {
    {"int8", "uint8", {kDLInt, 8, 1}},
    {"uint8", "uint8", {kDLUInt, 8, 1}},
    {"float8_e4m3fn", "uint8", {kDLFloat8_e4m3fn, 8, 1}},
    {"bfloat16", "uint16", {kDLBfloat, 16, 1}},
    {"float16", "uint16", {kDLFloat, 16, 1}},
    {"float32", "uint32", {kDLFloat, 32, 1}},
};

/* The row for an array's type; TypeError for a type that no operand can have. */
static const struct numpy_dtype *
find_dtype(PyObject *array, const char *name)
{
    const struct numpy_dtype *found = NULL;
    PyObject *type_name = NULL;
    PyObject *native = NULL;
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    if (dtype == NULL || (type_name = PyObject_GetAttrString(dtype, "name")) == NULL ||
        (native = PyObject_GetAttrString(dtype, "isnative")) == NULL) {
        goto done;
    }
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]) && PyUnicode_Check(type_name); i++) {
        if (PyUnicode_CompareWithASCIIString(type_name, dtypes[i].name) == 0 && native == Py_True) {
            found = &dtypes[i];
        }
    }
    if (found == NULL && PyUnicode_Check(type_name) &&
        PyUnicode_CompareWithASCIIString(type_name, "float4_e2m1fn") == 0) {
        PyErr_Format(PyExc_TypeError,
                     "sparse_gemm: %s must hold two float4 values per byte, but a NumPy array of "
                     "float4_e2m1fn holds one: pack neighbours into uint8, the first in the low "
                     "nibble",
                     name);
    }
    else if (found == NULL) {
        PyErr_Format(PyExc_TypeError, "sparse_gemm: %s is a NumPy array of unsupported dtype %S",
                     name, dtype);
    }
done:
    Py_XDECREF(dtype);
    Py_XDECREF(type_name);
    Py_XDECREF(native);
    return found;
}

/* A Py_buffer says bytes where DLPack says elements. */
static int
read_buffer(const Py_buffer *buffer, DLDataType dtype, const char *name, struct nvs_tensor *tensor)
{
    int64_t shape[NVS_MAX_NDIM];
    int64_t strides[NVS_MAX_NDIM];
    const DLTensor source = {
        .data = buffer->buf,
        .device = {kDLCPU, 0},
        .ndim = buffer->ndim,
        .dtype = dtype,
        .shape = shape,
        .strides = strides,
    };
    for (int i = 0; i < buffer->ndim && i < NVS_MAX_NDIM; i++) {
        shape[i] = buffer->shape[i];
        strides[i] = buffer->strides[i] / buffer->itemsize;
        if (buffer->shape[i] > 1 && buffer->strides[i] % buffer->itemsize != 0) {
            PyErr_Format(PyExc_ValueError,
                         "sparse_gemm: %s must have strides in whole elements: pass a copy", name);
            return -1;
        }
    }
    return nvs_tensor_read(&source, buffer->readonly ? DLPACK_FLAG_READ_ONLY : 0, name, tensor);
}

int
nvs_numpy_import(PyObject *array, const char *name, struct nvs_tensor *tensor)
{
    const struct numpy_dtype *dtype = find_dtype(array, name);
    PyObject *integers = NULL;
    Py_buffer *buffer = NULL;
    int result = -1;
    if (dtype == NULL ||
        (integers = PyObject_CallMethod(array, "view", "s", dtype->view)) == NULL) {
        goto done;
    }
    buffer = malloc(sizeof(*buffer));
    if (buffer == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (PyObject_GetBuffer(integers, buffer, PyBUF_STRIDES) < 0) {
        goto done;
    }
    tensor->hold = NVS_HOLD_BUFFER;
    tensor->held = buffer;
    buffer = NULL;
    result = read_buffer(tensor->held, dtype->dtype, name, tensor);
done:
    free(buffer);
    Py_XDECREF(integers);
    return result;
}
