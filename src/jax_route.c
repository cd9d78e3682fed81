/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls whose operands are all JAX's leave gemm.c here, for nvfp4sparse/jax.py: XLA runs them in
 * its own order, on its own stream and in its own memory (xla_call.c), and arrays that jax.jit
 * traces have no memory yet. Others, and calls with out= or stream=, go on by way of DLPack.
 */
#include "nvfp4sparse.h"

static int
are_all_jax(struct nvs_state *state, const struct nvs_call *call, bool *all)
{
    PyObject *const *arguments = call->arguments;
    *all = false;
    if (arguments[NVS_OUT] != NULL || arguments[NVS_STREAM] != NULL) {
        return 0;
    }
    for (int i = 0; i < NVS_TENSORS; i++) {
        struct nvs_type_info info;
        if (i == NVS_OUT || (i == NVS_ALPHA && !call->alpha_is_tensor)) {
            continue;
        }
        if (nvs_type_info(state, Py_TYPE(arguments[i]), &info) < 0) {
            return -1;
        }
        if (info.framework != NVS_FRAMEWORK_JAX) {
            return 0;
        }
    }
    *all = true;
    return 0;
}

int
nvs_call_jax(struct nvs_state *state, const struct nvs_call *call, PyObject **result)
{
    PyObject *const *arguments = call->arguments;
    PyObject *alpha = NULL;
    PyObject *function = NULL;
    PyObject *operands = NULL;
    PyObject *options = NULL;
    bool all = false;
    *result = NULL;
    if (are_all_jax(state, call, &all) < 0) {
        return -1;
    }
    if (!all) {
        return 0;
    }
    PyObject *module = nvs_frameworks(state);
    function = module ? PyObject_GetAttrString(module, "jax_gemm") : NULL;
    operands = PyTuple_New(NVS_INPUTS);
    alpha = call->alpha_is_tensor ? Py_NewRef(arguments[NVS_ALPHA])
                                  : PyFloat_FromDouble(call->args.alpha);
    if (function == NULL || operands == NULL || alpha == NULL) {
        goto done;
    }
    for (int i = 0; i < NVS_INPUTS; i++) {
        PyTuple_SetItem(operands, i, Py_NewRef(arguments[i]));
    }
    options = Py_BuildValue("{sO ss sz}", "alpha", alpha, "out_dtype", nvs_result_dtype_name(call),
                            "kernel", call->kernel ? call->kernel->name : NULL);
    if (options != NULL) {
        *result = PyObject_Call(function, operands, options);
    }
    if (*result == Py_NotImplemented) {
        Py_CLEAR(*result);
        all = false;
    }
done:
    Py_XDECREF(alpha);
    Py_XDECREF(function);
    Py_XDECREF(operands);
    Py_XDECREF(options);
    return *result == NULL && all ? -1 : 0;
}
