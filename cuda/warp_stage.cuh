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
static constexpr int STAGE_K = 2048, WARP_K = STAGE_K / WARPS;
static constexpr int PARTS = 2, PART_K = WARP_K / PARTS, LANE_K = PART_K / 4;
static constexpr int LANE_BLOCKS = LANE_K / 16;
static_assert(PARTS == 2 && LANE_BLOCKS == 2, "what place_lane() and read_a() write out");

/* Row pitches, whole lines, and the units of swizzle() that spread what a warp reads at a time over
 * all banks: four rows of 32 bytes of an operand, eight of 8 bytes of scales. */
static constexpr int B_PITCH = STAGE_K / 2, A_PITCH = STAGE_K / 4, UNIT = 32;
static constexpr int SCALE_PITCH = STAGE_K / 16, SCALE_UNIT = 16;

/* A tile's size, and which operand all blocks share: B if FEW_COLUMNS, else A. */
template <int ROW_GROUPS_, int N_TILES_, bool FEW_COLUMNS_>
struct shape { /* and the byte offsets of one stage's parts in shared memory */
    static constexpr int ROW_GROUPS = ROW_GROUPS_, N_TILES = N_TILES_;
    static constexpr bool FEW_COLUMNS = FEW_COLUMNS_;
    static constexpr int ROWS = 8 * ROW_GROUPS, BLOCK_N = 8 * N_TILES;
    static constexpr int M_TILES = (ROW_GROUPS + 1) / 2;
    static constexpr int B = 0;
    static constexpr int VALS = B + BLOCK_N * B_PITCH;
    static constexpr int META = VALS + ROWS * A_PITCH;
    static constexpr int B_SCALE = META + ROWS * A_PITCH;
    static constexpr int A_SCALE = B_SCALE + BLOCK_N * SCALE_PITCH;
    static constexpr int BYTES = A_SCALE + ROWS * SCALE_PITCH;

    /* A warp's sums: bytes of a row and of all. Two words between rows keep the rows of a column
     * in banks of their own. */
    static constexpr int SUM_ROW = (BLOCK_N + 2) * 4, WARP_SUMS = ROWS * SUM_ROW;

    /* Stages, table, sums. Dynamic shared memory starts 1 KB into the block's own on compute
     * capability 9.0, so the table stands at 64 KB. */
    static constexpr int TABLE = TABLE_BYTES - 1024, SUMS = TABLE + TABLE_BYTES;
    static_assert(BYTES <= TABLE, "a stage fits before the table");
    static_assert(BYTES % 128 == 0 && WARPS * WARP_SUMS % 128 == 0, "stages begin with a line");
};

/* COLUMNS of K that COPIERS threads copy, of which this is number `thread`: from k0 on in the
 * operands, from `at` on in the stage. */
template <int COPIERS, int COLUMNS>
struct k_span {
    uint32_t k0, at, thread;
};

NVS_DEVICE k_span<THREADS, STAGE_K>
whole_stage(uint32_t k0)
{
    return {k0, 0, threadIdx.x};
}

/* What the warp multiplies, of the only stage. */
NVS_DEVICE k_span<32, WARP_K>
own_columns(void)
{
    const uint32_t first = threadIdx.x / 32 * WARP_K;
    return {first, first, threadIdx.x % 32};
}

template <class S, int COPIERS, int COLUMNS>
NVS_DEVICE void
copy_a(const nvs_gemm_args &args, uint32_t shared, uint32_t row0,
       const k_span<COPIERS, COLUMNS> &span)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m;
    copy_rows<COPIERS, S::ROWS, COLUMNS / 64, A_PITCH, UNIT, 16>(
        shared + S::VALS, span.at / 4, args.a_vals, (uint32_t)args.a_vals_ld, row0, m, span.k0 / 4,
        k / 4, span.thread);
    copy_rows<COPIERS, S::ROWS, COLUMNS / 64, A_PITCH, UNIT, 16>(
        shared + S::META, span.at / 4, args.a_meta, (uint32_t)args.a_meta_ld, row0, m, span.k0 / 4,
        k / 4, span.thread);
}

template <class S, int COPIERS, int COLUMNS>
NVS_DEVICE void
copy_b(const nvs_gemm_args &args, uint32_t shared, uint32_t column0,
       const k_span<COPIERS, COLUMNS> &span)
{
    copy_rows<COPIERS, S::BLOCK_N, COLUMNS / 32, B_PITCH, UNIT, 16>(
        shared + S::B, span.at / 2, args.b_fp4, (uint32_t)args.b_fp4_ld, column0, (uint32_t)args.n,
        span.k0 / 2, (uint32_t)args.k / 2, span.thread);
}

/* Of a whole stage, both operands': by CHUNK bytes, 16 or 4. */
template <class S, int CHUNK>
NVS_DEVICE void
copy_scales(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
            uint32_t k0)
{
    constexpr int CHUNKS = SCALE_PITCH / CHUNK;
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows<THREADS, S::ROWS, CHUNKS, SCALE_PITCH, SCALE_UNIT, CHUNK>(
        shared + S::A_SCALE, 0, args.a_scale, (uint32_t)args.a_scale_ld, row0, m, k0 / 16, k / 16);
    /* By 16 bytes few threads have a chunk of A's: others take B's. */
    const uint32_t other = threadIdx.x ^ THREADS / 2;
    copy_rows<THREADS, S::BLOCK_N, CHUNKS, SCALE_PITCH, SCALE_UNIT, CHUNK>(
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
        copy_a<S>(args, shared, row0, whole_stage(k0));
    copy_b<S>(args, shared, column0, whole_stage(k0));
    if constexpr (!S::FEW_COLUMNS)
        copy_a<S>(args, shared, row0, whole_stage(k0));
    copy_scales<S, SCALE_CHUNK>(args, shared, row0, column0, k0);
}

template <class S>
NVS_DEVICE void
copy_stage_bytewise(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
                    uint32_t k0)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows_bytewise<THREADS, S::BLOCK_N, STAGE_K / 2, B_PITCH, UNIT>(
        shared + S::B, args.b_fp4, args.b_fp4_ld, column0, n, k0 / 2, k / 2);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH, UNIT>(
        shared + S::VALS, args.a_vals, args.a_vals_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH, UNIT>(
        shared + S::META, args.a_meta, args.a_meta_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::BLOCK_N, STAGE_K / 16, SCALE_PITCH, SCALE_UNIT>(
        shared + S::B_SCALE, args.b_scale, args.b_scale_ld, column0, n, k0 / 16, k / 16);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 16, SCALE_PITCH, SCALE_UNIT>(
        shared + S::A_SCALE, args.a_scale, args.a_scale_ld, row0, m, k0 / 16, k / 16);
}
