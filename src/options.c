/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of a call that are no tensors: alpha as a number, out_dtype, kernel.
 */
#include "nvfp4sparse.h"

#include <string.h>

static const char *const dtype_names[NVS_OUT_DTYPES] = {
    [NVS_OUT_BF16] = "bfloat16",
    [NVS_OUT_FP16] = "float16",
    [NVS_OUT_FP32] = "float32",
};

/* How an object that stands for a dtype calls itself: NumPy's dtypes have a name, scalar types
 * (numpy.float16, ml_dtypes.bfloat16) a __name__, and PyTorch's print as "torch.bfloat16". */
static PyObject *
dtype_spelling(PyObject *object)
{
    static const char *const attributes[] = {"name", "__name__"};
    if (PyUnicode_Check(object)) {
        return Py_NewRef(object);
    }
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        PyObject *spelling = PyObject_GetAttrString(object, attributes[i]);
        if (spelling != NULL && PyUnicode_Check(spelling)) {
            return spelling;
        }
        Py_XDECREF(spelling);
        PyErr_Clear();
    }
    return PyObject_Str(object);
}

static int
parse_out_dtype(PyObject *object, int *dtype)
{
    PyObject *spelling = dtype_spelling(object);
    const char *text = spelling ? PyUnicode_AsUTF8AndSize(spelling, NULL) : NULL;
    int result = -1;
    if (text == NULL) {
        goto done;
    }
    const char *word = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (int i = 0; i < NVS_OUT_DTYPES; i++) {
        if (strcmp(word, dtype_names[i]) == 0) {
            *dtype = i;
            result = 0;
            goto done;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "sparse_gemm: out_dtype must be bfloat16, float16 or float32 (a name or a dtype), "
                 "got %R",
                 object);
done:
    Py_XDECREF(spelling);
    return result;
}

/* Numbers are told from tensors by their type, since asking a tensor for its value would wait for
 * the GPU. */
static int
parse_alpha(struct nvs_state *state, PyObject *object, float *alpha, bool *is_tensor)
{
    *is_tensor = false;
    if (!PyFloat_Check(object) && !PyLong_Check(object)) {
        struct nvs_type_info info;
        if (nvs_type_info(state, Py_TYPE(object), &info) < 0) {
            return -1;
        }
        if (info.api != NULL || PyObject_HasAttrString(object, "__dlpack__")) {
            *is_tensor = true;
            return 0;
        }
    }
    double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError,
                         "sparse_gemm: alpha must be a number or a float32 tensor of one element, "
                         "got %R",
                         object);
        }
        else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_SetString(PyExc_ValueError,
                            "sparse_gemm: alpha must fit a float64, got a larger int");
        }
        return -1;
    }
    *alpha = (float)value;
    return 0;
}

/* "cpu, naive": every row of the table. */
static PyObject *
kernel_names(void)
{
    PyObject *names = PyUnicode_FromString("");
    for (int i = 0; i < nvs_kernel_count && names != NULL; i++) {
        PyObject *longer = PyUnicode_FromFormat("%U%s%s", names, i == 0 ? "" : ", ",
                                                nvs_kernels[i].name);
        Py_DECREF(names);
        names = longer;
    }
    return names;
}

static int
unknown_kernel(const char *who, PyObject *name)
{
    PyObject *names = kernel_names();
    if (names != NULL) {
        PyErr_Format(PyExc_ValueError, "sparse_gemm: %s names no kernel: %R; there are %U", who,
                     name, names);
        Py_DECREF(names);
    }
    return -1;
}

static int
parse_kernel(const struct nvs_state *state, PyObject *object, const struct nvs_kernel **kernel)
{
    if (object == NULL) {
        return state->bad_pin ? unknown_kernel("NVFP4SPARSE_KERNEL", state->bad_pin) : 0;
    }
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "sparse_gemm: kernel must be a str (see kernels()), got %R",
                     object);
        return -1;
    }
    const char *name = PyUnicode_AsUTF8AndSize(object, NULL);
    if (name == NULL) {
        return -1;
    }
    *kernel = nvs_find_kernel(name);
    return *kernel ? 0 : unknown_kernel("kernel", object);
}

int
nvs_parse_options(struct nvs_state *state, struct nvs_call *call)
{
    PyObject *const *arguments = call->arguments;
    call->out_dtype = -1;
    call->args.alpha = 1.0f;
    call->alpha_is_tensor = false;
    if (arguments[NVS_ALPHA] != NULL &&
        parse_alpha(state, arguments[NVS_ALPHA], &call->args.alpha, &call->alpha_is_tensor) < 0) {
        return -1;
    }
    if (arguments[NVS_OUT_DTYPE] != NULL &&
        parse_out_dtype(arguments[NVS_OUT_DTYPE], &call->out_dtype) < 0) {
        return -1;
    }
    return parse_kernel(state, arguments[NVS_KERNEL], &call->kernel);
}
