/* SPDX-License-Identifier: Apache-2.0
 *
 * The product as a custom call of XLA, which nvfp4sparse/jax.py puts into compiled JAX programs: it
 * takes the place of gemm.c, tensor.c and check.c there, and ends in the same kernels. XLA calls it
 * on threads of its own, so nothing here touches Python but nvs_xla_handlers().
 *
 * Operands: the five of sparse_gemm(), row-major, and alpha as a float32 of one element if there is
 * a sixth. Attributes: alpha (float32; for five operands) and kernel (text; empty: choose one).
 * One result: C.
 */
#include "nvfp4sparse.h"

#include "gemm_cpu.h"
#include "nvfp4.h"
#include "xla_ffi.h"

#include <stdio.h>
#include <string.h>

/* By NVFP4SPARSE_KERNEL; set by nvs_xla_handlers(), thus before XLA knows the handlers. */
static _Atomic(const struct nvs_kernel *) pinned;

static struct xla_error *
fail(const struct xla_frame *frame, int code, const char *text)
{
    char message[sizeof(struct nvs_fault) + 16];
    snprintf(message, sizeof(message), "sparse_gemm: %s", text);
    struct xla_error_args args = {
        .struct_size = sizeof(args),
        .message = message,
        .code = code,
    };
    return frame->api->error_create(&args); /* cppcheck-suppress returnDanglingLifetime */
}

/* Answers what XLA asks at registration. True: that was all of this call. */
static bool
answer_metadata(const struct xla_frame *frame)
{
    for (struct xla_extension *extension = frame->extensions; extension != NULL;
         extension = extension->next) {
        if (extension->type == XLA_EXTENSION_METADATA) {
            struct xla_metadata *metadata = ((struct xla_metadata_extension *)extension)->metadata;
            metadata->version.major = XLA_VERSION_MAJOR;
            metadata->version.minor = frame->api->version.minor;
            metadata->traits = XLA_COMMAND_BUFFER_COMPATIBLE;
            return true;
        }
    }
    return false;
}

static const void *
find_attribute(const struct xla_attributes *attributes, const char *name, int kind)
{
    for (int64_t i = 0; i < attributes->size; i++) {
        const struct xla_text *given = attributes->names[i];
        if (given->size == strlen(name) && memcmp(given->text, name, given->size) == 0) {
            return attributes->kinds[i] == kind ? attributes->values[i] : NULL;
        }
    }
    return NULL;
}

/* Whether a buffer is [rows, columns] of one of two types. */
static bool
is_matrix(const struct xla_buffer *buffer, int64_t rows, int64_t columns, int other_type)
{
    bool is_bytes = buffer->type == XLA_U8 || buffer->type == XLA_S8;
    return (is_bytes || buffer->type == other_type) && buffer->rank == 2 &&
           buffer->dims[0] == rows && buffer->dims[1] == columns;
}

static bool
read_out(const struct xla_buffer *out, struct nvs_gemm_args *args)
{
    static const struct {
        int type, out_dtype;
    } known[] = {{XLA_BF16, NVS_OUT_BF16}, {XLA_F16, NVS_OUT_FP16}, {XLA_F32, NVS_OUT_FP32}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (out->type == known[i].type && out->rank == 2 && out->dims[0] == args->m &&
            out->dims[1] == args->n) {
            args->out = out->data;
            args->out_dtype = known[i].out_dtype;
            args->out_stride_m = args->n;
            args->out_stride_n = 1;
            return true;
        }
    }
    return false;
}

static bool
read_alpha(const struct xla_frame *frame, struct nvs_gemm_args *args)
{
    const struct xla_scalar *given = find_attribute(&frame->attributes, "alpha",
                                                    XLA_ATTRIBUTE_SCALAR);
    if (frame->arguments.size == NVS_INPUTS) {
        if (given == NULL || given->type != XLA_F32) {
            return false;
        }
        args->alpha = *(const float *)given->value;
        return true;
    }
    const struct xla_buffer *alpha = frame->arguments.buffers[NVS_INPUTS];
    for (int64_t i = 0; i < alpha->rank; i++) {
        if (alpha->dims[i] != 1) {
            return false;
        }
    }
    args->alpha_ptr = alpha->data;
    return alpha->type == XLA_F32;
}

