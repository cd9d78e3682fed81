/* SPDX-License-Identifier: Apache-2.0
 *
 * 32 or 64 rows and K up to 2048 in one stage: gemm_sm90_wgmma.cu with the shortest way to the
 * first MMA.
 *
 * A cluster of two blocks computes BM rows x BN columns of C; each takes 1024 columns of K, and
 * each of its four parts (warpgroups) 256 of those. A part decodes its own B straight from the
 * registers that it was loaded to; A comes by TMA, and the first two parts decode while the other
 * half is still on its way. From load to MMA no barrier is wider than a part. K is permuted as
 * superslab.cuh says. With 32 rows a warp holds eight, and the other half of its MMA is zeros.
 *
 * Straight-line code: a jump over instructions that are not there yet costs more than many
 * instructions. So K comes in whole superslabs, and scales by aligned 16 bytes.
 */
#include "cluster_k.cuh"
#include "tile_sum.cuh"

template <int BM_, int BN_>
struct shape {
    static constexpr int BM = BM_, BN = BN_, WG_K = 4, PART_THREADS = ::PART_THREADS;
    static constexpr int LANE_ROWS = BM / 32;

    /* tile_sum.cuh: the sums as vectors, a part's share of them, the parts that have one. */
    static constexpr int VECTORS = BN / 16 * LANE_ROWS, OWN = (VECTORS + 3) / 4;
    static constexpr int OWNERS = VECTORS / OWN, VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int EXCHANGE_BYTES = VECTORS / 2 * VECTOR_BYTES;

    /* Byte offsets. Where there is room, a part's sums do not wait until its B tile is read. */
    static constexpr bool SUMS_APART = BN == 32;
    static constexpr int TILE_BYTES = SLABS * BN * 128, A = WG_K * TILE_BYTES;
    static constexpr int RECEIVED = A + a_tile<BM>::BYTES;
    static constexpr int SUMS = SUMS_APART ? RECEIVED + EXCHANGE_BYTES : 0;
    static constexpr int PART_SUMS = SUMS_APART ? VECTORS * VECTOR_BYTES : TILE_BYTES;
    static_assert(VECTORS * VECTOR_BYTES <= TILE_BYTES, "sums");
    static constexpr int END = SUMS_APART ? SUMS + WG_K * PART_SUMS : RECEIVED + EXCHANGE_BYTES;

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
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ __align__(8) uint64_t barriers[3]; /* the halves of A, the exchange */
    const uint32_t shared = (shared_address(dynamic_shared) + 1023u) & ~1023u;
    const uint32_t barrier = shared_address(barriers), exchange = barrier + 16;
    const uint32_t rank = blockIdx.x % 2, k0 = rank * BLOCK_K;
    const uint32_t row0 = row_of_tiles() * S::BM, column0 = blockIdx.x / 2 * S::BN;
    if (threadIdx.x >= WORKERS) {
        fetch_a<S::BM>(maps, shared + S::A, barrier, exchange, S::EXCHANGE_BYTES, row0, k0);
        return;
    }
    const b_place at = place_b();
    b_share<S::BN> b;
    load_b<S::BN>(args, column0, k0, at, b);
    /* The same for all lanes, so that descriptors are made in uniform registers. */
    const uint32_t part = __shfl_sync(~0u, threadIdx.x / PART_THREADS, 0);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = threadIdx.x % PART_THREADS / 32 * (8 * S::LANE_ROWS) + tile_row(lane / 4);
    const store_place store = place_store<S>(
        args, row0 + row, column0 + 16 / S::LANE_ROWS * S::OWN * part + 2 * (lane % 4));
    keep_order();
    meet_blocks();

    const uint32_t tile = shared + part * S::TILE_BYTES;
    decode_b_share<S::BN>(b, tile, at);
    mbarrier_wait(barrier, 0);
    mbarrier_wait(barrier + part / 2 * 8, 0);
    a_share<S::LANE_ROWS> a;
    load_a<S::BM>(shared + S::A, part, row, a);
    float sum[S::BN / 2] = {};
    multiply_superslab<S::BN>(a, quad_transpose_of(lane % 4), swizzle128_descriptor(tile), 1 + part,
                              PART_THREADS, sum);
    wgmma_wait<0>();
    if (!S::SUMS_APART)
        bar_sync(1 + part, PART_THREADS); /* the tile is read, all of it */
    float4 own[S::OWN];
    if (add_parts<S>(shared + S::SUMS, S::PART_SUMS, part, sum, own) &&
        add_blocks<S>(shared + S::RECEIVED, exchange, rank, part, own))
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
