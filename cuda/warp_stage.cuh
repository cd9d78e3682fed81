/* SPDX-License-Identifier: Apache-2.0
 *
 * For gemm_sm90_warp.cu: how a stage of K and what else a block needs lie in shared memory, and how
 * the stage gets there.
 */
#pragma once

#include "decode.cuh"
#include "gemm_args.h"
#include "stage.cuh"

static constexpr int WARPS = 8, THREADS = 32 * WARPS;
static_assert(THREADS == 256, "each thread writes an entry of the table");
static constexpr int PART_K = 128, LANE_K = PART_K / 4, LANE_BLOCKS = LANE_K / 16;
static_assert(LANE_BLOCKS == 2, "what read_tile() writes out");

static constexpr int SPAN_K = 2048; /* columns of K that all threads copy at a time */

/* The units of swizzle() that spread what a warp reads at a time over all banks: four rows of 32
 * bytes of an operand, eight of 8 bytes of scales. */
static constexpr int UNIT = 32, SCALE_UNIT = 16;

/* A tile's size, which operand all blocks share: B if FEW_COLUMNS, else A; columns of K in a stage. */
template <int ROW_GROUPS_, int N_TILES_, bool FEW_COLUMNS_, int STAGE_K_>
struct shape { /* and the byte offsets of one stage's parts in shared memory */
    static constexpr int ROW_GROUPS = ROW_GROUPS_, N_TILES = N_TILES_;
    static constexpr bool FEW_COLUMNS = FEW_COLUMNS_;
    static constexpr int ROWS = 8 * ROW_GROUPS, BLOCK_N = 8 * N_TILES;
    static constexpr int M_TILES = (ROW_GROUPS + 1) / 2;
    static constexpr int STAGE_K = STAGE_K_, WARP_K = STAGE_K / WARPS, PARTS = WARP_K / PART_K;

    /* The warps take turns along K, LINE_K columns each: a line of A's values, if that is the operand
     * of which each copies its own and there is so much, or of B's codes. */
    static constexpr int LINE_K = FEW_COLUMNS && WARP_K >= 512 ? 512 : 256,
                         ROUND_K = WARPS * LINE_K;
    static constexpr int ROUNDS = STAGE_K / ROUND_K, LINE_PARTS = LINE_K / PART_K;
    static constexpr int OWN_COPIES = ROUNDS * (FEW_COLUMNS ? M_TILES : 1);

    static constexpr int B_PITCH = STAGE_K / 2, A_PITCH = STAGE_K / 4, SCALE_PITCH = STAGE_K / 16;
    static constexpr int B = 0;
    static constexpr int VALS = B + BLOCK_N * B_PITCH, META_BYTES = ROWS * A_PITCH;
    static constexpr int B_SCALE = VALS + ROWS * A_PITCH;
    static constexpr int A_SCALE = B_SCALE + BLOCK_N * SCALE_PITCH;
    static constexpr int FRONT = A_SCALE + ROWS * SCALE_PITCH, BYTES = FRONT + META_BYTES;

    /* A warp's sums: bytes of a row and of all. Two words between rows keep the rows of a column
     * in banks of their own. */
    static constexpr int SUM_ROW = (BLOCK_N + 2) * 4, WARP_SUMS = ROWS * SUM_ROW;

    /* Stages, table, sums; or, if a stage does not fit before the table, all but its metadata, sums,
     * table, metadata. Dynamic shared memory starts 1 KB into the block's own on compute capability
     * 9.0, so the table stands at 64 or 128 KB. */
    static constexpr int TABLE = (BYTES < TABLE_BYTES ? 1 : 2) * TABLE_BYTES - 1024;
    static constexpr bool FITS = BYTES <= TABLE;
    static constexpr int META = FITS ? FRONT : TABLE + TABLE_BYTES;
    static constexpr int SUMS = FITS ? TABLE + TABLE_BYTES : FRONT;
    static_assert(FITS || SUMS + WARPS * WARP_SUMS <= TABLE, "the rest fits before the table");
    static_assert(BYTES % 128 == 0 && WARPS * WARP_SUMS % 128 == 0, "stages begin with a line");
};

/* COLUMNS of K that COPIERS threads copy, of which this is number `thread`: from k0 on in the
 * operands, from `at` on in the stage. */
template <int COPIERS, int COLUMNS>
struct k_span {
    uint32_t k0, at, thread;
};

/* ROWS of A, from row `at_row` of the tile on. */
template <class S, int ROWS, int COPIERS, int COLUMNS>
NVS_DEVICE void
copy_a(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, int at_row,
       const k_span<COPIERS, COLUMNS> &span)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m;
    static_assert(swizzle<S::A_PITCH, UNIT>(8) == 0, "rows from any multiple of 8 on");
    shared += at_row * S::A_PITCH;
    copy_rows<COPIERS, ROWS, COLUMNS / 64, S::A_PITCH, UNIT, 16>(
        shared + S::VALS, span.at / 4, args.a_vals, (uint32_t)args.a_vals_ld, row0 + at_row, m,
        span.k0 / 4, k / 4, span.thread);
    copy_rows<COPIERS, ROWS, COLUMNS / 64, S::A_PITCH, UNIT, 16>(
        shared + S::META, span.at / 4, args.a_meta, (uint32_t)args.a_meta_ld, row0 + at_row, m,
        span.k0 / 4, k / 4, span.thread);
}

template <class S, int COPIERS, int COLUMNS>
NVS_DEVICE void
copy_b(const nvs_gemm_args &args, uint32_t shared, uint32_t column0,
       const k_span<COPIERS, COLUMNS> &span)
{
    copy_rows<COPIERS, S::BLOCK_N, COLUMNS / 32, S::B_PITCH, UNIT, 16>(
        shared + S::B, span.at / 2, args.b_fp4, (uint32_t)args.b_fp4_ld, column0, (uint32_t)args.n,
        span.k0 / 2, (uint32_t)args.k / 2, span.thread);
}

