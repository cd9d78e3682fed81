/* SPDX-License-Identifier: Apache-2.0
 *
 * 128 rows and any K in multiples of 256: B is decoded once for two row tiles, as in
 * gemm_sm90_m128.cu, A comes through a ring of stages, as in gemm_sm90_ring.cu.
 *
 * A cluster of two blocks computes 128 rows x 64 columns of C. The blocks take turns along K, a
 * stage of 1024 columns each, in two steps of 512: part (ki, mi) of a block decodes half of the
 * columns of superslab ki of a step, and multiplies row tile mi by all of it. So only the two parts
 * of a pair, which share a superslab, wait for each other: one pair's MMAs run while the other
 * decodes. Sums stay in registers to the end. Then two parts' meet in the block, and two blocks' in
 * the cluster; every thread is left with some to store.
 */
#include "ring.cuh"
#include "tile_sum.cuh"

struct shape {
    static constexpr int BM = 128, BN = 64, LANE_ROWS = 2, SLOTS = 2;
    static constexpr int VECTORS = BN / 8; /* of a part's sums; half stays in the part, */
    static constexpr int KEPT = VECTORS / 2, OWN = KEPT / 2; /* and half of that in the block */
    static constexpr int VECTOR_BYTES = WORKERS * 16, PART_VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int GIVEN_BYTES = KEPT * PART_VECTOR_BYTES; /* by one part to the other */
    static constexpr int EXCHANGE_BYTES = OWN * VECTOR_BYTES;

    /* Byte offsets. A pair's sums go where its B tile was. */
    static constexpr int TILE_BYTES = SLABS * BN * 128, A = 2 * TILE_BYTES;
    static constexpr int RECEIVED = A + SLOTS * a_tile<BM>::BYTES;
    static_assert(2 * GIVEN_BYTES <= TILE_BYTES, "sums");
    static_assert(1024 + RECEIVED + EXCHANGE_BYTES == NVS_SM90_M128N64_RING_SHARED, "gemm_args.h");
};

/* Named barriers of two parts: + ki, + mi. */
static constexpr int TILES_READY = 5, ROWS_MEET = 9;

static constexpr int HALF_N = shape::BN / 2; /* columns of B that a part decodes */

/* Columns of K from a step of the block to its next. half: of its stage, which the first is. */
NVS_DEVICE uint32_t
step_columns(uint32_t half)
{
    return half ? 2 * BLOCK_K - HALF_K : HALF_K;
}

/* All of the block's stages. row: of the tile, the lane's first. */
NVS_DEVICE void
multiply_steps(const nvs_gemm_args &args, b_walk<store_shape<shape>::RUN> &walk, b_share<HALF_N> &b,
               const b_place &at, uint32_t shared, uint32_t barriers, uint32_t part, uint32_t row,
               uint32_t stages, float (&sum)[shape::BN / 2])
{
    const uint32_t ki = part / 2, mi = part % 2, tile = shared + ki * shape::TILE_BYTES;
    const b_chunks to = place_b_share<shape::BN>(tile + HALF_N * mi * 128, at);
    const quad_transpose transpose = quad_transpose_of(threadIdx.x % 4);
#pragma unroll 1
    for (uint32_t step = 0; step < 2 * stages; ++step) {
        const uint32_t stage = step / 2, half = step % 2;
        decode_b_share<shape::BN>(b, to, 0, at);
        fence_proxy_async(); /* before the loads, lest it wait for them */
        keep_order();
        load_next_b(args, step_columns(half ^ 1), walk, b);
        const uint32_t slot = stage % shape::SLOTS, parity = stage / shape::SLOTS & 1;
        const uint32_t slot_barriers = barriers + slot * SLOT_BARRIERS;
        mbarrier_wait(slot_barriers + half * 8, parity); /* scales came with half 0 */
        a_share<2> a;
        uint32_t meta[SLABS];
        load_a<shape::BM>(place_a<shape::BM>(shared + shape::A + slot * a_tile<shape::BM>::BYTES,
                                             2 * half + ki, row),
                          a);
        __syncwarp();
        if (half && threadIdx.x % 32 == 0)
            mbarrier_arrive(slot_barriers + EMPTY);
        decode_metadata(a, transpose, meta);
        multiply_slabs<shape::BN>(a, meta, swizzle128_descriptor(tile), TILES_READY + ki,
                                  2 * PART_THREADS, sum);
        wgmma_wait<0>();
        bar_sync(TILES_READY + ki, 2 * PART_THREADS); /* both parts' MMAs have read the tile */
    }
}

