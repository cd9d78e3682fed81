/* SPDX-License-Identifier: Apache-2.0
 *
 * From input tensors to struct nvs_gemm_args: every rule on dtype, shape, stride and device that
 * SPEC states, with the words a user reads when one is broken. check_out.c does the same for out
 * and alpha. Nobody below checks user input again.
 */
#include "nvfp4sparse.h"

enum dtype_class {
    BYTES,        /* int8, uint8 */
    BYTES_OR_FP4, /* also float4_e2m1fn, two to a byte */
    BYTES_OR_FP8, /* also float8_e4m3fn */
};

static const struct input_rule {
    char rows;   /* 'm' or 'n' */
    int columns; /* logical columns per byte: the shape is (rows, k / columns) */
    enum dtype_class dtypes;
    const char *dtype_text;
    unsigned alignment; /* bytes, a power of 2, for NVS_NEEDS_ALIGNED_16 */
} rules[NVS_INPUTS] = {
    [NVS_A_VALS] = {'m', 4, BYTES_OR_FP4, "int8, uint8 or float4_e2m1fn_x2", 16},
    [NVS_A_META] = {'m', 4, BYTES, "int8 or uint8", 16},
    [NVS_A_SCALE] = {'m', 16, BYTES_OR_FP8, "int8, uint8 or float8_e4m3fn", 4},
    [NVS_B_FP4] = {'n', 2, BYTES_OR_FP4, "int8, uint8 or float4_e2m1fn_x2", 16},
    [NVS_B_SCALE] = {'n', 16, BYTES_OR_FP8, "int8, uint8 or float8_e4m3fn", 4},
};

static bool
is_dtype(DLDataType dtype, int code, int bits, int lanes)
{
    return dtype.code == code && dtype.bits == bits && dtype.lanes == lanes;
}

int
nvs_check_device(const struct nvs_call *call, enum nvs_argument which)
{
    const struct nvs_tensor *tensor = &call->tensors[which];
    const struct nvs_tensor *first = &call->tensors[NVS_A_VALS];
    if (nvs_same_device(tensor->device, first->device)) {
        return 0;
    }
    char here[NVS_TEXT_SIZE];
    char there[NVS_TEXT_SIZE];
    nvs_device_text(first->device, here);
    nvs_device_text(tensor->device, there);
    PyErr_Format(PyExc_ValueError,
                 "sparse_gemm: all tensors must be on one device, got a_vals on %s and %s on %s: "
                 "move one of them",
                 here, nvs_argument_names[which], there);
    return -1;
}

static int
wrong_dtype(const struct nvs_tensor *tensor, const char *name, const char *rule)
{
    char got[NVS_TEXT_SIZE];
    nvs_dtype_text(tensor->dtype, got);
    PyErr_Format(PyExc_TypeError,
                 "sparse_gemm: %s must be %s, got %s: reinterpret its bytes as uint8 if they are "
                 "in the right format (.view), do not convert",
                 name, rule, got);
    return -1;
}

static int
not_contiguous(const struct nvs_tensor *tensor, const char *name, const char *rule)
{
    char got[NVS_TEXT_SIZE];
    nvs_shape_text(tensor->strides, tensor->ndim, got);
    PyErr_Format(PyExc_ValueError,
                 "sparse_gemm: %s must have %s, got strides %s: call .contiguous() (NumPy: "
                 "ascontiguousarray)",
                 name, rule, got);
    return -1;
}

/* Makes a tensor whose shape counts float4 values one whose shape counts bytes. */
static int
halve_float4(struct nvs_tensor *tensor, const char *name)
{
    if (tensor->flags & DLPACK_FLAG_SUBBYTE_PADDED) {
        PyErr_Format(PyExc_TypeError,
                     "sparse_gemm: %s must hold two float4 values per byte, got one per byte: pack "
                     "neighbours into uint8, the first in the low nibble",
                     name);
        return -1;
    }
    int last = tensor->ndim - 1;
    if (last < 0) {
        return 0; /* the shape check will refuse it */
    }
    if (tensor->shape[last] % 2 != 0) {
        PyErr_Format(PyExc_ValueError,
                     "sparse_gemm: %s must have rows of whole bytes, got %lld float4 values in a "
                     "row: pad it to an even number",
                     name, (long long)tensor->shape[last]);
        return -1;
    }
    bool is_empty = nvs_tensor_is_empty(tensor);
    if (!is_empty && tensor->strides[last] != 1) {
        return not_contiguous(tensor, name, "stride 1 in its last dimension");
    }
    for (int i = 0; i < last; i++) {
        if (!is_empty && tensor->shape[i] > 1 && tensor->strides[i] % 2 != 0) {
            return not_contiguous(tensor, name, "rows that start at whole bytes");
        }
        tensor->strides[i] /= 2;
    }
    tensor->shape[last] /= 2;
    return 0;
}

static int
check_input_dtype(struct nvs_tensor *tensor, const char *name, const struct input_rule *rule)
{
    DLDataType dtype = tensor->dtype;
    if (is_dtype(dtype, kDLUInt, 8, 1) || is_dtype(dtype, kDLInt, 8, 1)) {
        return 0;
    }
    if (rule->dtypes == BYTES_OR_FP8 && is_dtype(dtype, kDLFloat8_e4m3fn, 8, 1)) {
        return 0;
    }
    if (rule->dtypes == BYTES_OR_FP4 && is_dtype(dtype, kDLFloat4_e2m1fn, 4, 2)) {
        return 0;
    }
    if (rule->dtypes == BYTES_OR_FP4 && is_dtype(dtype, kDLFloat4_e2m1fn, 4, 1)) {
        return halve_float4(tensor, name);
    }
    return wrong_dtype(tensor, name, rule->dtype_text);
}

