/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU path, and the readable meaning of every kernel: decode a tile of B, walk A's kept
 * values over it, sum, round once. See nvs_gemm_cpu() at the end for the shape of the loop.
 *
 * Everything before the rounding is exact. E2M1 values are integers of half units, so the eight
 * kept products of a block make an integer of at most 8 * 12 * 12 = 1152. Times the two scales,
 * integers of up to 229376 units of 2^-9 with 4 significant bits, that is below 2^45.8 and fits a
 * float. The doubles that hold the sums take 128 such blocks before they could leave the integers
 * (2^53), and their high part is carried away by then. A NaN scale is NaN from the first product,
 * and spreads to just the entries it should.
 *
 * B is decoded transposed, so that one instruction serves many columns of C: one kept value of A,
 * consecutive j. There are no intrinsics: the compiler vectorises the loop over j, which on x86-64
 * is compiled for three instruction sets, the best of which is taken when a call runs.
 */
#include "gemm_cpu.h"

#include "cpu_round.h"
#include "cpu_threads.h"
#include "nvfp4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDE = 64,          /* rows of B (columns of C) per tile */
    NARROW = 16,        /* the same for the last few, or where there are no more */
    MAX_ROWS = 256,     /* rows of A per tile: so many share one decoded tile of B */
    MIN_ROWS = 16,      /* but no fewer, when tiles are cut smaller to occupy all threads */
    CHUNK_BLOCKS = 8,   /* blocks of K decoded at a time: 16 KiB, for the first-level cache */
    CARRY_BLOCKS = 128, /* blocks that a sum may take between two carries */
    KEPT = 2 * NVS_GROUPS_PER_BLOCK, /* values of A per block */
};

#define CHUNK (CHUNK_BLOCKS * NVS_BLOCK)

/* What each byte means, in integer units held as the types that the loops want. */
struct tables {
    int16_t pair[256][2]; /* two E2M1 codes, in halves */
    int position[256][2]; /* metadata */
    float scale[256];     /* UE4M3, in ulps; or NaN */
};

/* CHUNK columns of B for `width` consecutive j, transposed: element [column][j] at
 * column * width + j. Rows beyond n hold zeros. */
struct tile {
    int16_t value[CHUNK * WIDE];
    float scale[CHUNK_BLOCKS * WIDE];
};

struct scratch {
    struct tile b;
    double low[MAX_ROWS * WIDE]; /* the sums of a tile of C, [row][j], as struct nvs_sum */
    double high[MAX_ROWS * WIDE];
};

struct job;
typedef void multiply_function(const struct job *job, int64_t i0, int rows, int64_t block0,
                               int blocks, int width, struct scratch *scratch);

struct job {
    const struct nvs_gemm_args *args;
    struct nvs_alpha alpha;
    multiply_function *multiply;
    int rows; /* of A, per tile of C */
    int64_t tiles_n;
    struct scratch *scratch; /* one per thread */
    struct tables tables;
};

static void
fill_tables(struct tables *tables)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        tables->pair[byte][0] = (int16_t)nvs_e2m1_halves(byte & 15u);
        tables->pair[byte][1] = (int16_t)nvs_e2m1_halves(byte >> 4);
        tables->position[byte][0] = (int)nvs_meta_position(byte, 0);
        tables->position[byte][1] = (int)nvs_meta_position(byte, 1);
        tables->scale[byte] = nvs_ue4m3_is_nan(byte) ? NAN : (float)nvs_ue4m3_ulps(byte);
    }
}

/* Decodes rows [j0, j0 + columns) of B, blocks [block0, block0 + blocks); the rest of the tile's
 * width stays as it was. */
static void
decode_b(const struct job *job, int64_t j0, int columns, int width, int64_t block0, int blocks,
         struct tile *tile)
{
    const struct nvs_gemm_args *args = job->args;
    for (int j = 0; j < columns; j++) {
        const uint8_t *fp4 = args->b_fp4 + (j0 + j) * args->b_fp4_ld + block0 * (NVS_BLOCK / 2);
        const uint8_t *scale = args->b_scale + (j0 + j) * args->b_scale_ld + block0;
        for (int c = 0; c < blocks * NVS_BLOCK; c += 2) {
            const int16_t *pair = job->tables.pair[fp4[c / 2]];
            tile->value[c * width + j] = pair[0];
            tile->value[(c + 1) * width + j] = pair[1];
        }
        for (int block = 0; block < blocks; block++) {
            tile->scale[block * width + j] = job->tables.scale[scale[block]];
        }
    }
}

