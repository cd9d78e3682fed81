/* SPDX-License-Identifier: Apache-2.0
 *
 * 128 rows and K up to 2048 in one stage: B is decoded once for two row tiles.
 *
 * A cluster of two blocks computes 128 rows x 64 columns of C; each takes 1024 columns of K. Its
 * two parts (warpgroups) are two row tiles: each decodes half of the columns of B for itself and
 * its neighbour, then multiplies its 64 rows by all of them. So no sums meet in the block, only
 * those of the two blocks in the cluster; part 0 starts to multiply first, so that its exchange,
 * which is slow, runs beside part 1's MMAs. Loads and the permutation of K are those of
 * gemm_sm90_m64.cu.
 */
#include "one_stage.cuh"

struct shape {
    static constexpr int BM = 128, BN = 64, LANE_ROWS = 2;
    static constexpr int LEAD = 6;                            /* slabs; see multiply_in_pairs() */
    static constexpr int VECTORS = BN / 8, OWN = VECTORS / 2; /* of a thread's sums; half stays */
    static constexpr int VECTOR_BYTES = WORKERS * 16, EXCHANGES = 2;
    static constexpr int EXCHANGE_BYTES = OWN * VECTOR_BYTES;
    static constexpr int TILE_BYTES = SLABS * BN * 128, A = 4 * TILE_BYTES; /* byte offsets */
    static constexpr int RECEIVED = A + a_tile<BM>::BYTES, SCALES = RECEIVED + EXCHANGE_BYTES;
    static_assert(1024 + SCALES + b_copy<BN / 2, 4>::SCALE_BYTES == NVS_SM90_M128N64_SHARED,
                  "gemm_args.h");
};

static constexpr int HALF_N = shape::BN / 2; /* columns of B that a part decodes */
static constexpr int TILES_READY = 1;        /* a named barrier */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    nvs_gemm_sm90_m128n64(const __grid_constant__ nvs_gemm_args args,
                          const __grid_constant__ nvs_a_maps maps)
{
    using S = shape;
    __shared__ __align__(8) uint64_t mbarriers[BARRIER_BYTES / 8];
    const uint32_t barriers = shared_address(mbarriers);
    const block_place block = place_block<S>();
    if (threadIdx.x >= WORKERS) {
        fetch_a<S>(maps, block.shared + S::A, barriers, block.row0, block.k0);
        return;
    }
    const b_place b_at = place_b();
    const uint32_t half_n = threadIdx.x / PART_THREADS * HALF_N;
    const b_copy<HALF_N, 4> copy = place_b_copy<HALF_N, 4>(
        block.shared + 3 * S::TILE_BYTES + half_n * 128, block.shared + S::SCALES, b_at);
    copy_b<store_shape<S>::RUN, S::BN>(args, block.column0 + half_n, block.k0, b_at, copy);
    /* The same for all lanes, so that descriptors are made in uniform registers. */
    const uint32_t part = __shfl_sync(~0u, threadIdx.x / PART_THREADS, 0);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = 64 * part + threadIdx.x % PART_THREADS / 32 * 16 + tile_row<2>(lane / 4);
    const store_place store = place_store<S>(
        args, block.row0 + row, block.column0 + store_shape<S>::RUN * (4 * block.rank + lane % 4));
    work_place at = {place_a<S::BM>(block.shared + S::A, 0, row),
                     place_b_share<S::BN>(block.shared + part * HALF_N * 128, b_at),
                     quad_transpose_of(lane % 4)};
    settle(at);
    meet_blocks<WORKERS>();

    decode_superslabs<S::BN>(copy, at.b, b_at);
    float sum[S::BN / 2] = {};
    mbarrier_wait(barriers, 0);
    mbarrier_wait(barriers + 8, 0);
    multiply_superslabs<S, 4>(at.a, at.transpose, swizzle128_descriptor(block.shared), part,
                              TILES_READY, WORKERS, sum);
    float4 all[S::VECTORS], own[S::OWN];
#pragma unroll
    for (int v = 0; v < S::VECTORS; ++v)
        all[v] = vector_of<S>(sum, v);
    exchange_halves<S>(block.shared + S::RECEIVED, barriers + EXCHANGE + 8 * part, block.rank, all,
                       own);
    store_own<S>(args, store, own);
}
