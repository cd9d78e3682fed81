/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels share whose cluster of two blocks shares K, a stage of 1024 columns at a time: A to
 * shared memory by TMA, B by the threads that decode it.
 *
 * A warp of its own issues TMA, which takes a thread some 100 cycles a box; the workers' loads of B
 * do not wait for it. A comes in two halves of K with a barrier each.
 */
#pragma once

#include "epilogue.cuh"
#include "gemm_args.h"
#include "superslab.cuh"

static constexpr int PART_THREADS = 128; /* a part is a warpgroup of workers */
static constexpr int BLOCK_K = 1024, HALF_K = BLOCK_K / 2;

/* Named barriers: 0 the workers, 1 to 4 a part, others below. */
static constexpr int READY = 8; /* the workers and the warp that issues: the mbarriers are there */

/* What a block computes, and its shared memory from a multiple of 1024 on. */
struct block_place {
    uint32_t shared, rank, k0, row0, column0; /* k0: of its first stage */
};

template <class S>
NVS_DEVICE block_place
place_block(void)
{
    extern __shared__ uint8_t dynamic_shared[];
    block_place at;
    at.shared = (shared_address(dynamic_shared) + 1023u) & ~1023u;
    at.rank = blockIdx.x % 2;
    at.k0 = at.rank * BLOCK_K;
    at.row0 = row_of_tiles() * S::BM;
    at.column0 = blockIdx.x / 2 * S::BN;
    return at;
}

/* A in shared memory, from a multiple of 1024 on: rows of 128 bytes (half of the block's K) of
 * values and metadata, swizzled by 128 bytes, and of 64 bytes of scales, swizzled by 64. */
template <int ROWS>
struct a_tile {
    static constexpr int HALF = ROWS * NVS_A_BOX;
    static constexpr int VALS = 0, META = 2 * HALF, SCALE = 4 * HALF;
    static constexpr int BYTES = SCALE + ROWS * NVS_A_SCALE_BOX;
    static_assert(NVS_A_BOX == HALF_K / 4 && NVS_A_SCALE_BOX == BLOCK_K / 16, "boxes");
};

/* The five boxes of a stage, by one thread. barriers: of the halves; scales count to the first. */
template <int ROWS>
NVS_DEVICE void
fetch_a_stage(const nvs_a_maps &maps, uint32_t a, uint32_t barriers, uint32_t row0, uint32_t k0)
{
    using A = a_tile<ROWS>;
    mbarrier_arrive_expect_tx(barriers, A::BYTES - 2 * A::HALF);
    tma_load(a + A::VALS, &maps.vals, k0 / 4, row0, barriers);
    tma_load(a + A::META, &maps.meta, k0 / 4, row0, barriers);
    tma_load(a + A::SCALE, &maps.scale, k0 / 16, row0, barriers);
    mbarrier_arrive_expect_tx(barriers + 8, 2 * A::HALF);
    tma_load(a + A::VALS + A::HALF, &maps.vals, (k0 + HALF_K) / 4, row0, barriers + 8);
    tma_load(a + A::META + A::HALF, &maps.meta, (k0 + HALF_K) / 4, row0, barriers + 8);
}

/* The mbarriers of both blocks are there once all threads have called this or meet_blocks(). */
template <int WORKERS>
NVS_DEVICE void
announce_barriers(void)
{
    __syncwarp();
    bar_arrive(READY, WORKERS + 32);
    barrier_cluster_arrive_relaxed();
}

/* The workers' counterpart: the mbarriers of both blocks are there when it returns. */
template <int WORKERS>
NVS_DEVICE void
meet_blocks(void)
{
    bar_sync(READY, WORKERS + 32);
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
}

/* Where row g of the MMA stands in a warp's rows of the tile, of two rows a lane the first: row
 * g + 8 is its neighbour, so that both are one word of a column-major C. A quarter-warp reads half
 * a line of rows g and g + 1, and these meet all banks of the swizzled lines. */
template <int LANE_ROWS>
NVS_DEVICE uint32_t
tile_row(uint32_t g)
{
    return (g & 1) << 2 | (LANE_ROWS == 2 ? (g & 2) | (g & 4) << 1 : g >> 1);
}

/* Where this lane's segment of a superslab of A stands in the tile. */
struct a_place {
    uint32_t vals, scale;
};

/* vals: of the superslab's half. superslab: 0..3 of a stage. row: of the tile, the lane's first; if
 * it has two, an even one. */
NVS_DEVICE a_place
place_a(uint32_t vals, uint32_t scale, uint32_t superslab, uint32_t row)
{
    const uint32_t q = threadIdx.x % 4;
    a_place at;
    at.vals = vals + row * NVS_A_BOX + (((superslab % 2 * 4 + q) ^ (row & 7)) << 4);
    at.scale = scale + row * NVS_A_SCALE_BOX + ((superslab ^ (row >> 1 & 3)) << 4) + q * 4;
    return at;
}

/* The same in an a_tile. */
template <int ROWS>
NVS_DEVICE a_place
place_a(uint32_t a, uint32_t superslab, uint32_t row)
{
    using A = a_tile<ROWS>;
    return place_a(a + A::VALS + superslab / 2 * A::HALF, a + A::SCALE, superslab, row);
}

/* Row r of the lane's own but for its scales. META: where metadata stands, bytes behind the values. */
template <int META, int LANE_ROWS>
NVS_DEVICE void
load_a_row(uint32_t vals, int r, a_share<LANE_ROWS> &share)
{
    vals = (vals ^ r * 16) + r * NVS_A_BOX; /* odd rows swap chunks */
    share.vals[r] = ld_shared_v4(vals);
    share.meta[r] = ld_shared_v4(vals + META);
}

template <int ROWS, int LANE_ROWS>
NVS_DEVICE void
load_a(const a_place &at, a_share<LANE_ROWS> &share)
{
    using A = a_tile<ROWS>;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
        load_a_row<A::META - A::VALS>(at.vals, r, share);
        decode_scales(ld_shared_u32(at.scale + r * NVS_A_SCALE_BOX), share.scale[r]);
    }
}

/* What a thread decodes of BN columns of a superslab of B. */
template <int BN>
struct b_share {
    static constexpr int UNITS = BN / 32; /* of decode_b() */
    uint4 codes[UNITS][2];
    uint32_t scale[UNITS][2];
};

/* The first of this warp's eight rows of each 32 of an f16 tile. */
NVS_DEVICE uint32_t
first_b_row(void)
{
    return threadIdx.x % PART_THREADS / 32 * 8;
}

/* Where a thread's share of BN columns goes in a superslab's f16 tile of TILE_BN columns. `tile`
 * points at the first of the BN. */
template <int TILE_BN>
NVS_DEVICE b_chunks
place_b_share(uint32_t tile, const b_place &at)
{
    return place_chunks<TILE_BN>(tile + (first_b_row() + at.row) * 128, at);
}

/* To that place, `offset` bytes on. */
template <int TILE_BN, int BN>
NVS_DEVICE void
decode_b_share(const b_share<BN> &b, const b_chunks &to, uint32_t offset, const b_place &at)
{
#pragma unroll
    for (int u = 0; u < b.UNITS; ++u)
        decode_b<TILE_BN>(b.codes[u], b.scale[u], to, offset + 32 * u * 128, at);
}
