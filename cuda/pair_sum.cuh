/* SPDX-License-Identifier: Apache-2.0
 *
 * The sums of kernels whose cluster computes 128 rows x 64 columns: part (ki, mi) = 2 * ki + mi of
 * a block has multiplied row tile mi by its share ki of K, so two parts' sums meet in the block,
 * and two blocks' in the cluster. Every thread is left with some to store.
 */
#pragma once

#include "cluster_k.cuh"
#include "tile_sum.cuh"

struct pair_shape {
    static constexpr int BM = 128, BN = 64, LANE_ROWS = 2;
    static constexpr int VECTORS = BN / 8; /* of a part's sums; half stays in the part, */
    static constexpr int KEPT = VECTORS / 2, OWN = KEPT / 2; /* and half of that in the block */
    static constexpr int VECTOR_BYTES = WORKERS * 16, PART_VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int GIVEN_BYTES = KEPT * PART_VECTOR_BYTES; /* by one part to the other */
    static constexpr int EXCHANGE_BYTES = OWN * VECTOR_BYTES;
};

/* Named barriers of two parts: + ki, + mi. */
static constexpr int TILES_READY = 5, ROWS_MEET = 9;

/* Half of the sums of each of the two parts on this row tile goes to the other; part ki is left
 * with vectors ki * KEPT and on. What part (ki, mi) gives stands at mailbox + ki * pair_bytes +
 * mi * GIVEN_BYTES. */
template <class S>
NVS_DEVICE void
add_halves(uint32_t mailbox, uint32_t pair_bytes, uint32_t ki, uint32_t mi,
           const float (&sum)[S::BN / 2], float4 (&kept)[S::KEPT])
{
    const uint32_t box = mailbox + mi * S::GIVEN_BYTES + threadIdx.x % PART_THREADS * 16;
#pragma unroll
    for (int v = 0; v < S::KEPT; ++v) {
        const float4 low = vector_of<S>(sum, v), high = vector_of<S>(sum, v + S::KEPT);
        const float4 given = ki ? low : high;
        kept[v] = ki ? high : low;
        st_shared_v4(box + ki * pair_bytes + v * S::PART_VECTOR_BYTES, given.x, given.y, given.z,
                     given.w);
    }
    bar_sync(ROWS_MEET + mi, 2 * PART_THREADS);
#pragma unroll
    for (int v = 0; v < S::KEPT; ++v)
        add(kept[v], ld_shared_v4f(box + (ki ^ 1) * pair_bytes + v * S::PART_VECTOR_BYTES));
}

/* Block `rank` finishes vectors rank * OWN and on of what each part has kept. */
template <class S>
NVS_DEVICE void
exchange_halves(uint32_t mailbox, uint32_t barrier, uint32_t rank, const float4 (&kept)[S::KEPT],
                float4 (&own)[S::OWN])
{
    const uint32_t slot = mailbox + threadIdx.x * 16;
    const uint32_t there = mapa(slot, rank ^ 1), signal = mapa(barrier, rank ^ 1);
#pragma unroll
    for (int o = 0; o < S::OWN; ++o) {
        st_async_v4(there + o * S::VECTOR_BYTES, signal, rank ? kept[o] : kept[o + S::OWN]);
        own[o] = rank ? kept[o + S::OWN] : kept[o];
    }
    mbarrier_wait(barrier, 0);
#pragma unroll
    for (int o = 0; o < S::OWN; ++o)
        add(own[o], ld_shared_v4f(slot + o * S::VECTOR_BYTES));
}
