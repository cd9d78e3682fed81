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

/* Where a thread stores; found early, while the sums are still on their way. */
struct store_place {
    uint32_t row, column, rows, columns; /* the first of its own; of C */
    __nv_bfloat16 *word, *word_below;    /* of row and row + 8 */
    float alpha;
    bool words; /* pairs_are_words() */
};

template <class S>
NVS_DEVICE store_place
place_store(const nvs_gemm_args &args, uint32_t row0, uint32_t column0, uint32_t part)
{
    const uint32_t thread = threadIdx.x % S::PART_THREADS;
    store_place at;
    at.row = row0 + thread / 32 * 16 + thread % 32 / 4;
    at.column = column0 + 8 * part * S::OWN + 2 * (thread % 4);
    at.rows = (uint32_t)args.m;
    at.columns = (uint32_t)args.n;
    at.word = static_cast<__nv_bfloat16 *>(args.out) + at.row * args.out_stride_m + at.column;
    at.word_below = at.word + 8 * args.out_stride_m;
    at.alpha = load_alpha(args);
    at.words = pairs_are_words(args);
    return at;
}

template <class S>
NVS_DEVICE void
store_own(const nvs_gemm_args &parameters, const store_place &at, const float4 (&own)[S::OWN])
{
    if (__builtin_expect(at.words, 1)) {
#pragma unroll
        for (int o = 0; o < S::OWN; ++o) {
            const bool inside = at.column + 8 * o < at.columns;
            if (inside && at.row < at.rows)
                store_word(at.word + 8 * o, own[o].x, own[o].y, at.alpha);
            if (inside && at.row + 8 < at.rows)
                store_word(at.word_below + 8 * o, own[o].z, own[o].w, at.alpha);
        }
    }
    else
#pragma unroll
        for (int o = 0; o < S::OWN; ++o)
            store_vector(parameters, at.row, at.column + 8 * o, own[o]);
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