/* sum[j] += one row of A times the tile. vals, meta and scale stand at the tile's first block.
 * Inlined with a constant width, so that the loop over j has a known length. */
static inline __attribute__((always_inline)) void
multiply_row(const struct tables *tables, const uint8_t *vals, const uint8_t *meta,
             const uint8_t *scale, const struct tile *b, int blocks, int width,
             double *restrict sum)
{
    for (int block = 0; block < blocks; block++) {
        const float *scale_b = b->scale + block * width;
        float scale_a = tables->scale[scale[block]];
        const int16_t *column[KEPT]; /* of B, where A's kept values stand */
        int16_t value[KEPT];
        for (int g = 0; g < NVS_GROUPS_PER_BLOCK; g++) {
            int group = block * NVS_GROUPS_PER_BLOCK + g;
            for (int slot = 0; slot < 2; slot++) {
                int position = tables->position[meta[group]][slot];
                value[2 * g + slot] = tables->pair[vals[group]][slot];
                column[2 * g + slot] = b->value + (group * NVS_GROUP + position) * width;
            }
        }
        for (int j = 0; j < width; j++) {
            int16_t dot = (int16_t)(value[0] * column[0][j] + value[1] * column[1][j] +
                                    value[2] * column[2][j] + value[3] * column[3][j] +
                                    value[4] * column[4][j] + value[5] * column[5][j] +
                                    value[6] * column[6][j] + value[7] * column[7][j]);
            sum[j] += (float)dot * (scale_b[j] * scale_a); /* 11 + 4 + 4 bits: exact */
        }
    }
}

/* Adds rows [i0, i0 + rows) of A times the decoded tile of B to the sums. */
static inline __attribute__((always_inline)) void
multiply_rows(const struct job *job, int64_t i0, int rows, int64_t block0, int blocks, int width,
              struct scratch *scratch)
{
    const struct nvs_gemm_args *args = job->args;
    for (int i = 0; i < rows; i++) {
        int64_t group0 = block0 * NVS_GROUPS_PER_BLOCK;
        const uint8_t *vals = args->a_vals + (i0 + i) * args->a_vals_ld + group0;
        const uint8_t *meta = args->a_meta + (i0 + i) * args->a_meta_ld + group0;
        const uint8_t *scale = args->a_scale + (i0 + i) * args->a_scale_ld + block0;
        double *sum = scratch->low + i * width;
        if (width == WIDE) {
            multiply_row(&job->tables, vals, meta, scale, &scratch->b, blocks, WIDE, sum);
        }
        else {
            multiply_row(&job->tables, vals, meta, scale, &scratch->b, blocks, NARROW, sum);
        }
    }
}

#define DEFINE_MULTIPLY(name, target)                                                              \
    target static void name(const struct job *job, int64_t i0, int rows, int64_t block0,           \
                            int blocks, int width, struct scratch *scratch)                        \
    {                                                                                              \
        multiply_rows(job, i0, rows, block0, blocks, width, scratch);                              \
    }

DEFINE_MULTIPLY(multiply_baseline, )
#if defined(__x86_64__)
DEFINE_MULTIPLY(multiply_avx2, __attribute__((target("avx2"))))
DEFINE_MULTIPLY(multiply_avx512, __attribute__((target("avx512bw,avx512vl"))))
#endif

static multiply_function *
select_multiply(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return multiply_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return multiply_avx2;
    }
#endif
    return multiply_baseline;
}

/* Moves whole multiples of 2^NVS_CARRY_BITS from low to high. NaN stays NaN in low. */
static void
carry(double *restrict low, double *restrict high, int count)
{
    const double carry_unit = (double)(INT64_C(1) << NVS_CARRY_BITS);
    const double shift = 0x1.8p52; /* a double this large has no fraction bits */
    for (int i = 0; i < count; i++) {
        double whole = (low[i] / carry_unit + shift) - shift;
        low[i] -= whole * carry_unit;
        high[i] += whole;
    }
}