/* Half of the sums of each of the two parts on this row tile goes to the other; part ki is left
 * with vectors ki * KEPT and on. What part (ki, mi) gives stands at mailbox + ki * TILE_BYTES +
 * mi * GIVEN_BYTES. */
NVS_DEVICE void
add_halves(uint32_t mailbox, uint32_t ki, uint32_t mi, const float (&sum)[shape::BN / 2],
           float4 (&kept)[shape::KEPT])
{
    using S = shape;
    const uint32_t box = mailbox + mi * S::GIVEN_BYTES + threadIdx.x % PART_THREADS * 16;
#pragma unroll
    for (int v = 0; v < S::KEPT; ++v) {
        const float4 low = vector_of<S>(sum, v), high = vector_of<S>(sum, v + S::KEPT);
        const float4 given = ki ? low : high;
        kept[v] = ki ? high : low;
        st_shared_v4(box + ki * S::TILE_BYTES + v * S::PART_VECTOR_BYTES, given.x, given.y, given.z,
                     given.w);
    }
    bar_sync(ROWS_MEET + mi, 2 * PART_THREADS);
#pragma unroll
    for (int v = 0; v < S::KEPT; ++v)
        add(kept[v], ld_shared_v4f(box + (ki ^ 1) * S::TILE_BYTES + v * S::PART_VECTOR_BYTES));
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS, 1)
    nvs_gemm_sm90_m128n64_ring(const __grid_constant__ nvs_gemm_args args,
                               const __grid_constant__ nvs_a_maps maps)
{
    __shared__ __align__(8) uint64_t mbarriers[EXCHANGE<shape> / 8 + 1];
    const uint32_t barriers = shared_address(mbarriers);
    const block_place block = place_block<shape>();
    if (threadIdx.x >= WORKERS) {
        fill_ring<shape>(args, maps, block, barriers);
        return;
    }
    const b_place at = place_b();
    const nvs_gemm_args b_args = load_b_args(args);
    b_walk<store_shape<shape>::RUN> walk = start_walk<store_shape<shape>::RUN>(
        b_args, block.column0 + HALF_N * (threadIdx.x / PART_THREADS % 2),
        block.k0 + threadIdx.x / PART_THREADS / 2 * SUPERSLAB, at);
    b_share<HALF_N> b;
    load_next_b(b_args, step_columns(0), walk, b);
    setmaxnreg_inc<WORKER_REGISTERS>(); /* which waits, and the loads need not */
    /* The same for all lanes, so that descriptors are made in uniform registers. */
    const uint32_t part = __shfl_sync(~0u, threadIdx.x / PART_THREADS, 0);
    const uint32_t ki = part / 2, mi = part % 2, lane = threadIdx.x % 32;
    const uint32_t row = 64 * mi + threadIdx.x % PART_THREADS / 32 * 16 + tile_row<2>(lane / 4);
    meet_blocks<WORKERS>();

    float sum[shape::BN / 2] = {};
    multiply_steps(args, walk, b, at, block.shared, barriers, part, row,
                   stages_of(block.rank, (uint32_t)b_args.k), sum);
    const store_place store = place_store<shape>(
        args, block.row0 + row,
        block.column0 + store_shape<shape>::RUN * (4 * (2 * ki + block.rank) + lane % 4));
    float4 kept[shape::KEPT], own[shape::OWN];
    add_halves(block.shared, ki, mi, sum, kept);
    exchange_halves<shape>(block.shared + shape::RECEIVED, barriers + EXCHANGE<shape>, block.rank,
                           kept, own);
    store_own<shape>(args, store, own);
}
