/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse_gemm(): the table of contents of a call. The functions at the end name its stages; each
 * lives in the file of its name. Nothing is written, on no device, before all checks passed.
 */
#include "nvfp4sparse.h"

#include "gemm_cpu.h"

#include <string.h>

const char *const nvs_argument_names[NVS_ARGUMENTS] = {
    [NVS_A_VALS] = "a_vals", [NVS_A_META] = "a_meta",       [NVS_A_SCALE] = "a_scale",
    [NVS_B_FP4] = "b_fp4",   [NVS_B_SCALE] = "b_scale",     [NVS_OUT] = "out",
    [NVS_ALPHA] = "alpha",   [NVS_OUT_DTYPE] = "out_dtype", [NVS_STREAM] = "stream",
    [NVS_KERNEL] = "kernel",
};

/* The argument that a keyword names, or NVS_ARGUMENTS. Keywords in source code are interned, so
 * comparing pointers finds them. */
static int
find_argument(const struct nvs_state *state, PyObject *keyword)
{
    for (int i = 0; i < NVS_ARGUMENTS; i++) {
        if (state->names[i] == keyword) {
            return i;
        }
    }
    for (int i = 0; i < NVS_ARGUMENTS; i++) {
        if (PyUnicode_CompareWithASCIIString(keyword, nvs_argument_names[i]) == 0) {
            return i;
        }
    }
    return NVS_ARGUMENTS;
}

