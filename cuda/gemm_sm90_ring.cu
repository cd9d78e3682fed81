/* SPDX-License-Identifier: Apache-2.0
 *
 * 64 rows and any K in multiples of 256: gemm_sm90_m64.cu with a ring of stages.
 *
 * A cluster of two blocks computes 64 rows x BN columns of C. The blocks take turns along K, a
 * stage of 1024 columns each, 256 to each of a block's four parts (warpgroups), which keep their
 * sums in registers to the end. A warp of its own fills the ring of A by TMA as slots come free; a
 * thread's share of B travels in registers, one stage ahead of its decoding. Up to the last stage
 * the parts do not wait for each other, so one's MMAs run while others decode. K is permuted as
 * superslab.cuh says.
 */
#include "ring.cuh"
#include "tile_sum.cuh"

template <int BN_, int SLOTS_>
struct shape {
    static constexpr int BM = 64, BN = BN_, SLOTS = SLOTS_, WG_K = 4;
    static constexpr int PART_THREADS = ::PART_THREADS, LANE_ROWS = 2;

    /* tile_sum.cuh: the sums as vectors, a part's share of them. */
    static constexpr int VECTORS = BN / 8, OWN = VECTORS / WG_K;
    static constexpr int VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int EXCHANGE_BYTES = VECTORS / 2 * VECTOR_BYTES;

    /* Byte offsets. A part's sums go where its B tile was. */
    static constexpr int TILE_BYTES = SLABS * BN * 128, A = WG_K * TILE_BYTES;
    static constexpr int RECEIVED = A + SLOTS * a_tile<BM>::BYTES;
    static_assert(VECTORS * VECTOR_BYTES <= TILE_BYTES, "sums");

    /* Up to 1023 bytes go before the first tile, to align it. */
    static_assert(1024 + RECEIVED + EXCHANGE_BYTES ==
                      (BN == 32 ? NVS_SM90_M64N32_RING_SHARED : NVS_SM90_M64N64_RING_SHARED),
                  "gemm_args.h");
};

/* All of the block's stages. */
template <class S>
NVS_DEVICE void
multiply_stages(const nvs_gemm_args &args, b_walk<store_shape<S>::RUN> &walk, b_share<S::BN> &b,
                const b_place &at, uint32_t shared, uint32_t barriers, uint32_t part,
                uint32_t stages, float (&sum)[S::BN / 2])
{
    const uint32_t lane = threadIdx.x % 32, tile = shared + part * S::TILE_BYTES;
    const uint32_t row = threadIdx.x % PART_THREADS / 32 * 16 + tile_row<2>(lane / 4);
    const quad_transpose transpose = quad_transpose_of(lane % 4);
    const b_chunks to = place_b_share<S::BN>(tile, at);
    for (uint32_t stage = 0; stage < stages; ++stage) {
        decode_b_share<S::BN>(b, to, 0, at);
        fence_proxy_async(); /* before the loads, lest it wait for them */
        keep_order();
        load_next_b(args, 2 * BLOCK_K, walk, b);
        const uint32_t slot = stage % S::SLOTS, parity = stage / S::SLOTS & 1;
        const uint32_t slot_barriers = barriers + slot * SLOT_BARRIERS;
        mbarrier_wait(slot_barriers, parity);
        mbarrier_wait(slot_barriers + part / 2 * 8, parity);
        a_share<2> a;
        uint32_t meta[SLABS];
        load_a<S::BM>(place_a<S::BM>(shared + S::A + slot * a_tile<S::BM>::BYTES, part, row), a);
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(slot_barriers + EMPTY);
        decode_metadata(a, transpose, meta);
        multiply_slabs<S::BN>(a, meta, swizzle128_descriptor(tile), 1 + part, PART_THREADS, sum);
        wgmma_wait<0>();
        bar_sync(1 + part, PART_THREADS); /* the tile is read, all of it */
    }
}

template <class S>
NVS_DEVICE void
gemm(const nvs_gemm_args &args, const nvs_a_maps &maps)
{
    __shared__ __align__(8) uint64_t mbarriers[EXCHANGE<S> / 8 + 1];
    const uint32_t barriers = shared_address(mbarriers);
    const block_place block = place_block<S>();
    if (threadIdx.x >= WORKERS) {
        fill_ring<S>(args, maps, block, barriers);
        return;
    }
    const b_place at = place_b();
    const nvs_gemm_args b_args = load_b_args(args);
    b_walk<store_shape<S>::RUN> walk = start_walk<store_shape<S>::RUN>(
        b_args, block.column0, block.k0 + threadIdx.x / PART_THREADS * SUPERSLAB, at);
    b_share<S::BN> b;
    load_next_b(b_args, 2 * BLOCK_K, walk, b);
    setmaxnreg_inc<WORKER_REGISTERS>(); /* which waits, and the loads need not */
    /* The same for all lanes, so that descriptors are made in uniform registers. */
    const uint32_t part = __shfl_sync(~0u, threadIdx.x / PART_THREADS, 0);
    meet_blocks<WORKERS>();

    float sum[S::BN / 2] = {};
    multiply_stages<S>(args, walk, b, at, block.shared, barriers, part,
                       stages_of(block.rank, (uint32_t)b_args.k), sum);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = threadIdx.x % PART_THREADS / 32 * 16 + tile_row<2>(lane / 4);
    const store_place store = place_store<S>(
        args, block.row0 + row, block.column0 + store_shape<S>::RUN * (4 * part + lane % 4));
    float4 own[S::OWN];
    add_parts<S>(block.shared, S::TILE_BYTES, part, sum, own);
    if (add_blocks<S>(block.shared + S::RECEIVED, barriers + EXCHANGE<S>, block.rank, part, own))
        store_own<S>(args, store, own);
}

#define KERNEL(BN, SLOTS)                                                                          \
    extern "C" __global__ void __launch_bounds__(GROUP_THREADS, 1) nvs_gemm_sm90_m64n##BN##_ring(  \
        const __grid_constant__ nvs_gemm_args args, const __grid_constant__ nvs_a_maps maps)       \
    {                                                                                              \
        gemm<shape<BN, SLOTS>>(args, maps);                                                        \
    }

KERNEL(32, 4)
KERNEL(64, 2)
