/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel table: the first row that fits a problem runs it, so the most specific stand first.
 *
 * To add a kernel: write cuda/gemm_<arch>.cu, add its row above the ones it beats, and its shapes
 * to the tests. A row's `when` says on what hardware it was run, or that it was not.
 */
#include "dispatch.h"

#include "gemm_args.h"

#include <limits.h>

/* What all Hopper kernels share. */
#define SM90(FILE, NAME)                                                                           \
    .name = "sm90_" NAME, .symbol = "nvs_gemm_sm90_" NAME, .image = "gemm_sm90_" FILE,             \
    .kind = NVS_KIND_CUDA, .cc_min = 90, .cc_max = 90, .n_max = INT32_MAX

/* 8 * GROUPS rows; a second stage of shared memory where K may be longer than one. */
#define SM90_WARP(NAME, GROUPS, K_MAX, SHARED, WHEN)                                               \
    {                                                                                              \
        SM90("warp", NAME), .m_max = 8 * (GROUPS), .k_max = (K_MAX), .k_multiple = 64,             \
                            .needs = NVS_NEEDS_ALIGNED_16 | NVS_NEEDS_ALIGNED_OUT,                 \
                            .tile_m = 8 * (GROUPS), .tile_n = 16, .threads = 256, .cluster = 1,    \
                            .shared_bytes = (SHARED), .when = WHEN                                 \
    }

/* 64 rows, K in one stage of whole superslabs. */
#define SM90_M64(COLUMNS, M_MIN, N_MIN, SHARED, WHEN)                                              \
    {                                                                                              \
        SM90("m64", "m64n" #COLUMNS), .m_min = (M_MIN), .m_max = INT32_MAX, .n_min = (N_MIN),      \
                                      .k_max = 2048, .k_multiple = 256, .needs = NVS_NEEDS_ALL,    \
                                      .tile_m = 64, .tile_n = COLUMNS, .threads = 512,             \
                                      .cluster = 2, .shared_bytes = (SHARED), .when = WHEN         \
    }

const struct nvs_kernel nvs_kernels[] = {
    SM90_WARP("m8", 1, 2048, NVS_SM90_M8_SHARED, "up to 8 rows, k up to 2048; run on an H200"),
    SM90_WARP("m8_long", 1, INT32_MAX, NVS_SM90_M8_LONG_SHARED,
              "up to 8 rows, any k; run on an H200"),
    SM90_WARP("m16", 2, 2048, NVS_SM90_M16_SHARED, "up to 16 rows, k up to 2048; run on an H200"),
    SM90_WARP("m16_long", 2, INT32_MAX, NVS_SM90_M16_LONG_SHARED,
              "up to 16 rows, any k; run on an H200"),
    SM90_WARP("m32", 4, 2048, NVS_SM90_M32_SHARED, "up to 32 rows, k up to 2048; run on an H200"),
    SM90_WARP("m32_long", 4, INT32_MAX, NVS_SM90_M32_LONG_SHARED,
              "up to 32 rows, any k; run on an H200"),
    SM90_M64(64, 65, 33, NVS_SM90_M64N64_SHARED, "more than 64 rows, k up to 2048; run on an H200"),
    SM90_M64(32, 0, 0, NVS_SM90_M64N32_SHARED,
             "up to 64 rows or 32 columns, k up to 2048; run on an H200"),
    {
        SM90("wgmma", "m64n32_long"),
        .m_max = INT32_MAX,
        .k_max = INT32_MAX,
        .k_multiple = 64,
        .needs = NVS_NEEDS_ALIGNED_16 | NVS_NEEDS_ALIGNED_OUT,
        .tile_m = 64,
        .tile_n = 32,
        .threads = 256,
        .cluster = 2,
        .shared_bytes = NVS_SM90_M64N32_LONG_SHARED,
        .when = "any m and k; run on an H200",
    },
    {
        SM90("warp", "m32_any"),
        .m_max = INT32_MAX,
        .k_max = INT32_MAX,
        .k_multiple = 16,
        .needs = NVS_NEEDS_ALIGNED_OUT,
        .tile_m = 32,
        .tile_n = 16,
        .threads = 256,
        .cluster = 1,
        .shared_bytes = NVS_SM90_M32_LONG_SHARED,
        .when = "rows at any address; run on an H200",
    },
    {
        .name = "naive",
        .symbol = "nvs_gemm_naive",
        .image = "gemm_naive",
        .kind = NVS_KIND_CUDA,
        .cc_min = 80,
        .cc_max = INT_MAX,
        .m_max = INT64_MAX,
        .n_max = INT64_MAX,
        .k_max = INT64_MAX,
        .k_multiple = 16,
        .tile_m = 16,
        .tile_n = 16,
        .threads = 256,
        .cluster = 1,
        .when = "any GPU, shape and alignment: the baseline, and the oracle of the other kernels",
    },
    {
        .name = "cpu",
        .kind = NVS_KIND_CPU,
        .m_max = INT64_MAX,
        .n_max = INT64_MAX,
        .k_max = INT64_MAX,
        .k_multiple = 16,
        .tile_m = 1,
        .tile_n = 1,
        .threads = 1,
        .cluster = 1,
        .when = "operands in host memory; exact sums, several threads",
    },
};

const int nvs_kernel_count = sizeof(nvs_kernels) / sizeof(nvs_kernels[0]);
