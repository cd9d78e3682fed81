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
static constexpr int STAGE_K = 2048, WARP_K = STAGE_K / WARPS;
static constexpr int PARTS = 2, PART_K = WARP_K / PARTS, LANE_K = PART_K / 4;
static constexpr int LANE_BLOCKS = LANE_K / 16;
static_assert(PARTS == 2 && LANE_BLOCKS == 2, "what read_a() and multiply() write out");

/* Row pitches that spread what a warp reads at a time over all banks. */
static constexpr int B_PITCH = STAGE_K / 2 + 32;
static constexpr int A_PITCH = STAGE_K / 4 + 32;
static constexpr int SCALE_PITCH = STAGE_K / 16 + 16;

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
};

/* COLUMNS of K from k0 on to the stage's columns from `at` on, by COPIERS threads.
 *
 * The operand that all blocks share comes last, each block starting at another row of it: its
 * lines keep a few slices of L2 busy, and what an SM asks for behind them waits as well. */
template <class S, int COPIERS, int COLUMNS, int SCALE_CHUNK>
NVS_DEVICE void
copy_columns(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
             uint32_t k0, uint32_t at, uint32_t thread)
{
    constexpr int SCALES = COLUMNS / 16 / SCALE_CHUNK;
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    const uint32_t a_turn = S::FEW_COLUMNS ? 0 : blockIdx.x;
    const uint32_t b_turn = S::FEW_COLUMNS ? blockIdx.y : 0;
    const auto copy_b = [&] {
        copy_rows<COPIERS, S::BLOCK_N, COLUMNS / 32, B_PITCH, 16>(
            shared + S::B + at / 2, args.b_fp4, (uint32_t)args.b_fp4_ld, column0, n, k0 / 2, k / 2,
            thread, b_turn);
    };
    const auto copy_b_scales = [&] {
        copy_rows<COPIERS, S::BLOCK_N, SCALES, SCALE_PITCH, SCALE_CHUNK>(
            shared + S::B_SCALE + at / 16, args.b_scale, (uint32_t)args.b_scale_ld, column0, n,
            k0 / 16, k / 16, thread);
    };
    if (!S::FEW_COLUMNS)
        copy_b();
    copy_rows<COPIERS, S::ROWS, COLUMNS / 64, A_PITCH, 16>(shared + S::VALS + at / 4, args.a_vals,
                                                           (uint32_t)args.a_vals_ld, row0, m,
                                                           k0 / 4, k / 4, thread, a_turn);
    copy_rows<COPIERS, S::ROWS, COLUMNS / 64, A_PITCH, 16>(shared + S::META + at / 4, args.a_meta,
                                                           (uint32_t)args.a_meta_ld, row0, m,
                                                           k0 / 4, k / 4, thread, a_turn);
    if (!S::FEW_COLUMNS)
        copy_b_scales();
    copy_rows<COPIERS, S::ROWS, SCALES, SCALE_PITCH, SCALE_CHUNK>(
        shared + S::A_SCALE + at / 16, args.a_scale, (uint32_t)args.a_scale_ld, row0, m, k0 / 16,
        k / 16, thread);
    if (S::FEW_COLUMNS) {
        copy_b();
        copy_b_scales();
    }
}

template <class S>
NVS_DEVICE void
copy_stage_bytewise(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
                    uint32_t k0)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows_bytewise<THREADS, S::BLOCK_N, STAGE_K / 2, B_PITCH>(
        shared + S::B, args.b_fp4, args.b_fp4_ld, column0, n, k0 / 2, k / 2);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH>(
        shared + S::VALS, args.a_vals, args.a_vals_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH>(
        shared + S::META, args.a_meta, args.a_meta_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::BLOCK_N, STAGE_K / 16, SCALE_PITCH>(
        shared + S::B_SCALE, args.b_scale, args.b_scale_ld, column0, n, k0 / 16, k / 16);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 16, SCALE_PITCH>(
        shared + S::A_SCALE, args.a_scale, args.a_scale_ld, row0, m, k0 / 16, k / 16);
}
