/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels for K up to 2048 share: two parts and a warp that issues TMA, all of the block's
 * 1024 columns of K in one stage, four superslabs of 256.
 *
 * Two parts do as well as four: a multiprocessor decodes as many instructions a cycle, and there
 * are half the sums to add. What a thread needs once the operands land is found while they are on
 * their way.
 */
#pragma once

#include "cluster_k.cuh"
#include "tile_sum.cuh"

static constexpr int WORKERS = 256, THREADS = WORKERS + 32;
static constexpr int WINDOW = 8; /* slabs of A in registers, for MMAs under way */

/* Byte offsets of a block's mbarriers: the halves of A, what the other block sends. */
static constexpr int EXCHANGE = 16, BARRIER_BYTES = 24;

/* The warp that issues TMA: A, from `a` on, and the mbarriers. */
template <class S>
NVS_DEVICE void
fetch_a(const nvs_a_maps &maps, uint32_t a, uint32_t barriers, uint32_t row0, uint32_t k0)
{
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int b = 0; b < BARRIER_BYTES; b += 8)
            mbarrier_init(barriers + b, 1);
        fence_mbarrier_init_cluster();
        fetch_a_stage<S::BM>(maps, a, barriers, row0, k0);
        mbarrier_arrive_expect_tx(barriers + EXCHANGE, S::EXCHANGE_BYTES);
    }
    announce_barriers<WORKERS>();
}

/* A thread's share of BN columns of N superslabs of B, from column k of K on. */
template <int RUN, int BN, int N>
NVS_DEVICE void
load_superslabs(const nvs_gemm_args &parameters, uint32_t column0, uint32_t k, const b_place &at,
                b_share<BN> (&b)[N])
{
    const nvs_gemm_args args = load_b_args(parameters);
    const b_source<RUN> from = find_b<RUN>(args, column0, k, at);
#pragma unroll
    for (int s = 0; s < N; ++s)
        load_b(args, from, s * SUPERSLAB, k + s * SUPERSLAB < (uint32_t)args.k, b[s]);
    keep_order();
}

/* To f16 tiles of TILE_BN columns that are neighbours; `to` is in the first. */
template <int TILE_BN, int BN, int N>
NVS_DEVICE void
decode_superslabs(const b_share<BN> (&b)[N], const b_chunks &to, const b_place &at)
{
#pragma unroll
    for (int s = 0; s < N; ++s)
        decode_b_share<TILE_BN>(b[s], to, s * SLABS * TILE_BN * 128, at);
}

/* Where a worker finds its share of A and puts its share of B, and its constants. */
struct work_place {
    a_place a; /* of its first superslab */
    b_chunks b;
    quad_transpose transpose;
};

/* Found now: ptxas would find it where it is used, after the wait. */
NVS_DEVICE void
settle(work_place &at)
{
    asm volatile(""
                 : "+r"(at.a.vals), "+r"(at.a.scale), "+r"(at.transpose.rotate),
                   "+r"(at.transpose.keep), "+r"(at.transpose.merge)::"memory");
#pragma unroll
    for (int t = 0; t < 4; ++t)
        asm volatile("" : "+r"(at.b.group[t])::"memory");
    keep_order();
}

/* `i` superslabs on; the first one's number has no bit in common with i. */
template <int ROWS>
NVS_DEVICE a_place
superslab_on(const a_place &at, int i)
{
    return {(at.vals ^ (i % 2 * 64)) + i / 2 * a_tile<ROWS>::HALF, at.scale ^ (i * 16)};
}

/* N superslabs of A, the first at `at`, against their tiles of B, which are neighbours. The `writers`
 * of the tiles meet here. All of A is read before the first MMA: the MMAs leave no bandwidth of
 * shared memory to others. */
template <class S, int N>
NVS_DEVICE void
multiply_superslabs(const a_place &at, const quad_transpose &transpose, uint64_t tiles, int barrier,
                    int writers, float (&sum)[S::BN / 2])
{
    a_share<S::LANE_ROWS> a[N];
    uint32_t meta[N][SLABS], step[WINDOW][2][4];
#pragma unroll
    for (int s = 0; s < N; ++s)
        load_a<S::BM>(superslab_on<S::BM>(at, s), a[s]);
#pragma unroll
    for (int s = 0; s < N; ++s)
        decode_metadata(a[s], transpose, meta[s]);
    fence_proxy_async();
#pragma unroll
    for (int s = 0; s < N; ++s)
#pragma unroll
        for (int i = 0; i < SLABS; ++i) {
            const int slab = s * SLABS + i;
            if (slab >= WINDOW)
                wgmma_wait<WINDOW - 1>();
            decode_a(a[s], i, step[slab % WINDOW]);
            if (slab == 0)
                bar_sync(barrier, writers);
            multiply_slab<S::BN>(step[slab % WINDOW], i, tiles + slab * (S::BN * 128 >> 4),
                                 meta[s][i], sum);
        }
    wgmma_wait<0>();
}
