/* SPDX-License-Identifier: Apache-2.0
 *
 * 128 rows and K up to 2048 in one stage: B is decoded once for two row tiles.
 *
 * A cluster of two blocks computes 128 rows x 64 columns of C; each takes 1024 columns of K. Its
 * four parts (warpgroups) are two row tiles x two halves of that K: each decodes 256 columns of B
 * for itself and its neighbour on the other row tile, then multiplies its 64 rows by both. So two
 * parts' sums meet in the block, not four. Loads and the permutation of K are those of
 * gemm_sm90_m64.cu.
 */
#include "cluster_k.cuh"
#include "pair_sum.cuh"

struct shape : pair_shape {
    static constexpr int TILE_BYTES = SLABS * BN * 128, A = 4 * TILE_BYTES;
    static constexpr int RECEIVED = A + a_tile<BM>::BYTES;
    static_assert(1024 + RECEIVED + EXCHANGE_BYTES == NVS_SM90_M128N64_SHARED, "gemm_args.h");
};

/* Both superslabs of half ki of K against rows row and row + 8 of the tile. */
NVS_DEVICE void
multiply(uint32_t shared, uint32_t ki, uint32_t row, float (&sum)[shape::BN / 2])
{
    const quad_transpose transpose = quad_transpose_of(threadIdx.x % 4);
    uint32_t step[SLABS][2][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const uint32_t superslab = 2 * ki + s;
        a_share<2> a;
        uint32_t meta[SLABS];
        load_a<shape::BM>(shared + shape::A, superslab, row, a);
        decode_metadata(a, transpose, meta);
        const uint64_t tile = swizzle128_descriptor(shared + superslab * shape::TILE_BYTES);
#pragma unroll
        for (int i = 0; i < SLABS; ++i) {
            if (s)
                wgmma_wait<SLABS - 1>(); /* the MMA that reads step[i] */
            decode_a(a, i, step[i]);
            multiply_slab<shape::BN>(step[i], tile + i * (shape::BN * 128 >> 4), meta[i], sum);
        }
    }
    wgmma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS, 1)
    nvs_gemm_sm90_m128n64(const __grid_constant__ nvs_gemm_args args,
                          const __grid_constant__ nvs_a_maps maps)
{
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ __align__(8) uint64_t barriers[3]; /* the halves of A, the exchange */
    const uint32_t shared = (shared_address(dynamic_shared) + 1023u) & ~1023u;
    const uint32_t barrier = shared_address(barriers), exchange = barrier + 16;
    const uint32_t rank = blockIdx.x % 2, k0 = rank * BLOCK_K;
    const uint32_t row0 = row_of_tiles() * shape::BM, column0 = blockIdx.x / 2 * shape::BN;
    if (threadIdx.x >= WORKERS) {
        setmaxnreg_dec<ISSUER_REGISTERS>();
        if (threadIdx.x < THREADS)
            fetch_a<shape::BM>(maps, shared + shape::A, barrier, exchange, shape::EXCHANGE_BYTES,
                               row0, k0);
        return;
    }
    setmaxnreg_inc<WORKER_REGISTERS>();
    const b_place at = place_b();
    b_share<shape::BN> b;
    load_b<shape::BN>(args, column0, k0, at, b);
    /* The same for all lanes, so that descriptors are made in uniform registers. */
    const uint32_t part = __shfl_sync(~0u, threadIdx.x / PART_THREADS, 0);
    const uint32_t ki = part / 2, mi = part % 2, lane = threadIdx.x % 32;
    const uint32_t row = 64 * mi + threadIdx.x % PART_THREADS / 32 * 16 + tile_row(lane / 4);
    const store_place store = place_store<shape>(
        args, row0 + row, column0 + 8 * (shape::KEPT * ki + shape::OWN * rank) + 2 * (lane % 4));
    keep_order();
    meet_blocks();

    decode_b_share<shape::BN>(b, shared + part * shape::TILE_BYTES, at);
    fence_proxy_async();
    mbarrier_wait(barrier, 0);
    mbarrier_wait(barrier + ki * 8, 0);
    bar_sync(TILES_READY + ki, 2 * PART_THREADS);
    float sum[shape::BN / 2] = {};
    multiply(shared, ki, row, sum);
    bar_sync(1 + part, PART_THREADS); /* the part's A is read, all of it */
    float4 kept[shape::KEPT], own[shape::OWN];
    add_halves<shape>(shared + shape::A, a_tile<shape::BM>::HALF, ki, mi, sum, kept);
    exchange_halves<shape>(shared + shape::RECEIVED, exchange, rank, kept, own);
    store_own<shape>(args, store, own);
}
