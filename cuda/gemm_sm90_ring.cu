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
#include "cluster_k.cuh"
#include "tile_sum.cuh"

/* A worker needs more than the 96 registers that so many threads start with, so the warp that
 * issues TMA stands in a warpgroup of its own, as only whole ones give registers away. */
static constexpr int WORKERS = 512, GROUP_THREADS = WORKERS + PART_THREADS;
static constexpr int WORKER_REGISTERS = 112, ISSUER_REGISTERS = 24;

/* A slot's mbarriers: two for the halves of A, then one for all warps that have read it. */
static constexpr int EMPTY = 16, SLOT_BARRIERS = 24;

/* Byte offset of the mbarrier behind those of the slots: what the other block sends. */
template <class S>
static constexpr int EXCHANGE = SLOT_BARRIERS *S::SLOTS;

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