/* From buffers to a problem; nvfp4sparse/jax.py has checked all this with better words. */
static bool
read_problem(const struct xla_frame *frame, struct nvs_gemm_args *args, struct nvs_problem *problem)
{
    int64_t given = frame->arguments.size;
    if (frame->results.size != 1 || (given != NVS_INPUTS && given != NVS_INPUTS + 1)) {
        return false;
    }
    for (int64_t i = 0; i < given; i++) {
        if (frame->arguments.kinds[i] != XLA_BUFFER) {
            return false;
        }
    }
    struct xla_buffer *const *buffers = frame->arguments.buffers;
    const struct xla_buffer *a = buffers[NVS_A_VALS];
    const struct xla_buffer *b = buffers[NVS_B_FP4];
    if (frame->results.kinds[0] != XLA_BUFFER || a->rank != 2 || b->rank != 2 ||
        a->dims[1] % NVS_GROUPS_PER_BLOCK != 0) {
        return false;
    }
    int64_t m = args->m = problem->m = a->dims[0];
    int64_t n = args->n = problem->n = b->dims[0];
    int64_t k = args->k = problem->k = NVS_GROUP * a->dims[1];
    args->a_vals = a->data;
    args->a_meta = buffers[NVS_A_META]->data;
    args->a_scale = buffers[NVS_A_SCALE]->data;
    args->b_fp4 = b->data;
    args->b_scale = buffers[NVS_B_SCALE]->data;
    args->a_vals_ld = args->a_meta_ld = k / NVS_GROUP;
    args->a_scale_ld = args->b_scale_ld = k / NVS_BLOCK;
    args->b_fp4_ld = k / 2;
    return is_matrix(a, m, k / NVS_GROUP, XLA_U8) &&
           is_matrix(buffers[NVS_A_META], m, k / NVS_GROUP, XLA_U8) &&
           is_matrix(buffers[NVS_A_SCALE], m, k / NVS_BLOCK, XLA_F8E4M3FN) &&
           is_matrix(b, n, k / 2, XLA_U8) &&
           is_matrix(buffers[NVS_B_SCALE], n, k / NVS_BLOCK, XLA_F8E4M3FN) &&
           read_out(frame->results.buffers[0], args) && read_alpha(frame, args);
}

/* enum nvs_needs of dense rows; XLA aligns buffers, but parts of a buffer are buffers as well. */
static unsigned
find_alignment(const struct nvs_gemm_args *args)
{
    uint64_t wide = (uintptr_t)args->a_vals | (uintptr_t)args->a_meta | (uintptr_t)args->b_fp4 |
                    (uint64_t)args->a_vals_ld | (uint64_t)args->b_fp4_ld;
    uint64_t narrow = (uintptr_t)args->a_scale | (uintptr_t)args->b_scale |
                      (uint64_t)args->a_scale_ld;
    unsigned element_size = args->out_dtype == NVS_OUT_FP32 ? 4 : 2;
    bool is_out_aligned = (uintptr_t)args->out % element_size == 0 &&
                          (uintptr_t)args->alpha_ptr % sizeof(float) == 0;
    unsigned aligned = is_out_aligned ? NVS_NEEDS_ALIGNED_OUT : 0;
    if (wide % 16 == 0 && narrow % 4 == 0 && args->b_fp4_ld <= INT32_MAX) {
        aligned |= NVS_NEEDS_ALIGNED_16;
    }
    return aligned | (narrow % 16 == 0 ? NVS_NEEDS_ALIGNED_SCALES : 0);
}

/* The row that kernel= or NVFP4SPARSE_KERNEL names, or nvs_select()'s; NULL: see fault. */
static const struct nvs_kernel *
select_kernel(const struct xla_frame *frame, const struct nvs_problem *problem,
              struct nvs_fault *fault)
{
    const struct xla_text *wanted = find_attribute(&frame->attributes, "kernel",
                                                   XLA_ATTRIBUTE_STRING);
    const struct nvs_kernel *kernel = atomic_load(&pinned);
    const char *by = "NVFP4SPARSE_KERNEL";
    if (wanted != NULL && wanted->size > 0) {
        char name[64];
        snprintf(name, sizeof(name), "%.*s", wanted->size < 63 ? (int)wanted->size : 63,
                 wanted->text);
        kernel = nvs_find_kernel(name);
        by = "kernel";
        if (kernel == NULL) {
            snprintf(fault->text, sizeof(fault->text), "kernel names no kernel: %s", name);
            return NULL;
        }
    }
    else if (kernel == NULL || kernel->kind != problem->kind) {
        kernel = nvs_select(problem);
        if (kernel == NULL) {
            nvs_explain_no_kernel(problem, fault->text, sizeof(fault->text));
        }
        return kernel;
    }
    const char *misfit = nvs_misfit(kernel, problem);
    if (misfit != NULL) {
        snprintf(fault->text, sizeof(fault->text), "%s=%s cannot run this: %s", by, kernel->name,
                 misfit);
        return NULL;
    }
    return kernel;
}

