/* SPDX-License-Identifier: Apache-2.0
 *
 * The way of a wgmma tile's sums to C: between the parts of a block, between the two blocks of a
 * cluster, to global memory. A thread holds VECTORS float4. Where a lane has two rows, vector v is
 * columns 8v + 2q and 8v + 2q + 1 of both; where it has one, it is these columns of that row for 2v
 * and for 2v + 1. By column_at() those that a thread stores are neighbours.
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

template <class S>
NVS_DEVICE float4
vector_of(const float (&sum)[S::BN / 2], int v)
{
    if (S::LANE_ROWS == 2)
        return make_float4(sum[4 * v], sum[4 * v + 1], sum[4 * v + 2], sum[4 * v + 3]);
    return make_float4(sum[8 * v], sum[8 * v + 1], sum[8 * v + 4], sum[8 * v + 5]);
}

/* Adds the parts' sums: each of the WG_K parts is left with OWN vectors, from part * OWN on. Part p's
 * sums for the others stand at mailbox + p * part_bytes. */
template <class S>
NVS_DEVICE void
add_parts(uint32_t mailbox, uint32_t part_bytes, uint32_t part, const float (&sum)[S::BN / 2],
          float4 (&own)[S::OWN])
{
    const uint32_t box = mailbox + threadIdx.x % S::PART_THREADS * 16;
#pragma unroll
    for (int v = 0; v < S::VECTORS; ++v) {
        const float4 x = vector_of<S>(sum, v);
        if (v / S::OWN == part)
            own[v % S::OWN] = x;
        else
            st_shared_v4(box + part * part_bytes + v * S::VECTOR_BYTES, x.x, x.y, x.z, x.w);
    }
    bar_sync(0, S::WG_K * S::PART_THREADS);
#pragma unroll
    for (int o = 0; o < S::OWN; ++o)
#pragma unroll
        for (int p = 1; p < S::WG_K; ++p)
            add(own[o], ld_shared_v4f(box + (part ^ p) * part_bytes +
                                      (part * S::OWN + o) * S::VECTOR_BYTES));
}

/* Any output type, stride and alignment; not inlined, so as not to stand in the way of the usual
 * case. */
static __device__ __noinline__ void
store_pair(const nvs_gemm_args &args, uint32_t row, uint32_t column, float x, float y)
{
    store_element(args, row, column, x);
    store_element(args, row, column + 1, y);
}

/* Where a thread stores its RUN neighbouring columns of LANE_ROWS rows; found early, while the
 * operands are still on their way. */
struct store_place {
    uint32_t row, column, rows, columns; /* its first ones; all of C */
    __nv_bfloat16 *first;
    float alpha;
    bool runs, row_pairs; /* runs_are_vectors(), row_pairs_are_words() */
};

/* How a thread's columns and rows lie: see vector_of() and column_at(). */
template <class S>
struct store_shape {
    static constexpr int RUN = 4 / S::LANE_ROWS * S::OWN;
};

template <class S>
NVS_DEVICE store_place
place_store(const nvs_gemm_args &args, uint32_t row, uint32_t column)
{
    store_place at;
    at.row = row;
    at.column = column;
    at.rows = (uint32_t)args.m;
    at.columns = (uint32_t)args.n;
    at.first = static_cast<__nv_bfloat16 *>(args.out) + row * args.out_stride_m +
               column * args.out_stride_n;
    at.alpha = load_alpha(args);
    at.runs = runs_are_vectors<store_shape<S>::RUN>(args);
    at.row_pairs = S::LANE_ROWS == 2 && row_pairs_are_words(args);
    return at;
}

/* Column c of the run in row r of the thread's own. */
template <class S>
NVS_DEVICE float
own_element(const float4 (&own)[S::OWN], int r, int c)
{
    constexpr int WIDTH = 4 / S::LANE_ROWS; /* columns in a vector */
    const float4 v = own[c / WIDTH];
    const int i = c % WIDTH + 2 * r;
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Where runs_are_vectors() is false. */
template <class S>
NVS_DEVICE void
store_own_in_pieces(const nvs_gemm_args &parameters, const store_place &at,
                    const float4 (&own)[S::OWN])
{
    constexpr int RUN = store_shape<S>::RUN;
    if (at.row_pairs) {
#pragma unroll
        for (int c = 0; c < RUN; ++c)
            if (at.row < at.rows && at.column + c < at.columns)
                store_word(at.first + c * parameters.out_stride_n, own_element<S>(own, 0, c),
                           own_element<S>(own, S::LANE_ROWS - 1, c), at.alpha);
        return;
    }
#pragma unroll
    for (int r = 0; r < S::LANE_ROWS; ++r)
#pragma unroll
        for (int c = 0; c < RUN; c += 2)
            store_pair(parameters, at.row + r, at.column + c, own_element<S>(own, r, c),
                       own_element<S>(own, r, c + 1));
}

template <class S>
NVS_DEVICE void
store_own(const nvs_gemm_args &parameters, const store_place &at, const float4 (&own)[S::OWN])
{
    constexpr int RUN = store_shape<S>::RUN;
    if (__builtin_expect(!at.runs, 0)) {
        store_own_in_pieces<S>(parameters, at, own);
        return;
    }
#pragma unroll
    for (int r = 0; r < S::LANE_ROWS; ++r) {
        float run[RUN];
#pragma unroll
        for (int c = 0; c < RUN; ++c)
            run[c] = own_element<S>(own, r, c);
        if (at.row + r < at.rows && at.column < at.columns)
            store_run(at.first + r * parameters.out_stride_m, run, at.alpha);
    }
}

/* Adds the two blocks' sums in rank order. The lower half of the parts holds what block 0 is to
 * finish, the upper half what block 1 is; false: this thread has sent its share away. The blocks
 * must have met before. */
template <class S>
NVS_DEVICE bool
add_blocks(uint32_t mailbox, uint32_t barrier, uint32_t rank, uint32_t part, float4 (&own)[S::OWN])
{
    constexpr int PARTS = S::WG_K / 2; /* that one block finishes */
    const uint32_t owner = part / PARTS;
    const uint32_t slot = mailbox + part % PARTS * S::OWN * S::VECTOR_BYTES +
                          threadIdx.x % S::PART_THREADS * 16;
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

/* Adds the two blocks' sums where every thread of a block has some to finish: block `rank` vectors
 * rank * OWN and on. The blocks must have met before. */
template <class S>
NVS_DEVICE void
exchange_halves(uint32_t mailbox, uint32_t barrier, uint32_t rank, const float4 (&kept)[2 * S::OWN],
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
