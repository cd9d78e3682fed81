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
    _Atomic(PyObject *) frameworks; /* the module nvfp4sparse._frameworks, once it is needed */
    PyTypeObject *exporter_type;
    const struct nvs_kernel *pinned; /* by NVFP4SPARSE_KERNEL, read at import */
    PyObject *bad_pin;               /* its text, where it names no kernel */
    _Atomic(struct nvs_known_type *) types[NVS_KNOWN_TYPES]; /* filled from the front */
    _Atomic(PyObject *) torch_keywords[NVS_OUT_DTYPES];      /* {"dtype": torch.bfloat16}, ... */
};

/* Whose stream the call works on. */
struct nvs_stream {
    void *handle;
    bool given;               /* by stream=; else it is `owner`'s current stream */
    enum nvs_framework owner; /* OTHER: nobody's, the legacy default stream */
};

/* All that is known of one call of sparse_gemm(). */
struct nvs_call {
    PyObject *arguments[NVS_ARGUMENTS]; /* borrowed; NULL: not given, or None */
    struct nvs_tensor tensors[NVS_TENSORS];
    bool out_is_new;
    int out_dtype; /* enum nvs_out_dtype, or -1: not asked for */
    struct nvs_stream stream;
    struct nvs_device *device;       /* NULL: the CPU, or nothing to compute */
    const struct nvs_kernel *kernel; /* asked for by kernel=, later the one that runs */
    struct nvs_problem problem;
    struct nvs_gemm_args args;
    struct nvs_grid grid;
};

/* gemm.c */
PyObject *
nvs_sparse_gemm(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *keywords);

/* options.c: alpha, out_dtype and kernel from the arguments. An alpha that is a tensor is left
 * for import: *alpha_is_tensor. */
int nvs_parse_options(struct nvs_state *state, struct nvs_call *call, bool *alpha_is_tensor);

/* framework.c: what a type offers. */
int nvs_type_info(struct nvs_state *state, PyTypeObject *type, struct nvs_type_info *info);
const char *nvs_framework_name(enum nvs_framework framework);

/* tensor.c: `name` is the argument's, for messages. Release is idempotent and keeps a set
 * exception. */
int nvs_tensor_open(struct nvs_state *state, PyObject *object, const char *name,
                    struct nvs_tensor *tensor);
int nvs_tensor_import(PyObject *object, const char *name, const struct nvs_stream *stream,
                      struct nvs_tensor *tensor);
void nvs_tensor_release(struct nvs_tensor *tensor);

/* numpy.c: a NumPy array that does not export DLPack, through the buffer protocol. */
int nvs_numpy_import(PyObject *array, const char *name, struct nvs_tensor *tensor);

/* layout.c: reads a DLTensor into a tensor; and how errors put tensors into words. */
int nvs_tensor_read(const DLTensor *source, uint64_t flags, const char *name,
                    struct nvs_tensor *tensor);
int nvs_tensor_set_device(DLDevice device, const char *name, struct nvs_tensor *tensor);
void nvs_shape_text(const int64_t *extents, int count, char text[NVS_TEXT_SIZE]);
void nvs_dtype_text(DLDataType dtype, char text[NVS_TEXT_SIZE]);
void nvs_device_text(DLDevice device, char text[NVS_TEXT_SIZE]);

/* stream.c */
int nvs_resolve_stream(struct nvs_state *state, PyObject *argument, const struct nvs_tensor *first,
                       struct nvs_stream *stream);
int nvs_check_stream(const struct nvs_call *call);

/* check.c, check_out.c: tensors -> call->args and call->problem. */
int nvs_check_device(const struct nvs_call *call, enum nvs_argument which);
int nvs_check_inputs(struct nvs_call *call);
int nvs_check_alpha(struct nvs_call *call);
int nvs_check_out(struct nvs_call *call);

/* overlap.c: two sets of equally long runs of bytes at equal distances. */
struct nvs_region {
    uint64_t start;
    int64_t step;  /* from one run to the next; at least `width` where there are several */
    int64_t width; /* bytes in a run */
    int64_t count; /* runs */
};
bool nvs_regions_overlap(struct nvs_region one, struct nvs_region other);

/* result.c: the module of helpers in Python (borrowed, or NULL). A new array of the framework of
 * a_vals, or an exporter; and what the caller gets once the kernel is queued: new references. */
PyObject *nvs_frameworks(struct nvs_state *state);
PyObject *nvs_new_result(struct nvs_state *state, const struct nvs_call *call);
PyObject *nvs_finish_result(struct nvs_state *state, const struct nvs_call *call, PyObject *out);

/* exporter.c: memory of ours that speaks DLPack. */
extern PyType_Spec nvs_exporter_spec;
PyObject *nvs_exporter_new(PyTypeObject *type, const struct nvs_call *call);
int nvs_exporter_record(PyObject *exporter, void *stream);

/* plan.c, info.c: for people; floor.c: for the bench. */
PyObject *nvs_kernels_list(PyObject *module, PyObject *ignored);
PyObject *nvs_plan(PyObject *module, PyObject *arguments, PyObject *keywords);
PyObject *nvs_cuda_info(PyObject *module, PyObject *ignored);
PyObject *nvs_build_dict(PyObject *module, PyObject *ignored);
PyObject *nvs_launch_floor(PyObject *module, PyObject *arguments, PyObject *keywords);

/* module.c: RuntimeError "sparse_gemm: <fault>"; returns -1. */
int nvs_raise_fault(const struct nvs_fault *fault);

#endif