static int
check_input_shape(const struct nvs_tensor *tensor, const char *name, const struct input_rule *rule,
                  int64_t rows, int64_t k)
{
    if (tensor->ndim == 2 && tensor->shape[0] == rows && tensor->shape[1] * rule->columns == k) {
        return 0;
    }
    const int64_t wanted[2] = {rows, k / rule->columns};
    char must[NVS_TEXT_SIZE];
    char got[NVS_TEXT_SIZE];
    nvs_shape_text(wanted, 2, must);
    nvs_shape_text(tensor->shape, tensor->ndim, got);
    PyErr_Format(PyExc_ValueError, "sparse_gemm: %s must have shape (%c, k/%d) = %s, got %s", name,
                 rule->rows, rule->columns, must, got);
    return -1;
}

/* m and k from a_vals, n from b_fp4; then every shape must agree with them. */
static int
check_input_shapes(struct nvs_call *call)
{
    const struct nvs_tensor *a = &call->tensors[NVS_A_VALS];
    const struct nvs_tensor *b = &call->tensors[NVS_B_FP4];
    char got[NVS_TEXT_SIZE];
    if (a->ndim != 2 || a->shape[1] % 4 != 0) {
        nvs_shape_text(a->shape, a->ndim, got);
        PyErr_Format(PyExc_ValueError,
                     "sparse_gemm: a_vals must have shape (m, k/4) with k a multiple of 16, got %s",
                     got);
        return -1;
    }
    call->args.m = a->shape[0];
    call->args.k = 4 * a->shape[1];
    if (b->ndim != 2) {
        nvs_shape_text(b->shape, b->ndim, got);
        PyErr_Format(PyExc_ValueError,
                     "sparse_gemm: b_fp4 must have shape (n, k/2) = (n, %lld), got %s",
                     (long long)(call->args.k / 2), got);
        return -1;
    }
    call->args.n = b->shape[0];
    for (int i = 0; i < NVS_INPUTS; i++) {
        if (check_input_shape(&call->tensors[i], nvs_argument_names[i], &rules[i],
                              rules[i].rows == 'm' ? call->args.m : call->args.n,
                              call->args.k) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Bytes from one row to the next. One row has no next: then a distance that suits every kernel. */
static int
row_stride(const struct nvs_tensor *tensor, const char *name, int64_t *stride)
{
    int64_t rows = tensor->shape[0];
    int64_t columns = tensor->shape[1];
    *stride = (columns + 15) & ~(int64_t)15;
    if (rows == 0 || columns == 0) {
        return 0;
    }
    if (columns > 1 && tensor->strides[1] != 1) {
        return not_contiguous(tensor, name, "stride 1 in its last dimension");
    }
    if (rows > 1) {
        if (tensor->strides[0] < columns) {
            return not_contiguous(tensor, name, "a row stride that is not shorter than the row");
        }
        *stride = tensor->strides[0];
    }
    return 0;
}

int
nvs_check_inputs(struct nvs_call *call)
{
    struct nvs_gemm_args *args = &call->args;
    struct nvs_tensor *tensors = call->tensors;
    int64_t strides[NVS_INPUTS];
    bool aligned = true;
    for (int i = 0; i < NVS_INPUTS; i++) {
        if (check_input_dtype(&tensors[i], nvs_argument_names[i], &rules[i]) < 0) {
            return -1;
        }
    }
    if (check_input_shapes(call) < 0) {
        return -1;
    }
    for (int i = 0; i < NVS_INPUTS; i++) {
        if (row_stride(&tensors[i], nvs_argument_names[i], &strides[i]) < 0) {
            return -1;
        }
        uint64_t bits = (uintptr_t)tensors[i].data | (uint64_t)strides[i];
        aligned = aligned && (bits & (rules[i].alignment - 1)) == 0 && strides[i] <= INT32_MAX;
    }
    args->a_vals = tensors[NVS_A_VALS].data;
    args->a_meta = tensors[NVS_A_META].data;
    args->a_scale = tensors[NVS_A_SCALE].data;
    args->b_fp4 = tensors[NVS_B_FP4].data;
    args->b_scale = tensors[NVS_B_SCALE].data;
    args->a_vals_ld = strides[NVS_A_VALS];
    args->a_meta_ld = strides[NVS_A_META];
    args->a_scale_ld = strides[NVS_A_SCALE];
    args->b_fp4_ld = strides[NVS_B_FP4];
    args->b_scale_ld = strides[NVS_B_SCALE];
    call->problem.m = args->m;
    call->problem.n = args->n;
    call->problem.k = args->k;
    uint64_t scales = (uintptr_t)args->a_scale | (uintptr_t)args->b_scale |
                      (uint64_t)args->a_scale_ld | (uint64_t)args->b_scale_ld;
    call->problem.aligned = (aligned ? NVS_NEEDS_ALIGNED_16 : 0) |
                            (scales % 16 == 0 ? NVS_NEEDS_ALIGNED_SCALES : 0);
    return 0;
}