static struct xla_error *
call_cpu(struct xla_frame *frame)
{
    struct nvs_gemm_args args = {.alpha = 1.0f};
    struct nvs_problem problem = {.kind = NVS_KIND_CPU};
    struct nvs_fault fault;
    if (answer_metadata(frame) || frame->stage != XLA_STAGE_EXECUTE) {
        return NULL;
    }
    if (!read_problem(frame, &args, &problem)) {
        return fail(frame, XLA_INVALID_ARGUMENT, "operands or attributes do not fit together");
    }
    if (args.m == 0 || args.n == 0) {
        return NULL;
    }
    if (select_kernel(frame, &problem, &fault) == NULL) {
        return fail(frame, XLA_INVALID_ARGUMENT, fault.text);
    }
    return nvs_gemm_cpu(&args, 0) < 0 ? fail(frame, XLA_RESOURCE_EXHAUSTED, "out of memory") : NULL;
}

static struct xla_error *
call_cuda(struct xla_frame *frame)
{
    struct nvs_gemm_args args = {.alpha = 1.0f};
    struct nvs_problem problem = {.kind = NVS_KIND_CUDA, .built = true};
    struct nvs_device *device = NULL;
    struct nvs_fault fault;
    if (answer_metadata(frame) || frame->stage != XLA_STAGE_EXECUTE) {
        return NULL;
    }
    if (frame->api->struct_size < sizeof(struct xla_api)) {
        return fail(frame, XLA_FAILED_PRECONDITION, "this JAX is too old: it tells no device");
    }
    if (!read_problem(frame, &args, &problem)) {
        return fail(frame, XLA_INVALID_ARGUMENT, "operands or attributes do not fit together");
    }
    if (args.m == 0 || args.n == 0) {
        return NULL;
    }
    struct xla_stream_args stream = {.struct_size = sizeof(stream), .context = frame->context};
    struct xla_ordinal_args ordinal = {.struct_size = sizeof(ordinal), .context = frame->context};
    struct xla_error *error = frame->api->stream_get(&stream);
    error = error != NULL ? error : frame->api->ordinal_get(&ordinal);
    if (error != NULL) {
        return error;
    }
    if (nvs_device_open(ordinal.ordinal, &device, &fault) < 0) {
        return fail(frame, XLA_INTERNAL, fault.text);
    }
    problem.cc = device->cc;
    problem.sm_count = device->sm_count;
    problem.aligned = find_alignment(&args);
    const struct nvs_kernel *kernel = select_kernel(frame, &problem, &fault);
    if (kernel == NULL) {
        return fail(frame, XLA_INVALID_ARGUMENT, fault.text);
    }
    if (nvs_device_launch(device, kernel, nvs_grid(kernel, &problem), stream.stream, &args,
                          &fault) < 0) {
        return fail(frame, XLA_INTERNAL, fault.text);
    }
    return NULL;
}

PyObject *
nvs_xla_handlers(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    struct nvs_state *state = PyModule_GetState(module);
    void *cpu = NULL;
    void *cuda = NULL;
    if (state->bad_pin != NULL) {
        PyErr_Format(PyExc_ValueError, "NVFP4SPARSE_KERNEL names no kernel: %R", state->bad_pin);
        return NULL;
    }
    atomic_store(&pinned, state->pinned);
    *(struct xla_error * (**)(struct xla_frame *)) & cpu = call_cpu;
    *(struct xla_error * (**)(struct xla_frame *)) & cuda = call_cuda;
    return Py_BuildValue("{sN sN}", "cpu", PyCapsule_New(cpu, XLA_CAPSULE, NULL), "CUDA",
                         PyCapsule_New(cuda, XLA_CAPSULE, NULL));
}