/* copy(span) for what there is of the stage from k0 on, by all threads. */
template <class S, class COPY>
NVS_DEVICE void
for_each_span(const nvs_gemm_args &args, uint32_t k0, const COPY &copy)
{
#pragma unroll
    for (uint32_t at = 0; at < S::STAGE_K; at += SPAN_K)
        if (at == 0 || k0 + at < (uint32_t)args.k)
            copy(k_span<THREADS, SPAN_K>{k0 + at, at, threadIdx.x});
}

template <class S>
NVS_DEVICE void
copy_a_stage(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t k0)
{
    for_each_span<S>(args, k0,
                     [&](const auto &span) { copy_a<S, S::ROWS>(args, shared, row0, 0, span); });
}

template <class S>
NVS_DEVICE void
copy_b_stage(const nvs_gemm_args &args, uint32_t shared, uint32_t column0, uint32_t k0)
{
    for_each_span<S>(args, k0, [&](const auto &span) { copy_b<S>(args, shared, column0, span); });
}

/* The warp's columns in a round of the only stage. */
template <class S>
NVS_DEVICE k_span<32, S::LINE_K>
own_columns(int round)
{
    const uint32_t first = round * S::ROUND_K + threadIdx.x / 32 * S::LINE_K;
    return {first, first, threadIdx.x % 32};
}

/* Rounds in which there are columns for the warp, but at least one. */
template <class S>
NVS_DEVICE int
count_own_rounds(uint32_t k)
{
    int rounds = 1;
#pragma unroll
    for (int i = 1; i < S::ROUNDS; ++i)
        rounds += own_columns<S>(i).k0 < k;
    return rounds;
}

/* All of the warp's columns, a group of copies for as much as is multiplied together: of A a round of
 * a tile's rows, of B a round. */
template <class S>
NVS_DEVICE void
copy_own_a(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, int rounds)
{
    constexpr int ROWS = S::ROW_GROUPS == 1 ? 8 : 16;
    static_assert(S::M_TILES * ROWS == S::ROWS, "whole tiles");
#pragma unroll
    for (int i = 0; i < S::ROUNDS; ++i)
#pragma unroll
        for (int t = 0; t < S::M_TILES; ++t) {
            if (i < rounds)
                copy_a<S, ROWS>(args, shared, row0, t * ROWS, own_columns<S>(i));
            cp_async_commit_group();
        }
}

template <class S>
NVS_DEVICE void
copy_own_b(const nvs_gemm_args &args, uint32_t shared, uint32_t column0, int rounds)
{
#pragma unroll
    for (int i = 0; i < S::ROUNDS; ++i) {
        if (i < rounds)
            copy_b<S>(args, shared, column0, own_columns<S>(i));
        cp_async_commit_group();
    }
}

/* Of a whole stage, both operands': by CHUNK bytes, 16 or 4. */
template <class S, int CHUNK>
NVS_DEVICE void
copy_scales(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
            uint32_t k0)
{
    constexpr int CHUNKS = S::SCALE_PITCH / CHUNK;
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows<THREADS, S::ROWS, CHUNKS, S::SCALE_PITCH, SCALE_UNIT, CHUNK>(
        shared + S::A_SCALE, 0, args.a_scale, (uint32_t)args.a_scale_ld, row0, m, k0 / 16, k / 16);
    /* By 16 bytes few threads have a chunk of A's: others take B's. */
    const uint32_t other = threadIdx.x ^ THREADS / 2;
    copy_rows<THREADS, S::BLOCK_N, CHUNKS, S::SCALE_PITCH, SCALE_UNIT, CHUNK>(
        shared + S::B_SCALE, 0, args.b_scale, (uint32_t)args.b_scale_ld, column0, n, k0 / 16,
        k / 16, other);
}

/* The shared operand after the other one: its lines keep a few slices of L2 busy, and what an SM
 * asks for behind them waits as well. */
template <class S, int SCALE_CHUNK>
NVS_DEVICE void
copy_stage(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0, uint32_t k0)
{
    if constexpr (S::FEW_COLUMNS)
        copy_a_stage<S>(args, shared, row0, k0);
    copy_b_stage<S>(args, shared, column0, k0);
    if constexpr (!S::FEW_COLUMNS)
        copy_a_stage<S>(args, shared, row0, k0);
    copy_scales<S, SCALE_CHUNK>(args, shared, row0, column0, k0);
}

template <class S>
NVS_DEVICE void
copy_stage_bytewise(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
                    uint32_t k0)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows_bytewise<THREADS, S::BLOCK_N, S::STAGE_K / 2, S::B_PITCH, UNIT>(
        shared + S::B, args.b_fp4, args.b_fp4_ld, column0, n, k0 / 2, k / 2);
    copy_rows_bytewise<THREADS, S::ROWS, S::STAGE_K / 4, S::A_PITCH, UNIT>(
        shared + S::VALS, args.a_vals, args.a_vals_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::ROWS, S::STAGE_K / 4, S::A_PITCH, UNIT>(
        shared + S::META, args.a_meta, args.a_meta_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::BLOCK_N, S::STAGE_K / 16, S::SCALE_PITCH, SCALE_UNIT>(
        shared + S::B_SCALE, args.b_scale, args.b_scale_ld, column0, n, k0 / 16, k / 16);
    copy_rows_bytewise<THREADS, S::ROWS, S::STAGE_K / 16, S::SCALE_PITCH, SCALE_UNIT>(
        shared + S::A_SCALE, args.a_scale, args.a_scale_ld, row0, m, k0 / 16, k / 16);
}
