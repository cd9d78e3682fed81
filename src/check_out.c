/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules for what a call writes, and for alpha where it is a tensor: dtype, shape, strides,
 * writability, and that out shares no byte with anything the kernel reads.
 */
#include "nvfp4sparse.h"

#include "overlap.h"

static const struct {
    DLDataType dtype;
    const char *name;
} out_dtypes[NVS_OUT_DTYPES] = {
    [NVS_OUT_BF16] = {{kDLBfloat, 16, 1}, "bfloat16"},
    [NVS_OUT_FP16] = {{kDLFloat, 16, 1}, "float16"},
    [NVS_OUT_FP32] = {{kDLFloat, 32, 1}, "float32"},
};

int
nvs_check_alpha(struct nvs_call *call)
{
    const struct nvs_tensor *alpha = &call->tensors[NVS_ALPHA];
    char got[NVS_TEXT_SIZE];
    if (alpha->dtype.code != kDLFloat || alpha->dtype.bits != 32 || alpha->dtype.lanes != 1) {
        nvs_dtype_text(alpha->dtype, got);
        PyErr_Format(PyExc_TypeError,
                     "sparse_gemm: alpha must be a number or a float32 tensor of one element, got "
                     "a tensor of %s: convert it to float32",
                     got);
        return -1;
    }
    for (int i = 0; i < alpha->ndim; i++) {
        if (alpha->shape[i] != 1) {
            nvs_shape_text(alpha->shape, alpha->ndim, got);
            PyErr_Format(PyExc_ValueError,
                         "sparse_gemm: alpha must have one element, got shape %s: scale rows or "
                         "columns of the result instead",
                         got);
            return -1;
        }
    }
    call->args.alpha_ptr = (const float *)(const void *)alpha->data;
    return 0;
}

static int
check_out_dtype(struct nvs_call *call)
{
    DLDataType dtype = call->tensors[NVS_OUT].dtype;
    for (int i = 0; i < NVS_OUT_DTYPES; i++) {
        DLDataType known = out_dtypes[i].dtype;
        if (dtype.code == known.code && dtype.bits == known.bits && dtype.lanes == known.lanes) {
            if (call->out_dtype >= 0 && call->out_dtype != i) {
                PyErr_Format(PyExc_ValueError,
                             "sparse_gemm: out_dtype must agree with out, got out_dtype %s and an "
                             "out of %s: leave one of them away",
                             out_dtypes[call->out_dtype].name, out_dtypes[i].name);
                return -1;
            }
            call->args.out_dtype = i;
            return 0;
        }
    }
    char got[NVS_TEXT_SIZE];
    nvs_dtype_text(dtype, got);
    PyErr_Format(PyExc_TypeError, "sparse_gemm: out must be bfloat16, float16 or float32, got %s",
                 got);
    return -1;
}

static int
check_writable(const struct nvs_tensor *out)
{
    if (out->info.framework == NVS_FRAMEWORK_JAX) {
        PyErr_SetString(PyExc_ValueError,
                        "sparse_gemm: out must be writable, but JAX arrays are immutable: leave "
                        "out away, the result is then a new JAX array");
        return -1;
    }
    if (out->flags & DLPACK_FLAG_READ_ONLY) {
        PyErr_SetString(PyExc_ValueError,
                        "sparse_gemm: out must be writable, got a read-only tensor: pass a copy");
        return -1;
    }
    return 0;
}

static int
check_out_shape(const struct nvs_call *call)
{
    const struct nvs_tensor *out = &call->tensors[NVS_OUT];
    if (out->ndim == 2 && out->shape[0] == call->args.m && out->shape[1] == call->args.n) {
        return 0;
    }
    const int64_t wanted[2] = {call->args.m, call->args.n};
    char must[NVS_TEXT_SIZE];
    char got[NVS_TEXT_SIZE];
    nvs_shape_text(wanted, 2, must);
    nvs_shape_text(out->shape, out->ndim, got);
    PyErr_Format(PyExc_ValueError, "sparse_gemm: out must have shape (m, n) = %s, got %s", must,
                 got);
    return -1;
}

