/* SPDX-License-Identifier: Apache-2.0
 *
 * The operands of kernels whose two blocks take turns along K, a stage of 1024 columns each: a ring
 * of A, whose slots a warp of its own fills by TMA as they come free, and each thread's walk along
 * its share of B. A shape S says the tile's rows (BM), how many SLOTS there are, where the first one
 * is (A), and what the blocks exchange (EXCHANGE_BYTES).
 */
#pragma once

#include "cluster_k.cuh"

/* A worker needs more than the 96 registers that so many threads start with, so the warp that
 * issues TMA stands in a warpgroup of its own, as only whole ones give registers away. */
static constexpr int WORKERS = 512, GROUP_THREADS = WORKERS + PART_THREADS;
static constexpr int WORKER_REGISTERS = 112, ISSUER_REGISTERS = 24;

/* A slot's mbarriers: two for the halves of A, then one for all warps that have read it. */
static constexpr int EMPTY = 16, SLOT_BARRIERS = 24;

/* Byte offset of the mbarrier behind those of the slots: what the other block sends. */
template <class S>
static constexpr int EXCHANGE = SLOT_BARRIERS *S::SLOTS;

/* Stages of block `rank`: 0, 2, 4 and on, or 1, 3, 5. */
NVS_DEVICE uint32_t
stages_of(uint32_t rank, uint32_t k)
{
    return ((k + BLOCK_K - 1) / BLOCK_K + 1 - rank) / 2;
}

/* The warpgroup of the warp that issues TMA: it hands its registers back. */
template <class S>
NVS_DEVICE void
fill_ring(const nvs_gemm_args &args, const nvs_a_maps &maps, const block_place &block,
          uint32_t barriers)
{
    setmaxnreg_dec<ISSUER_REGISTERS>();
    if (threadIdx.x >= WORKERS + 32)
        return;
    const bool issues = threadIdx.x % 32 == 0;
    const uint32_t exchange = barriers + EXCHANGE<S>;
    const uint32_t stages = stages_of(block.rank, (uint32_t)args.k);
    uint32_t k0 = block.k0;
    if (issues) {
#pragma unroll
        for (int slot = 0; slot < S::SLOTS; ++slot) {
            mbarrier_init(barriers + slot * SLOT_BARRIERS, 1);
            mbarrier_init(barriers + slot * SLOT_BARRIERS + 8, 1);
            mbarrier_init(barriers + slot * SLOT_BARRIERS + EMPTY, WORKERS / 32);
        }
        mbarrier_init(exchange, 1);
        fence_mbarrier_init_cluster();
        mbarrier_arrive_expect_tx(exchange, S::EXCHANGE_BYTES);
    }
    announce_barriers<WORKERS>();
    if (!issues)
        return;
#pragma unroll 1
    for (uint32_t stage = 0; stage < stages; ++stage, k0 += 2 * BLOCK_K) {
        const uint32_t slot = stage % S::SLOTS, round = stage / S::SLOTS;
        const uint32_t slot_barriers = barriers + slot * SLOT_BARRIERS;
        if (round > 0)
            mbarrier_wait(slot_barriers + EMPTY, (round - 1) & 1);
        fetch_a_stage<S::BM>(maps, block.shared + S::A + slot * a_tile<S::BM>::BYTES, slot_barriers,
                             block.row0, k0);
    }
}

/* Where a thread's share of B stands in global memory on its way along K: its chunk of a superslab
 * and the scales of that segment, in two columns of each unit. RUN: see column_at(). */
template <int RUN>
struct b_walk {
    const uint8_t *codes, *scale; /* in column 0 */
    uint32_t column, k;           /* the first column; where it is */
};

template <int RUN>
NVS_DEVICE b_walk<RUN>
start_walk(const nvs_gemm_args &args, uint32_t column0, uint32_t k, const b_place &at)
{
    return {args.b_fp4 + k / 2 + at.chunk * 16, args.b_scale + k / 16 + at.chunk / 2 * 4,
            column0 + column_at<RUN>(first_b_row() + at.row), k};
}

/* A superslab; the next one is `columns` on. Columns of C past the last read the last one; past K
 * (whole superslabs) nothing is read and all is zeros. */
template <int BN, int RUN>
NVS_DEVICE void
load_next_b(const nvs_gemm_args &args, uint32_t columns, b_walk<RUN> &walk, b_share<BN> &b)
{
    const bool inside = walk.k < (uint32_t)args.k;
#pragma unroll
    for (int u = 0; u < b.UNITS; ++u)
#pragma unroll
        for (int r = 0; r < 2; ++r) { /* four rows of a tile on are 2 * RUN columns on */
            const uint64_t column = min(walk.column + 32 * u + 2 * RUN * r, (uint32_t)args.n - 1);
            b.codes[u][r] = ld_global_nc_v4(walk.codes + column * (uint32_t)args.b_fp4_ld, inside);
            b.scale[u][r] = ld_global_nc_u32(walk.scale + column * (uint32_t)args.b_scale_ld,
                                             inside);
        }
    walk.codes += columns / 2;
    walk.scale += columns / 16;
    walk.k += columns;
    keep_order();
}