static int64_t
least(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static int64_t
count_tiles(int64_t extent, int64_t size)
{
    return extent / size + (extent % size != 0);
}

/* One tile of C: rows of A by WIDE or NARROW rows of B. */
static void
compute_tile(void *context, int worker, int64_t index)
{
    const struct job *job = context;
    const struct nvs_gemm_args *args = job->args;
    struct scratch *scratch = &job->scratch[worker];
    int64_t i0 = index / job->tiles_n * job->rows;
    int64_t j0 = index % job->tiles_n * WIDE;
    int rows = (int)least(args->m - i0, job->rows);
    int columns = (int)least(args->n - j0, WIDE);
    int width = columns <= NARROW ? NARROW : WIDE;
    int64_t blocks = args->k / NVS_BLOCK;

    memset(scratch->low, 0, (size_t)(rows * width) * sizeof *scratch->low);
    memset(scratch->high, 0, (size_t)(rows * width) * sizeof *scratch->high);
    if (columns < width) {
        memset(&scratch->b, 0, sizeof scratch->b);
    }
    for (int64_t block = 0; block < blocks; block += CHUNK_BLOCKS) {
        int count = (int)least(blocks - block, CHUNK_BLOCKS);
        if (block > 0 && block % CARRY_BLOCKS == 0) {
            carry(scratch->low, scratch->high, rows * width);
        }
        decode_b(job, j0, columns, width, block, count, &scratch->b);
        job->multiply(job, i0, rows, block, count, width, scratch);
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            int64_t offset = (i0 + i) * args->out_stride_m + (j0 + j) * args->out_stride_n;
            struct nvs_sum sum = {scratch->high[i * width + j], scratch->low[i * width + j]};
            nvs_store_rounded(args->out, offset, args->out_dtype, job->alpha, sum);
        }
    }
}

/* How many threads the problem can feed. The unit of work, one block of one C entry or one decoded
 * value of B, takes some 0.3 ns with AVX-512 and thrice that without; a thread, 20 us to start. */
static int
limit_threads(const struct nvs_gemm_args *args, int threads)
{
    double entries = (double)args->m * (double)(args->n > 32 ? args->n : 32); /* half a tile */
    double units = entries * (double)(args->k / NVS_BLOCK) + (double)args->n * (double)args->k;
    double useful = units / (1 << 19);
    int64_t tiles = count_tiles(args->m, MIN_ROWS) * count_tiles(args->n, WIDE);
    if (useful < 2 || tiles < 2) {
        return 1;
    }
    threads = threads <= 0 ? nvs_cpu_threads() : threads;
    threads = (int)least(least(threads, NVS_MAX_THREADS), tiles);
    return useful < threads ? (int)useful : threads;
}

int
nvs_gemm_cpu(const struct nvs_gemm_args *args, int threads)
{
    struct job job = {.args = args, .multiply = select_multiply(), .rows = MAX_ROWS};
    float alpha = args->alpha;

    if (args->m == 0 || args->n == 0) {
        return 0;
    }
    threads = limit_threads(args, threads);
    job.scratch = aligned_alloc(64, (size_t)threads * sizeof *job.scratch);
    if (job.scratch == NULL) {
        return -1;
    }
    if (args->alpha_ptr != NULL) {
        memcpy(&alpha, args->alpha_ptr, sizeof alpha);
    }
    job.alpha = nvs_split_alpha(args->k == 0 ? 0.0f : alpha); /* no columns: zeros */
    job.tiles_n = count_tiles(args->n, WIDE);
    while (job.rows > MIN_ROWS && count_tiles(args->m, job.rows) * job.tiles_n < 4 * threads) {
        job.rows /= 2;
    }
    fill_tables(&job.tables);
    nvs_parallel(threads, count_tiles(args->m, job.rows) * job.tiles_n, compute_tile, &job);
    free(job.scratch);
    return 0;
}
