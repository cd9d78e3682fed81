/* SPDX-License-Identifier: Apache-2.0
 *
 * 32 or 64 rows and K up to 2048 in one stage: gemm_sm90_wgmma.cu with the shortest way to the
 * first MMA.
 *
 * A cluster of two blocks computes BM rows x BN columns of C; each takes 1024 columns of K, and
 * each of its two parts (warpgroups) 512 of those. A warp copies what it decodes of B; A comes by
 * TMA, and the first part decodes while the other's half is still on its way. From landing to MMA
 * no barrier is wider than a part. K is permuted as superslab.cuh says. With 32 rows a warp holds
 * eight, and the other half of its MMA is zeros.
 *
 * Straight-line code: a jump over instructions that are not there yet costs more than many
 * instructions. So K comes in whole superslabs, and scales by aligned 16 bytes.
 */
#include "one_stage.cuh"

template <int BM_, int BN_>
struct shape {
    static constexpr int BM = BM_, BN = BN_, WG_K = 2, PART_THREADS = ::PART_THREADS;
    static constexpr int LANE_ROWS = BM / 32;
    static constexpr int LEAD = 0, EXCHANGES = 1; /* one_stage.cuh */

    /* tile_sum.cuh: the sums as vectors, a part's share of them. */
    static constexpr int VECTORS = BN / 16 * LANE_ROWS, OWN = VECTORS / WG_K;
    static constexpr int VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int EXCHANGE_BYTES = OWN * VECTOR_BYTES;

    /* Byte offsets. The sums do not wait until the tiles are read. */
    static constexpr int PART_TILE_BYTES = 2 * SLABS * BN * 128, A = WG_K * PART_TILE_BYTES;
    static constexpr int RECEIVED = A + a_tile<BM>::BYTES, SUMS = RECEIVED + EXCHANGE_BYTES;
    static constexpr int PART_SUMS = VECTORS * VECTOR_BYTES, SCALES = SUMS + WG_K * PART_SUMS;
    static constexpr int END = SCALES + b_copy<BN, 2>::SCALE_BYTES;

    /* Up to 1023 bytes go before the first tile, to align it. */
    static_assert(1024 + END == (BM == 32   ? NVS_SM90_M32N32_SHARED
                                 : BN == 32 ? NVS_SM90_M64N32_SHARED
                                            : NVS_SM90_M64N64_SHARED),
                  "gemm_args.h");
};

template <class S>
NVS_DEVICE void
gemm(const nvs_gemm_args &args, const nvs_a_maps &maps)
{
    __shared__ __align__(8) uint64_t mbarriers[BARRIER_BYTES / 8];
    const uint32_t barriers = shared_address(mbarriers);
    const block_place block = place_block<S>();
    if (threadIdx.x >= WORKERS) {
        fetch_a<S>(maps, block.shared + S::A, barriers, block.row0, block.k0);
        return;
    }
    const b_place b_at = place_b();
    const b_copy<S::BN, 2> copy = place_b_copy<S::BN, 2>(
        block.shared + threadIdx.x / PART_THREADS * S::PART_TILE_BYTES + S::PART_TILE_BYTES / 2,
        block.shared + S::SCALES, b_at);
    copy_b<store_shape<S>::RUN, S::BN>(args, block.column0,
                                       block.k0 + threadIdx.x / PART_THREADS * HALF_K, b_at, copy);
    /* The same for all lanes, so that descriptors are made in uniform registers. */
    const uint32_t part = __shfl_sync(~0u, threadIdx.x / PART_THREADS, 0);
    const uint32_t lane = threadIdx.x % 32, tiles = block.shared + part * S::PART_TILE_BYTES;
    const uint32_t row = threadIdx.x % PART_THREADS / 32 * (8 * S::LANE_ROWS) +
                         tile_row<S::LANE_ROWS>(lane / 4);
    const store_place store = place_store<S>(
        args, block.row0 + row, block.column0 + store_shape<S>::RUN * (4 * part + lane % 4));
    work_place at = {place_a<S::BM>(block.shared + S::A, 2 * part, row),
                     place_b_share<S::BN>(tiles, b_at), quad_transpose_of(lane % 4)};
    settle(at);
    meet_blocks<WORKERS>();

    decode_superslabs<S::BN>(copy, at.b, b_at);
    mbarrier_wait(barriers, 0);
    mbarrier_wait(barriers + part * 8, 0);
    float sum[S::BN / 2] = {};
    multiply_superslabs<S, 2>(at.a, at.transpose, swizzle128_descriptor(tiles), part, 1 + part,
                              PART_THREADS, sum);
    float4 own[S::OWN];
    add_parts<S>(block.shared + S::SUMS, S::PART_SUMS, part, sum, own);
    if (add_blocks<S>(block.shared + S::RECEIVED, barriers + EXCHANGE, block.rank, part, own))
        store_own<S>(args, store, own);
}

#define KERNEL(BM, BN)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) nvs_gemm_sm90_m##BM##n##BN(           \
        const __grid_constant__ nvs_gemm_args args, const __grid_constant__ nvs_a_maps maps)       \
    {                                                                                              \
        gemm<shape<BM, BN>>(args, maps);                                                           \
    }

KERNEL(32, 32)
KERNEL(64, 32)
KERNEL(64, 64)
