/* SPDX-License-Identifier: Apache-2.0
 *
 * What PyTorch's tensors need beyond DLPack, once tensor.c has opened one: the exchange API passes
 * tensors that require gradients as if they did not, and shows those without memory (fake ones,
 * wrapper subclasses) with a NULL address or an error that ends in a C++ stack.
 */
#include "nvfp4sparse.h"

#include <string.h>

static int
is_grad_enabled(void)
{
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *answer = torch ? PyObject_CallMethod(torch, "is_grad_enabled", NULL) : NULL;
    int enabled = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(torch);
    Py_XDECREF(answer);
    return enabled;
}

/* ValueError if a gradient would silently not be recorded. Integers cannot require one, so that
 * packed operands cost nothing here. */
int
nvs_torch_check_grad(struct nvs_state *state, PyObject *object, const char *name,
                     const struct nvs_tensor *tensor)
{
    if (tensor->dtype.code == kDLUInt || tensor->dtype.code == kDLInt) {
        return 0;
    }
    PyObject *answer = PyObject_GetAttr(object, state->requires_grad);
    int requires = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    int enabled = requires == 1 ? is_grad_enabled() : 0;
    if (requires < 0 || enabled < 0) {
        return -1;
    }
    if (enabled) {
        PyErr_Format(PyExc_ValueError,
                     "sparse_gemm: %s must not require gradients, which are not recorded: pass "
                     "%s.detach() or call inside torch.no_grad()",
                     name, name);
        return -1;
    }
    return 0;
}

/* The first line of the exception that is set, which is cleared; a new reference. */
static PyObject *
take_reason(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *whole = value ? PyObject_Str(value) : NULL;
    const char *text = whole ? PyUnicode_AsUTF8AndSize(whole, NULL) : NULL;
    if (text == NULL) {
        PyErr_Clear();
        text = "its address is NULL";
    }
    PyObject *reason = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strcspn(text, "\n"), "replace");
    Py_XDECREF(whole);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return reason;
}

/* TypeError with PyTorch's reason, if it gave one; returns -1. */
int
nvs_torch_no_memory(const char *name)
{
    PyObject *reason = take_reason();
    if (reason != NULL) {
        PyErr_Format(PyExc_TypeError,
                     "sparse_gemm: %s must be a strided tensor with memory, got one without (%U): "
                     "fake and meta tensors and wrapper subclasses have none; code that traces "
                     "with them calls torch.ops.nvfp4sparse.sparse_gemm",
                     name, reason);
        Py_DECREF(reason);
    }
    return -1;
}
