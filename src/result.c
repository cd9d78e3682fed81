/* SPDX-License-Identifier: Apache-2.0
 *
 * The result of a call without out=: an array of the framework that a_vals comes from, allocated
 * by that framework for the stream that the kernel will run on. Frameworks that cannot hand out
 * memory for us to fill (JAX: immutable; others: unknown) get memory of ours (exporter.c).
 */
#include "nvfp4sparse.h"

#include "block.h"

static const char *const dtype_names[NVS_OUT_DTYPES] = {
    [NVS_OUT_BF16] = "bfloat16",
    [NVS_OUT_FP16] = "float16",
    [NVS_OUT_FP32] = "float32",
};

static int
result_dtype(const struct nvs_call *call)
{
    return call->out_dtype < 0 ? NVS_OUT_BF16 : call->out_dtype;
}

const char *
nvs_result_dtype_name(const struct nvs_call *call)
{
    return dtype_names[result_dtype(call)];
}

PyObject *
nvs_frameworks(struct nvs_state *state)
{
    PyObject *module = atomic_load_explicit(&state->frameworks, memory_order_acquire);
    if (module == NULL) {
        PyObject *none = NULL;
        module = PyImport_ImportModule("nvfp4sparse._frameworks");
        if (module != NULL && !atomic_compare_exchange_strong(&state->frameworks, &none, module)) {
            Py_DECREF(module); /* another thread was first, with the same module */
        }
    }
    return module;
}

/* {"dtype": torch.bfloat16}, made once. Borrowed. */
static PyObject *
torch_keywords(struct nvs_state *state, int dtype)
{
    PyObject *keywords = atomic_load_explicit(&state->torch_keywords[dtype], memory_order_acquire);
    if (keywords != NULL) {
        return keywords;
    }
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *value = torch ? PyObject_GetAttrString(torch, dtype_names[dtype]) : NULL;
    keywords = value ? Py_BuildValue("{sO}", "dtype", value) : NULL;
    Py_XDECREF(torch);
    Py_XDECREF(value);
    PyObject *none = NULL;
    if (keywords != NULL &&
        !atomic_compare_exchange_strong(&state->torch_keywords[dtype], &none, keywords)) {
        Py_DECREF(keywords);
        keywords = none;
    }
    return keywords;
}

/* a_vals.new_empty((m, n), dtype=...): on its device, from the caching allocator. */
static PyObject *
new_torch(struct nvs_state *state, const struct nvs_call *call)
{
    PyObject *result = NULL;
    PyObject *keywords = torch_keywords(state, result_dtype(call));
    PyObject *method = PyObject_GetAttrString(call->arguments[NVS_A_VALS], "new_empty");
    PyObject *arguments = Py_BuildValue("((LL))", (long long)call->args.m, (long long)call->args.n);
    if (keywords != NULL && method != NULL && arguments != NULL) {
        result = PyObject_Call(method, arguments, keywords);
    }
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    return result;
}

/* nvfp4sparse._frameworks.empty(...), for all that is not the shortest way. */
static PyObject *
new_in_python(struct nvs_state *state, const struct nvs_call *call)
{
    PyObject *module = nvs_frameworks(state);
    PyObject *stream = NULL;
    PyObject *result = NULL;
    if (module == NULL) {
        return NULL;
    }
    stream = call->stream.given ? PyLong_FromSize_t((size_t)call->stream.handle)
                                : Py_NewRef(Py_None);
    if (stream != NULL) {
        result = PyObject_CallMethod(module, "empty", "sO(LL)siO",
                                     nvs_framework_name(call->tensors[NVS_A_VALS].info.framework),
                                     call->arguments[NVS_A_VALS], (long long)call->args.m,
                                     (long long)call->args.n, nvs_result_dtype_name(call),
                                     (int)call->tensors[NVS_A_VALS].device.device_id, stream);
        Py_DECREF(stream);
    }
    return result;
}

/* Whether the framework would allocate for another stream than the one that was given. */
static int
is_foreign_stream(const struct nvs_call *call, bool *foreign)
{
    const struct nvs_tensor *first = &call->tensors[NVS_A_VALS];
    void *current = NULL;
    *foreign = call->stream.given;
    if (!call->stream.given || first->info.api == NULL ||
        first->info.api->current_work_stream == NULL) {
        return 0;
    }
    if (nvs_work_stream(first->info.api, first->device.device_id, "a_vals", &current) < 0) {
        return -1;
    }
    *foreign = current != call->stream.handle;
    return 0;
}

PyObject *
nvs_new_result(struct nvs_state *state, const struct nvs_call *call)
{
    bool foreign = false;
    switch (call->tensors[NVS_A_VALS].info.framework) {
    case NVS_FRAMEWORK_TORCH:
        if (is_foreign_stream(call, &foreign) < 0) {
            return NULL;
        }
        return foreign ? new_in_python(state, call) : new_torch(state, call);
    case NVS_FRAMEWORK_CUPY:
    case NVS_FRAMEWORK_NUMPY:
        return new_in_python(state, call);
    default:
        return nvs_exporter_new(state->exporter_type, call);
    }
}

PyObject *
nvs_finish_result(struct nvs_state *state, const struct nvs_call *call, PyObject *out)
{
    if (Py_TYPE(out) != state->exporter_type || !call->out_is_new) {
        return Py_NewRef(out);
    }
    if (nvs_exporter_record(out, call->stream.handle) < 0) {
        return NULL;
    }
    if (call->tensors[NVS_A_VALS].info.framework != NVS_FRAMEWORK_JAX) {
        return Py_NewRef(out);
    }
    PyObject *module = nvs_frameworks(state);
    return module ? PyObject_CallMethod(module, "jax_array", "O", out) : NULL;
}