/* Row-major or column-major, whatever the leading dimension; a stride that leads nowhere, since
 * its extent is 1, is chosen so that the result is one of the two. */
static int
check_out_strides(struct nvs_call *call)
{
    const struct nvs_tensor *out = &call->tensors[NVS_OUT];
    struct nvs_gemm_args *args = &call->args;
    int64_t m = args->m;
    int64_t n = args->n;
    int64_t stride_m = m > 1 ? out->strides[0] : n;
    int64_t stride_n = n > 1 ? out->strides[1] : 1;
    if (m == 0 || n == 0 || (stride_n == 1 && stride_m >= n)) {
        args->out_stride_m = stride_m;
        args->out_stride_n = stride_n;
        return 0;
    }
    stride_m = m > 1 ? out->strides[0] : 1;
    stride_n = n > 1 ? out->strides[1] : m;
    if (stride_m == 1 && stride_n >= m) {
        args->out_stride_m = stride_m;
        args->out_stride_n = stride_n;
        return 0;
    }
    char got[NVS_TEXT_SIZE];
    nvs_shape_text(out->strides, 2, got);
    PyErr_Format(PyExc_ValueError,
                 "sparse_gemm: out must be row-major or column-major (one stride 1, the other at "
                 "least as long as the row or column), got strides %s: pass a contiguous out, or "
                 "its transpose",
                 got);
    return -1;
}

static struct nvs_region
region_of(const struct nvs_call *call, enum nvs_argument which, int element_size)
{
    const struct nvs_gemm_args *args = &call->args;
    const int64_t strides[NVS_INPUTS] = {
        [NVS_A_VALS] = args->a_vals_ld,   [NVS_A_META] = args->a_meta_ld,
        [NVS_A_SCALE] = args->a_scale_ld, [NVS_B_FP4] = args->b_fp4_ld,
        [NVS_B_SCALE] = args->b_scale_ld,
    };
    const struct nvs_tensor *tensor = &call->tensors[which];
    uint64_t start = (uintptr_t)tensor->data;
    if (which == NVS_ALPHA) {
        return (struct nvs_region){start, sizeof(float), sizeof(float), 1};
    }
    if (which != NVS_OUT) {
        return (struct nvs_region){start, strides[which], tensor->shape[1], tensor->shape[0]};
    }
    bool row_major = args->out_stride_n == 1;
    return (struct nvs_region){
        start,
        element_size * (row_major ? args->out_stride_m : args->out_stride_n),
        element_size * (row_major ? args->n : args->m),
        row_major ? args->m : args->n,
    };
}

static int
check_overlap(const struct nvs_call *call, int element_size)
{
    struct nvs_region out = region_of(call, NVS_OUT, element_size);
    for (int i = 0; i < NVS_TENSORS; i++) {
        if (i == NVS_OUT || !call->tensors[i].imported) {
            continue;
        }
        if (nvs_regions_overlap(out, region_of(call, i, element_size))) {
            PyErr_Format(PyExc_ValueError,
                         "sparse_gemm: out must not share memory with an input, but overlaps %s: "
                         "pass another out",
                         nvs_argument_names[i]);
            return -1;
        }
    }
    return 0;
}

int
nvs_check_out(struct nvs_call *call)
{
    struct nvs_tensor *out = &call->tensors[NVS_OUT];
    if (check_out_dtype(call) < 0 || check_writable(out) < 0 || check_out_shape(call) < 0 ||
        check_out_strides(call) < 0) {
        return -1;
    }
    int element_size = call->args.out_dtype == NVS_OUT_FP32 ? 4 : 2;
    if (check_overlap(call, element_size) < 0) {
        return -1;
    }
    call->args.out = out->data;
    if ((uintptr_t)out->data % (unsigned)element_size == 0 &&
        (uintptr_t)call->args.alpha_ptr % sizeof(float) == 0) {
        call->problem.aligned |= NVS_NEEDS_ALIGNED_OUT;
    }
    return 0;
}
