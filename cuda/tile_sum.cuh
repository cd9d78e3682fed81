/* SPDX-License-Identifier: Apache-2.0
 *
 * The way of a wgmma tile's sums to C: between the parts of a block, between the two blocks of a
 * cluster, to global memory. A thread holds VECTORS float4; vector v is columns 8v + 2q and 8v + 2q
 * + 1 of rows g and g + 8.
 */
#pragma once

#include "epilogue.cuh"

NVS_DEVICE void
add(float4 &sum, const float4 &v)
{
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
}

/* Adds the parts' sums in part order: this part is left with vectors part * OWN and on. Part p's
 * sums stand at mailbox + p * part_bytes. */
template <class S>
NVS_DEVICE void
add_parts(uint32_t mailbox, uint32_t part_bytes, uint32_t part, const float (&sum)[4 * S::VECTORS],
          float4 (&own)[S::OWN])
{
    const uint32_t thread = threadIdx.x % S::PART_THREADS * 16;
#pragma unroll
    for (int v = 0; v < S::VECTORS; ++v)
        st_shared_v4(mailbox + part * part_bytes + v * S::VECTOR_BYTES + thread, sum[4 * v],
                     sum[4 * v + 1], sum[4 * v + 2], sum[4 * v + 3]);
    __syncthreads();
#pragma unroll
    for (int o = 0; o < S::OWN; ++o) {
        const uint32_t at = mailbox + (part * S::OWN + o) * S::VECTOR_BYTES + thread;
        own[o] = ld_shared_v4f(at);
#pragma unroll
        for (int p = 1; p < S::WG_K; ++p)
            add(own[o], ld_shared_v4f(at + p * part_bytes));
    }
}

/* Any output type, stride and alignment; not inlined, so as not to stand in the way of the usual
 * case. */
static __device__ __noinline__ void
store_vector(const nvs_gemm_args &args, uint32_t row, uint32_t column, float4 v)
{
    store_element(args, row, column, v.x);
    store_element(args, row, column + 1, v.y);
    store_element(args, row + 8, column, v.z);
    store_element(args, row + 8, column + 1, v.w);
}

template <class S>
NVS_DEVICE void
store_own(const nvs_gemm_args &args, const nvs_gemm_args &parameters, uint32_t row0,
          uint32_t column0, uint32_t part, const float4 (&own)[S::OWN])
{
    const uint32_t thread = threadIdx.x % S::PART_THREADS;
    const uint32_t row = row0 + thread / 32 * 16 + thread % 32 / 4;
    const uint32_t column = column0 + 8 * part * S::OWN + 2 * (thread % 4);
    if (__builtin_expect(pairs_are_words(args), 1)) {
        const float alpha = load_alpha(args);
#pragma unroll
        for (int o = 0; o < S::OWN; ++o) {
            store_word(args, row, column + 8 * o, own[o].x, own[o].y, alpha);
            store_word(args, row + 8, column + 8 * o, own[o].z, own[o].w, alpha);
        }
    }
    else
#pragma unroll
        for (int o = 0; o < S::OWN; ++o)
            store_vector(parameters, row, column + 8 * o, own[o]);
}

/* Adds the two blocks' sums in rank order. The lower half of the parts holds what block 0 is to
 * finish, the upper half what block 1 is; false: this thread has sent its share away. */
template <class S>
NVS_DEVICE bool
add_blocks(uint32_t mailbox, uint32_t barrier, uint32_t rank, uint32_t part, float4 (&own)[S::OWN])
{
    constexpr int PARTS = S::WG_K / 2; /* that one block finishes */
    const uint32_t owner = part / PARTS;
    const uint32_t slot = mailbox + part % PARTS * S::OWN * S::VECTOR_BYTES +
                          threadIdx.x % S::PART_THREADS * 16;
    barrier_cluster_wait();
    if (owner != rank) {
        const uint32_t there = mapa(slot, owner), signal = mapa(barrier, owner);
#pragma unroll
        for (int o = 0; o < S::OWN; ++o)
            st_async_v4(there + o * S::VECTOR_BYTES, signal, own[o]);
        return false;
    }
    mbarrier_wait(barrier, 0);
#pragma unroll
    for (int o = 0; o < S::OWN; ++o) /* of two addends either order is the same sum */
        add(own[o], ld_shared_v4f(slot + o * S::VECTOR_BYTES));
    return true;
}
