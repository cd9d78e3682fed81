/* SPDX-License-Identifier: Apache-2.0
 *
 * The boundary that both compilers read: what a checked call hands to a kernel. No Python.h and
 * no cuda.h here. Every kernel takes a struct nvs_gemm_args by value, and those whose row in the
 * table has a_box_rows a struct nvs_a_maps after it; nothing else.
 *
 * C[m, n] = alpha * A[m, k] @ B[n, k]^T, A 2:4 sparse NVFP4, B dense NVFP4.
 */
#ifndef NVS_GEMM_ARGS_H
#define NVS_GEMM_ARGS_H

#include <stdint.h>

enum {
    /* Rows of tiles stand along the grid's y and z, so that there may be more than 65535: a block's
     * row of tiles is blockIdx.z * NVS_GRID_Y + blockIdx.y, which may be past the last one. */
    NVS_GRID_Y = 32768,
};

/* Bytes of dynamic shared memory that the kernel table asks for; the kernels assert them. */
enum nvs_shared_bytes {
    NVS_SM90_M8_SHARED = 134656,
    NVS_SM90_M8_K8192_SHARED = 200192,
    NVS_SM90_M8_LONG_SHARED = 189952,
    NVS_SM90_M8N32_SHARED = 138752,
    NVS_SM90_M8N32_K4096_SHARED = 204288,
    NVS_SM90_M16_SHARED = 139264,
    NVS_SM90_M16_K8192_SHARED = 228352,
    NVS_SM90_M16_LONG_SHARED = 212992,
    NVS_SM90_M16N32_SHARED = 147456,
    NVS_SM90_M16N32_K4096_SHARED = 212992,
    NVS_SM90_M16N8_SHARED = 135168,
    NVS_SM90_M16N8_K8192_SHARED = 200704,
    NVS_SM90_M16N8_LONG_SHARED = 190464,
    NVS_SM90_M32_LONG_SHARED = 203776,
    NVS_SM90_M32N8_SHARED = 140288,
    NVS_SM90_M32N8_K4096_SHARED = 205824,
    NVS_SM90_M32N8_LONG_SHARED = 232448,
    NVS_SM90_M32N16_SHARED = 148480,
    NVS_SM90_M32N16_K4096_SHARED = 214016,
    NVS_SM90_M32N16_TWO_K4096_SHARED = 149632,
    NVS_SM90_M32N16_TWO_K8192_SHARED = 215168,
    NVS_SM90_M64N8_SHARED = 216064,
    NVS_SM90_M64N16_SHARED = 232448,
    NVS_SM90_STREAM8_SHARED = 232448,
    NVS_SM90_STREAM16_SHARED = 231424,
    NVS_SM90_STREAM8_K1024_SHARED = 95232,
    NVS_SM90_STREAM16_K1024_SHARED = 116736,
    NVS_SM90_STREAM8_K2048_SHARED = 136192,
    NVS_SM90_STREAM16_K2048_SHARED = 161792,
    NVS_SM90_COLUMNS_SHARED = 220288,
    NVS_SM90_COLUMNS_LONG_SHARED = 222208,
    NVS_SM90_M32N32_SHARED = 97280,
    NVS_SM90_M64N32_SHARED = 125952,
    NVS_SM90_M64N64_SHARED = 214016,
    NVS_SM90_M128N64_SHARED = 227328,
    NVS_SM90_M64N32_LONG_SHARED = 197632,
    NVS_SM90_M64N32_RING_SHARED = 218112,
    NVS_SM90_M64N64_RING_SHARED = 214016,
    NVS_SM90_M128N64_RING_SHARED = 199752,
    NVS_SM90_M192N64_RING_SHARED = 203840,
    NVS_SM90_M256N64_RING_SHARED = 231488,
};

enum nvs_out_dtype {
    NVS_OUT_BF16 = 0,
    NVS_OUT_FP16 = 1,
    NVS_OUT_FP32 = 2,
};

/* What a kernel needs before its first load stands first: it fills two lines of the constant bank
 * that parameters live in, and a line costs about a hundred cycles to come in. */
struct nvs_gemm_args {
    const uint8_t *b_fp4;   /* [n, k/2]   two E2M1 codes, even column in the low nibble */
    const uint8_t *b_scale; /* [n, k/16]  UE4M3 */
    const uint8_t *a_vals;  /* [m, k/4]   two E2M1 codes per group of 4 columns */
    const uint8_t *a_meta;  /* [m, k/4]   their positions */
    const uint8_t *a_scale; /* [m, k/16]  UE4M3 */
    int64_t k;              /* logical columns */
    int64_t b_fp4_ld;       /* bytes from one row to the next */
    int64_t b_scale_ld;
    int64_t a_vals_ld;
    int64_t a_meta_ld;
    int64_t a_scale_ld;
    int64_t m, n;
    void *out;              /* [m, n]     out_dtype */
    int64_t out_stride_m;   /* elements from C[i, j] to C[i + 1, j] */
    int64_t out_stride_n;   /* elements from C[i, j] to C[i, j + 1]; one of the two is 1 */
    const float *alpha_ptr; /* one float on the operands' device, or NULL: use alpha */
    float alpha;
    int32_t out_dtype; /* enum nvs_out_dtype */
};

/* A tensor map as the driver encodes it (its CUtensorMap): 128 opaque bytes. */
struct nvs_tensor_map {
    uint64_t words[16];
} __attribute__((aligned(64)));

/* Bytes of a row of A in one box; a box has as many rows as the table's a_box_rows says. */
enum nvs_a_boxes {
    NVS_A_BOX = 128,      /* of vals and of meta, 512 columns: swizzled by 128 bytes */
    NVS_A_SCALE_BOX = 64, /* of scale, 1024 columns: swizzled by 64 bytes */
};

/* The rows of A for TMA, by bytes: the second parameter, by value, of the kernels whose row in the
 * table has a_box_rows. What a box has beyond the tensor arrives as zeros, but is counted: every
 * box completes all its bytes. */
struct nvs_a_maps {
    struct nvs_tensor_map vals;  /* [m, k/4] */
    struct nvs_tensor_map meta;  /* [m, k/4] */
    struct nvs_tensor_map scale; /* [m, k/16] */
};

#endif
