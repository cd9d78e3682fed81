/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel table: the first row that fits a problem runs it, so the most specific stand first.
 * Rows for the same problems that differ in the tile have wave_ns and stand together, the smallest
 * first: a larger tile takes longer but decodes an operand fewer times, so which of them is fastest
 * depends on how many waves each needs.
 *
 * To add a kernel: write cuda/gemm_<arch>.cu, add its row above the ones it beats, and its shapes
 * to the tests. A row's `when` says on what hardware it was run, or that it was not.
 */
#include "dispatch.h"

#include "gemm_args.h"

#include <limits.h>
#include <string.h>

/* What all Hopper kernels share. */
#define SM90(FILE, NAME)                                                                           \
    .name = "sm90_" NAME, .symbol = "nvs_gemm_sm90_" NAME, .image = "gemm_sm90_" FILE,             \
    .kind = NVS_KIND_CUDA, .cc_min = 90, .cc_max = 90

/* Lengths of K, by name: what a row has, and its words. In one stage of whole superslabs or warps'
 * shares, scales by aligned 16 bytes. */
#define ONE_STAGE .k_max = 2048, .k_multiple = 256, .needs = NVS_NEEDS_ALL
#define ONE_STAGE_WORDS "k a multiple of 256 up to 2048"

/* A longer stage, where packed rows are whole lines of 128 bytes: a line that two rows share is asked
 * for twice, and then a ring of shorter stages is faster. */
#define LINES_4096 .k_max = 4096, .k_multiple = 512, .needs = NVS_NEEDS_ALL
#define LINES_4096_WORDS "k a multiple of 512 up to 4096"
#define LINES_8192 .k_max = 8192, .k_multiple = 512, .needs = NVS_NEEDS_ALL
#define LINES_8192_WORDS "k a multiple of 512 up to 8192"

#define WHOLE_SLABS .k_max = INT32_MAX, .k_multiple = 256, .needs = NVS_NEEDS_ALL
#define WHOLE_SLABS_WORDS "k a multiple of 256"

#define LONG_K                                                                                     \
    .k_max = INT32_MAX, .k_multiple = 64, .needs = NVS_NEEDS_ALIGNED_16 | NVS_NEEDS_ALIGNED_OUT
#define LONG_K_WORDS "any k"

/* What rows for few rows of A share: all of these in a tile. */
#define SM90_FEW_ROWS(FILE, NAME, ROWS, COLUMNS, SHARED)                                           \
    SM90(FILE, NAME), .m_max = (ROWS), .n_max = INT32_MAX, .tile_m = (ROWS), .tile_n = (COLUMNS),  \
                      .threads = 256, .cluster = 1, .shared_bytes = (SHARED)

/* In any number of waves. */
#define SM90_ROWS(NAME, ROWS, COLUMNS, LENGTH, SHARED)                                             \
    {                                                                                              \
        SM90_FEW_ROWS("warp", NAME, ROWS, COLUMNS, SHARED), LENGTH,                                \
            .when = "up to " #ROWS " rows, " LENGTH##_WORDS "; run on an H200"                     \
    }

/* In one wave. */
#define SM90_ROWS_WAVE(NAME, ROWS, COLUMNS, LENGTH, SHARED)                                        \
    {                                                                                              \
        SM90_FEW_ROWS("warp", NAME, ROWS, COLUMNS, SHARED), LENGTH,                                \
            .one_wave = true,                                                                      \
            .when = "up to " #ROWS " rows, one wave, " LENGTH##_WORDS "; run on an H200"           \
    }

