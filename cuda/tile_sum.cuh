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

/* Where a thread stores its RUN neighbouring columns of LANE_ROWS rows; found early, while the
 * operands are still on their way. */
struct store_place {
    uint32_t row, column, rows, columns; /* its first ones; all of C */
    uint8_t *first;
    float alpha;
    bool runs, bf16_runs, row_pairs; /* runs_are_vectors(), row_pairs_are_words() */
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
    const int64_t first = row * args.out_stride_m + column * args.out_stride_n;
    store_place at;
    at.row = row;
    at.column = column;
    at.rows = (uint32_t)args.m;
    at.columns = (uint32_t)args.n;
    at.first = static_cast<uint8_t *>(args.out) + first * out_element_bytes(args);
    at.alpha = load_alpha(args);
    at.runs = runs_are_vectors<store_shape<S>::RUN>(args);
    at.bf16_runs = at.runs && args.out_dtype == NVS_OUT_BF16;
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

/* The thread's runs, one a row: store(where, run). */
template <class S, class STORE>
NVS_DEVICE void
for_each_run(const nvs_gemm_args &args, const store_place &at, const float4 (&own)[S::OWN],
             const STORE &store)
{
    constexpr int RUN = store_shape<S>::RUN;
#pragma unroll
    for (int r = 0; r < S::LANE_ROWS; ++r) {
        float run[RUN];
#pragma unroll
        for (int c = 0; c < RUN; ++c)
            run[c] = own_element<S>(own, r, c);
        if (at.row + r < at.rows && at.column < at.columns)
            store(at.first + r * args.out_stride_m * out_element_bytes(args), run);
    }
}

/* A pair of rows at a time, where row_pairs_are_words(). */
template <class S>
NVS_DEVICE void
store_row_pairs(const nvs_gemm_args &args, const store_place &at, const float4 (&own)[S::OWN],
                bool is_fp16)
{
#pragma unroll
    for (int c = 0; c < store_shape<S>::RUN; ++c) {
        const uint32_t word[1] = {scaled_word(own_element<S>(own, 0, c),
                                              own_element<S>(own, S::LANE_ROWS - 1, c), at.alpha,
                                              is_fp16)};
        if (at.row < at.rows && at.column + c < at.columns)
            store_words(at.first + c * args.out_stride_n * 2, word);
    }
}

/* Any output type, stride and alignment. */
template <class S>
NVS_DEVICE void
store_elements(const nvs_gemm_args &args, const store_place &at, const float4 (&own)[S::OWN])
{
#pragma unroll
    for (int r = 0; r < S::LANE_ROWS; ++r)
#pragma unroll
        for (int c = 0; c < store_shape<S>::RUN; ++c)
            if (at.row + r < at.rows && at.column + c < at.columns)
                store_value(args,
                            (at.row + r) * args.out_stride_m + (at.column + c) * args.out_stride_n,
                            scaled(own_element<S>(own, r, c), at.alpha));
}

template <class S>
struct own_vectors {
    float4 v[S::OWN];
};

/* What is not a row-major bf16 C with aligned rows; not inlined, or ptxas moves the usual case out of
 * the straight line. */
template <class S>
static __device__ __noinline__ void
store_own_otherwise(const nvs_gemm_args &args, const store_place at, const own_vectors<S> vectors)
{
    const float4(&own)[S::OWN] = vectors.v;
    using run = const float(&)[store_shape<S>::RUN];
    const bool is_fp16 = args.out_dtype == NVS_OUT_FP16;
    if (at.row_pairs)
        store_row_pairs<S>(args, at, own, is_fp16);
    else if (!at.runs)
        store_elements<S>(args, at, own);
    else if (is_fp16)
        for_each_run<S>(args, at, own,
                        [&](uint8_t *to, run x) { store_run(to, x, at.alpha, true); });
    else
        for_each_run<S>(args, at, own,
                        [&](uint8_t *to, run x) { store_run_fp32(to, x, at.alpha); });
}

template <class S>
NVS_DEVICE void
store_own(const nvs_gemm_args &args, const store_place &at, const float4 (&own)[S::OWN])
{
    using run = const float(&)[store_shape<S>::RUN];
    if (__builtin_expect(!at.bf16_runs, 0)) {
        own_vectors<S> vectors;
#pragma unroll
        for (int o = 0; o < S::OWN; ++o)
            vectors.v[o] = own[o];
        store_own_otherwise<S>(args, at, vectors);
        return;
    }
    for_each_run<S>(args, at, own, [&](uint8_t *to, run x) { store_run(to, x, at.alpha, false); });
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