static int
parse_arguments(const struct nvs_state *state, struct nvs_call *call, PyObject *const *arguments,
                Py_ssize_t count, PyObject *keywords)
{
    if (count > NVS_POSITIONAL) {
        PyErr_Format(PyExc_TypeError,
                     "sparse_gemm: at most %d positional arguments (a_vals ... out) are taken, got "
                     "%zd: name the others",
                     (int)NVS_POSITIONAL, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        call->arguments[i] = arguments[i];
    }
    Py_ssize_t keyword_count = keywords ? PyTuple_Size(keywords) : 0;
    for (Py_ssize_t i = 0; i < keyword_count; i++) {
        PyObject *keyword = PyTuple_GetItem(keywords, i);
        int which = find_argument(state, keyword);
        if (which == NVS_ARGUMENTS) {
            PyErr_Format(PyExc_TypeError, "sparse_gemm: there is no argument %R", keyword);
            return -1;
        }
        if (call->arguments[which] != NULL) {
            PyErr_Format(PyExc_TypeError, "sparse_gemm: %U was given twice", keyword);
            return -1;
        }
        call->arguments[which] = arguments[count + i];
    }
    for (int i = 0; i < NVS_ARGUMENTS; i++) {
        if (i < NVS_INPUTS && call->arguments[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "sparse_gemm: %s is missing", nvs_argument_names[i]);
            return -1;
        }
        if (i >= NVS_INPUTS && call->arguments[i] == Py_None) {
            call->arguments[i] = NULL;
        }
    }
    return 0;
}

/* One tensor that must be where a_vals is. Its device is known before its producer is asked to
 * export it for our stream. */
static int
import_tensor(struct nvs_state *state, struct nvs_call *call, enum nvs_argument which,
              PyObject *object)
{
    const char *name = nvs_argument_names[which];
    struct nvs_tensor *tensor = &call->tensors[which];
    if (nvs_tensor_open(state, object, name, &call->stream, tensor) < 0 ||
        nvs_check_device(call, which) < 0) {
        return -1;
    }
    if (tensor->imported) {
        return 0;
    }
    return nvs_tensor_import(state, object, name, &call->stream, tensor) < 0
               ? -1
               : nvs_check_device(call, which);
}

static int
import_inputs(struct nvs_state *state, struct nvs_call *call)
{
    PyObject *const *arguments = call->arguments;
    struct nvs_tensor *first = &call->tensors[NVS_A_VALS];
    const char *name = nvs_argument_names[NVS_A_VALS];
    if (nvs_tensor_open(state, arguments[NVS_A_VALS], name, NULL, first) < 0 ||
        nvs_resolve_stream(state, arguments[NVS_STREAM], first, &call->stream) < 0 ||
        nvs_tensor_import(state, arguments[NVS_A_VALS], name, &call->stream, first) < 0) {
        return -1;
    }
    for (int i = NVS_A_META; i < NVS_INPUTS; i++) {
        if (import_tensor(state, call, i, arguments[i]) < 0) {
            return -1;
        }
    }
    if (!call->alpha_is_tensor) {
        return 0;
    }
    return import_tensor(state, call, NVS_ALPHA, arguments[NVS_ALPHA]) < 0 ? -1
                                                                           : nvs_check_alpha(call);
}

static bool
is_nothing_to_compute(const struct nvs_call *call)
{
    return call->args.m == 0 || call->args.n == 0;
}

static int
open_device(struct nvs_call *call)
{
    DLDevice device = call->tensors[NVS_A_VALS].device;
    struct nvs_fault fault;
    if (device.device_type == kDLCPU) {
        call->problem.kind = NVS_KIND_CPU;
        return 0;
    }
    call->problem.kind = NVS_KIND_CUDA;
    if (is_nothing_to_compute(call)) {
        return 0;
    }
    if (nvs_device_open(device.device_id, &call->device, &fault) < 0) {
        return nvs_raise_fault(&fault);
    }
    call->problem.cc = call->device->cc;
    call->problem.sm_count = call->device->sm_count;
    call->problem.built = true;
    return nvs_check_stream(call);
}

/* Imports out, or a new result in its place: *out is a new reference. */
static int
provide_out(struct nvs_state *state, struct nvs_call *call, PyObject **out)
{
    call->out_is_new = call->arguments[NVS_OUT] == NULL;
    *out = call->out_is_new ? nvs_new_result(state, call) : Py_NewRef(call->arguments[NVS_OUT]);
    if (*out == NULL || import_tensor(state, call, NVS_OUT, *out) < 0) {
        return -1;
    }
    return nvs_check_out(call);
}

static int
select_kernel(const struct nvs_state *state, struct nvs_call *call)
{
    const struct nvs_problem *problem = &call->problem;
    const char *by = "kernel";
    if (call->kernel == NULL && state->pinned != NULL && state->pinned->kind == problem->kind) {
        call->kernel = state->pinned;
        by = "NVFP4SPARSE_KERNEL";
    }
    if (call->kernel != NULL) {
        const char *misfit = nvs_misfit(call->kernel, problem);
        if (misfit != NULL) {
            PyErr_Format(PyExc_ValueError, "sparse_gemm: %s=%s cannot run this: %s", by,
                         call->kernel->name, misfit);
            return -1;
        }
    }
    else {
        call->kernel = call->device ? nvs_device_select(call->device, problem)
                                    : nvs_select(problem);
    }
    if (call->kernel == NULL) {
        struct nvs_fault fault;
        nvs_explain_no_kernel(problem, fault.text, sizeof(fault.text));
        return nvs_raise_fault(&fault);
    }
    call->grid = nvs_grid(call->kernel, problem);
    return 0;
}

/* Queues the kernel, or computes. Without the GIL: a launch may block while the queue is full, and
 * what drains the queue may be a host function that needs the GIL. */
static int
run(struct nvs_call *call)
{
    struct nvs_fault fault;
    int result;
    if (call->problem.kind == NVS_KIND_CPU) {
        Py_BEGIN_ALLOW_THREADS result = nvs_gemm_cpu(&call->args, 0);
        Py_END_ALLOW_THREADS if (result < 0)
        {
            PyErr_NoMemory();
        }
        return result;
    }
    Py_BEGIN_ALLOW_THREADS result = nvs_device_launch(call->device, call->kernel, call->grid,
                                                      call->stream.handle, &call->args, &fault);
    Py_END_ALLOW_THREADS return result < 0 ? nvs_raise_fault(&fault) : 0;
}

void
nvs_clear(struct nvs_call *call)
{
    memset(call, 0, offsetof(struct nvs_call, tensors));
    for (int i = 0; i < NVS_TENSORS; i++) {
        memset(&call->tensors[i], 0, offsetof(struct nvs_tensor, shape));
    }
}

int
nvs_parse(struct nvs_state *state, struct nvs_call *call, PyObject *const *arguments,
          Py_ssize_t count, PyObject *keywords)
{
    return parse_arguments(state, call, arguments, count, keywords) < 0
               ? -1
               : nvs_parse_options(state, call);
}

int
nvs_prepare(struct nvs_state *state, struct nvs_call *call, PyObject **out)
{
    if (import_inputs(state, call) < 0 || nvs_check_inputs(call) < 0 || open_device(call) < 0 ||
        provide_out(state, call, out) < 0) {
        return -1;
    }
    return is_nothing_to_compute(call) ? 0 : select_kernel(state, call);
}

void
nvs_release(struct nvs_call *call)
{
    for (int i = 0; i < NVS_TENSORS; i++) {
        nvs_tensor_release(&call->tensors[i]);
    }
}

PyObject *
nvs_sparse_gemm(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *keywords)
{
    struct nvs_state *state = PyModule_GetState(module);
    struct nvs_call call;
    PyObject *out = NULL;
    PyObject *result = NULL;
    nvs_clear(&call);
    if (nvs_parse(state, &call, arguments, count, keywords) < 0 ||
        nvs_call_jax(state, &call, &result) < 0 || result != NULL) {
        return result;
    }
    if (nvs_prepare(state, &call, &out) == 0 && (is_nothing_to_compute(&call) || run(&call) == 0)) {
        result = nvs_finish_result(state, &call, out);
    }
    nvs_release(&call);
    Py_XDECREF(out);
    return result;
}