/* Walking, with all of A in registers, whose number limits K. */
#define SM90_ROWS_STREAM(ROWS, K_MAX)                                                              \
    {                                                                                              \
        SM90_FEW_ROWS("columns", "m" #ROWS "_stream_k" #K_MAX, ROWS, 16, NVS_SM90_COLUMNS_SHARED), \
            .k_max = (K_MAX), .k_multiple = 256, .needs = NVS_NEEDS_ALL, .persistent = true,       \
            .when = "up to " #ROWS " rows, several waves, k a multiple of 256 up to " #K_MAX       \
                    "; run on an H200"                                                             \
    }

/* Walking, with A on its way too. */
#define SM90_ROWS_STREAM_LONG(ROWS)                                                                \
    {                                                                                              \
        SM90_FEW_ROWS("columns", "m" #ROWS "_stream", ROWS, 16, NVS_SM90_COLUMNS_LONG_SHARED),     \
            WHOLE_SLABS,                                                                           \
            .persistent = true,                                                                    \
            .when = "up to " #ROWS " rows, several waves, " WHOLE_SLABS_WORDS "; run on an H200"   \
    }

/* What rows for few columns share: all of these in a tile of ROWS. */
#define SM90_FEW_COLUMNS(FILE, NAME, ROWS, COLUMNS, SHARED)                                        \
    SM90(FILE, NAME), .m_max = INT32_MAX, .n_max = (COLUMNS), .tile_m = (ROWS),                    \
                      .tile_n = (COLUMNS), .threads = 256, .shared_bytes = (SHARED)

/* In one wave; CLUSTER blocks share K. */
#define SM90_WAVE(ROWS, COLUMNS, SUFFIX, LENGTH, CLUSTER, SHARED)                                  \
    {                                                                                              \
        SM90_FEW_COLUMNS("warp", "m" #ROWS "n" #COLUMNS SUFFIX, ROWS, COLUMNS, SHARED), LENGTH,    \
            .one_wave = true, .cluster = (CLUSTER),                                                \
            .when = "up to " #COLUMNS " columns, one wave, " LENGTH##_WORDS "; run on an H200"     \
    }

/* Walking, with all of B in shared memory; what limits K is its size. AMOUNT: words, with a comma. */
#define SM90_STREAM(COLUMNS, SUFFIX, K_MAX, AMOUNT, PAYS_MK, SHARED)                               \
    {                                                                                              \
        SM90_FEW_COLUMNS("stream", "stream" #COLUMNS SUFFIX, 16, COLUMNS, SHARED),                 \
            .k_max = (K_MAX), .k_multiple = 256, .needs = NVS_NEEDS_ALL, .cluster = 1,             \
            .persistent = true, .pays_mk = (PAYS_MK),                                              \
            .when = "up to " #COLUMNS " columns, " AMOUNT "k a multiple of 256 up to " #K_MAX      \
                    "; run on an H200"                                                             \
    }

/* ROWS x COLUMNS of C per cluster, A by TMA. */
#define SM90_CLUSTER(FILE, ROWS, COLUMNS, M_MAX, WAVE_NS, SHARED, WHEN)                            \
    {                                                                                              \
        SM90(FILE, "m" #ROWS "n" #COLUMNS), ONE_STAGE,                                             \
            .m_max = (M_MAX), .n_max = INT32_MAX, .tile_m = (ROWS), .tile_n = (COLUMNS),           \
            .threads = 288, .cluster = 2, .wave_ns = (WAVE_NS), .a_box_rows = (ROWS),              \
            .shared_bytes = (SHARED), .when = WHEN                                                 \
    }

/* ROWS x COLUMNS of C by CLUSTER blocks, A by TMA through a ring, any number of stages of K. */
#define SM90_RING(FILE, NAME, ROWS, COLUMNS, THREADS, CLUSTER, WAVE_NS, SHARED)                    \
    {                                                                                              \
        SM90(FILE, NAME),                                                                          \
            .m_max = INT32_MAX, .n_max = INT32_MAX, .k_max = INT32_MAX, .k_multiple = 256,         \
            .needs = NVS_NEEDS_ALL, .tile_m = (ROWS), .tile_n = (COLUMNS), .threads = (THREADS),   \
            .cluster = (CLUSTER), .wave_ns = (WAVE_NS), .a_box_rows = (ROWS),                      \
            .shared_bytes = (SHARED),                                                              \
            .when = #ROWS " x " #COLUMNS " tiles, k a multiple of 256; run on an H200"             \
    }

/* The same with B decoded once for all rows. */
#define SM90_TALL(NAME, ROWS, CLUSTER, WAVE_NS)                                                    \
    SM90_RING("tall", "m" #ROWS "n64_" NAME, ROWS, 64, 128 + 2 * (ROWS), CLUSTER, WAVE_NS,         \
              NVS_SM90_M##ROWS##N64_RING_SHARED)

/* Fits what was measured with m of 2048 to 28672 and k of 2048 to 8192; with k up to 2048. */
#define LINES_PAY_MK (24 << 20)
#define LINES_PAY_MK_2048 (19 << 20)

const struct nvs_kernel nvs_kernels[] = {
    SM90_ROWS_WAVE("m8", 8, 16, ONE_STAGE, NVS_SM90_M8_SHARED),
    SM90_ROWS_WAVE("m8n32", 8, 32, ONE_STAGE, NVS_SM90_M8N32_SHARED),
    SM90_ROWS_WAVE("m8_k8192", 8, 16, LINES_8192, NVS_SM90_M8_K8192_SHARED),
    SM90_ROWS_WAVE("m8n32_k4096", 8, 32, LINES_4096, NVS_SM90_M8N32_K4096_SHARED),
    SM90_ROWS_STREAM(8, 2048),
    SM90_ROWS_STREAM(8, 4096),
    SM90_ROWS_STREAM(8, 8192),
    SM90_ROWS_STREAM_LONG(8),
    SM90_ROWS("m8_long", 8, 16, LONG_K, NVS_SM90_M8_LONG_SHARED),
    SM90_ROWS_WAVE("m16", 16, 16, ONE_STAGE, NVS_SM90_M16_SHARED),
    SM90_ROWS_WAVE("m16n32", 16, 32, ONE_STAGE, NVS_SM90_M16N32_SHARED),
    SM90_ROWS_WAVE("m16_k8192", 16, 16, LINES_8192, NVS_SM90_M16_K8192_SHARED),
    SM90_ROWS_WAVE("m16n32_k4096", 16, 32, LINES_4096, NVS_SM90_M16N32_K4096_SHARED),
    SM90_ROWS_STREAM(16, 2048),
    SM90_ROWS_STREAM(16, 4096),
    SM90_ROWS_STREAM(16, 8192),
    SM90_ROWS_STREAM_LONG(16),
    SM90_ROWS("m16_long", 16, 16, LONG_K, NVS_SM90_M16_LONG_SHARED),
    SM90_CLUSTER("m64", 32, 32, 32, 0, NVS_SM90_M32N32_SHARED,
                 "up to 32 rows, k a multiple of 256 up to 2048; run on an H200"),
    SM90_ROWS("m32_long", 32, 16, LONG_K, NVS_SM90_M32_LONG_SHARED),
    SM90_WAVE(16, 8, "", ONE_STAGE, 1, NVS_SM90_M16N8_SHARED),
    SM90_WAVE(16, 8, "_k8192", LINES_8192, 1, NVS_SM90_M16N8_K8192_SHARED),
    SM90_WAVE(16, 8, "_long", WHOLE_SLABS, 1, NVS_SM90_M16N8_LONG_SHARED),
    SM90_WAVE(32, 8, "", ONE_STAGE, 1, NVS_SM90_M32N8_SHARED),
    SM90_WAVE(32, 8, "_k4096", LINES_4096, 1, NVS_SM90_M32N8_K4096_SHARED),
    SM90_WAVE(32, 8, "_long", WHOLE_SLABS, 1, NVS_SM90_M32N8_LONG_SHARED),
    SM90_WAVE(64, 8, "", ONE_STAGE, 1, NVS_SM90_M64N8_SHARED),
    SM90_WAVE(16, 16, "", ONE_STAGE, 1, NVS_SM90_M16_SHARED),
    SM90_WAVE(32, 16, "_two_k4096", LINES_4096, 2, NVS_SM90_M32N16_TWO_K4096_SHARED),
    SM90_WAVE(32, 16, "_two_k8192", LINES_8192, 2, NVS_SM90_M32N16_TWO_K8192_SHARED),
    SM90_WAVE(16, 16, "_long", WHOLE_SLABS, 1, NVS_SM90_M16_LONG_SHARED),
    SM90_WAVE(32, 16, "", ONE_STAGE, 1, NVS_SM90_M32N16_SHARED),
    SM90_WAVE(32, 16, "_k4096", LINES_4096, 1, NVS_SM90_M32N16_K4096_SHARED),
    SM90_WAVE(32, 16, "_long", WHOLE_SLABS, 1, NVS_SM90_M32_LONG_SHARED),
    SM90_WAVE(64, 16, "", ONE_STAGE, 1, NVS_SM90_M64N16_SHARED),
    SM90_STREAM(8, "_k1024", 1024, "", 0, NVS_SM90_STREAM8_K1024_SHARED),
    SM90_STREAM(8, "_k2048", 2048, "much of A, ", LINES_PAY_MK_2048, NVS_SM90_STREAM8_K2048_SHARED),
    SM90_STREAM(8, "_lines", 23296, "much of A, ", LINES_PAY_MK, NVS_SM90_STREAM8_SHARED),
    SM90_STREAM(8, "", 23296, "", 0, NVS_SM90_STREAM8_SHARED),
    SM90_STREAM(16, "_k1024", 1024, "", 0, NVS_SM90_STREAM16_K1024_SHARED),
    SM90_STREAM(16, "_k2048", 2048, "much of A, ", LINES_PAY_MK_2048,
                NVS_SM90_STREAM16_K2048_SHARED),
    SM90_STREAM(16, "_lines", 9728, "much of A, ", LINES_PAY_MK, NVS_SM90_STREAM16_SHARED),
    SM90_STREAM(16, "", 9728, "", 0, NVS_SM90_STREAM16_SHARED),
    SM90_CLUSTER("m64", 64, 32, INT32_MAX, 3000, NVS_SM90_M64N32_SHARED,
                 "64 x 32 tiles, k a multiple of 256 up to 2048; run on an H200"),
    SM90_CLUSTER("m64", 64, 64, INT32_MAX, 4050, NVS_SM90_M64N64_SHARED,
                 "64 x 64 tiles, k a multiple of 256 up to 2048; run on an H200"),
    SM90_CLUSTER("m128", 128, 64, INT32_MAX, 5000, NVS_SM90_M128N64_SHARED,
                 "128 x 64 tiles, k a multiple of 256 up to 2048; run on an H200"),
    SM90_RING("ring", "m64n32_ring", 64, 32, 640, 2, 3450, NVS_SM90_M64N32_RING_SHARED),
    SM90_RING("ring", "m64n64_ring", 64, 64, 640, 2, 4500, NVS_SM90_M64N64_RING_SHARED),
    SM90_TALL("ring", 128, 2, 6400),
    SM90_TALL("ring", 192, 2, 8000),
    SM90_TALL("ring", 256, 2, 9600),
    SM90_TALL("solo", 256, 1, 15400),
    {
        SM90("wgmma", "m64n32_long"),
        LONG_K,
        .m_max = INT32_MAX,
        .n_max = INT32_MAX,
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
        .n_max = INT32_MAX,
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

const struct nvs_kernel *
nvs_find_kernel(const char *name)
{
    for (int i = 0; i < nvs_kernel_count; i++) {
        if (strcmp(nvs_kernels[i].name, name) == 0) {
            return &nvs_kernels[i];
        }
    }
    return NULL;
}
