/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that speak Python share, in the order of a call. Functions return 0, or -1 with
 * an exception set, unless said otherwise; they run with a thread state attached.
 */
#ifndef NVS_NVFP4SPARSE_H
#define NVS_NVFP4SPARSE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "device.h"
#include "dispatch.h"
#include "gemm_args.h"
#include "stream.h"
#include "tensor.h"

#include <stdatomic.h>

/* sparse_gemm's arguments, in the order of its signature; the first NVS_TENSORS may be tensors. */
enum nvs_argument {
    NVS_A_VALS,
    NVS_A_META,
    NVS_A_SCALE,
    NVS_B_FP4,
    NVS_B_SCALE,
    NVS_OUT,
    NVS_ALPHA,
    NVS_OUT_DTYPE,
    NVS_STREAM,
    NVS_KERNEL,
    NVS_ARGUMENTS,
    NVS_INPUTS = NVS_OUT,
    NVS_POSITIONAL = NVS_ALPHA,
    NVS_TENSORS = NVS_OUT_DTYPE,
    NVS_OUT_DTYPES = 3, /* the values of enum nvs_out_dtype */
    NVS_KNOWN_TYPES = 8,
};

extern const char *const nvs_argument_names[NVS_ARGUMENTS];

/* A type seen before, and what nvs_type_info() found on it. Written once, then only read. */
struct nvs_known_type {
    PyTypeObject *type; /* strong, so that its address cannot be another type's */
    struct nvs_type_info info;
};

struct nvs_state {
    PyObject *names[NVS_ARGUMENTS]; /* interned, for keywords */
    PyObject *requires_grad;        /* interned */
    _Atomic(PyObject *) frameworks; /* the module nvfp4sparse._frameworks, once it is needed */
    PyTypeObject *exporter_type;
    const struct nvs_kernel *pinned; /* by NVFP4SPARSE_KERNEL, read at import */
    PyObject *bad_pin;               /* its text, where it names no kernel */
    _Atomic(struct nvs_known_type *) types[NVS_KNOWN_TYPES]; /* filled from the front */
    _Atomic(PyObject *) torch_keywords[NVS_OUT_DTYPES];      /* {"dtype": torch.bfloat16}, ... */
    _Atomic(PyObject *) cupy_facts; /* a tuple, once a cupy.ndarray came (cupy_array.c) */
};

/* All that is known of one call of sparse_gemm(). */
struct nvs_call {
    PyObject *arguments[NVS_ARGUMENTS]; /* borrowed; NULL: not given, or None */
    bool out_is_new;
    bool alpha_is_tensor;
    int out_dtype; /* enum nvs_out_dtype, or -1: not asked for */
    struct nvs_stream stream;
    struct nvs_device *device;       /* NULL: the CPU, or nothing to compute */
    const struct nvs_kernel *kernel; /* asked for by kernel=, later the one that runs */
    struct nvs_problem problem;
    struct nvs_gemm_args args;
    struct nvs_grid grid;
    struct nvs_tensor tensors[NVS_TENSORS];
};

/* gemm.c: the call in steps, nvs_clear() first. nvs_prepare() does all between parsing and
 * launching; *out is a new reference, or NULL; nvs_release() must follow. */
PyObject *
nvs_sparse_gemm(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *keywords);
void nvs_clear(struct nvs_call *call);
int nvs_parse(struct nvs_state *state, struct nvs_call *call, PyObject *const *arguments,
              Py_ssize_t count, PyObject *keywords);
int nvs_prepare(struct nvs_state *state, struct nvs_call *call, PyObject **out);
void nvs_release(struct nvs_call *call);

/* options.c: alpha, out_dtype and kernel from the arguments. */
int nvs_parse_options(struct nvs_state *state, struct nvs_call *call);

/* jax_route.c: *result is the call's, or NULL if it is none that goes through XLA. */
int nvs_call_jax(struct nvs_state *state, const struct nvs_call *call, PyObject **result);

/* framework.c: what a type offers. */
int nvs_type_info(struct nvs_state *state, PyTypeObject *type, struct nvs_type_info *info);
const char *nvs_framework_name(enum nvs_framework framework);

/* tensor.c: `name` is the argument's, for messages. `stream` is NULL while it is not known, which
 * it is after a_vals was opened. Release is idempotent and keeps a set exception. numpy.c: arrays
 * that do not export DLPack. torch_tensor.c: what DLPack hides. */
int nvs_tensor_open(struct nvs_state *state, PyObject *object, const char *name,
                    const struct nvs_stream *stream, struct nvs_tensor *tensor);
int nvs_tensor_import(struct nvs_state *state, PyObject *object, const char *name,
                      const struct nvs_stream *stream, struct nvs_tensor *tensor);
void nvs_tensor_release(struct nvs_tensor *tensor);
int nvs_numpy_import(PyObject *array, const char *name, struct nvs_tensor *tensor);
int nvs_torch_check_grad(struct nvs_state *state, PyObject *object, const char *name,
                         const struct nvs_tensor *tensor);
int nvs_torch_no_memory(const char *name);

/* check.c, check_out.c: tensors -> call->args and call->problem. */
int nvs_check_device(const struct nvs_call *call, enum nvs_argument which);
int nvs_check_inputs(struct nvs_call *call);
int nvs_check_alpha(struct nvs_call *call);
int nvs_check_out(struct nvs_call *call);

/* result.c: the module of helpers in Python (borrowed, or NULL). A new array of the framework of
 * a_vals, or an exporter; and what the caller gets once the kernel is queued: new references. */
PyObject *nvs_frameworks(struct nvs_state *state);
const char *nvs_result_dtype_name(const struct nvs_call *call);
PyObject *nvs_new_result(struct nvs_state *state, const struct nvs_call *call);
PyObject *nvs_finish_result(struct nvs_state *state, const struct nvs_call *call, PyObject *out);

/* plan.c, info.c: for people; floor.c, call_times.c: for the bench; xla_call.c: for JAX. */
PyObject *nvs_kernels_list(PyObject *module, PyObject *ignored);
PyObject *nvs_plan(PyObject *module, PyObject *arguments, PyObject *keywords);
PyObject *nvs_cuda_info(PyObject *module, PyObject *ignored);
PyObject *nvs_build_dict(PyObject *module, PyObject *ignored);
PyObject *nvs_launch_floor(PyObject *module, PyObject *arguments, PyObject *keywords);
PyObject *nvs_time_launches(PyObject *module, PyObject *arguments);
PyObject *nvs_time_preparation(PyObject *module, PyObject *arguments);
PyObject *nvs_xla_handlers(PyObject *module, PyObject *ignored);

/* module.c: RuntimeError "sparse_gemm: <fault>"; returns -1. */
int nvs_raise_fault(const struct nvs_fault *fault);

#endif
