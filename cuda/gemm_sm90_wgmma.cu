/* SPDX-License-Identifier: Apache-2.0
 *
 * 64 rows per warpgroup: sparse wgmma, A decoded into registers, B into shared memory.
 *
 * A cluster of SPLIT blocks computes 64 * WG_M rows x BN columns of C. Its blocks take turns along
 * K, a stage of WG_K * DEPTH * 256 columns each. All threads copy a stage's operands to shared
 * memory in whole lines, in DEPTH groups that are decoded as they arrive; superslab (d, part), 256
 * columns, belongs to one of WG_K parts of the block: WG_M warpgroups that share a decoded B tile.
 * The sums meet first inside the block, then between the blocks by st.async: remote shared memory
 * is slow, so it carries no more than it must.
 *
 * K inside a superslab is permuted as in gemm_sm90_warp.cu: lane q of a quad owns the columns
 * 64q .. 64q + 63 of A. Slab i (64 of the MMA's k) holds block i of the four segments: group t of
 * segment s is at k 16t + 4s, so a 16-byte chunk of B is group t of segments 2c and 2c + 1.
 */
#include "decode.cuh"
#include "epilogue.cuh"
#include "gemm_args.h"
#include "ptx.cuh"
#include "stage.cuh"
#include "wgmma.cuh"

static constexpr int SUPERSLAB = 256, SEGMENT = 64, SLABS = 4;

template <int SPLIT_, int WG_M_, int WG_K_, int DEPTH_, int BN_>
struct shape {
    static constexpr int SPLIT = SPLIT_, WG_M = WG_M_, WG_K = WG_K_, DEPTH = DEPTH_, BN = BN_;
    static constexpr int BM = 64 * WG_M, PART_THREADS = 128 * WG_M, THREADS = PART_THREADS * WG_K;
    static constexpr int GROUP_K = WG_K * SUPERSLAB, STAGE_K = DEPTH * GROUP_K;
    static constexpr int UNITS = BN * 4 / PART_THREADS; /* see decode_b() */

    /* Pitches: neighbouring rows 64 (A) or 16 bytes (the rest) on in the 128 of the banks. */
    static constexpr int A_PITCH = STAGE_K / 4 + 64, B_PITCH = STAGE_K / 2 + 16;
    static constexpr int SCALE_PITCH = STAGE_K / 16 + 16;

    /* Byte offsets: decoded B tiles (1024-aligned), sums, what other blocks send, raw stages. */
    static constexpr int SLAB_BYTES = BN * 128, TILE_BYTES = SLABS * SLAB_BYTES;
    static constexpr int VECTORS = BN / 8; /* float4 that a thread holds of the tile */
    static constexpr int OWN = VECTORS / WG_K;
    static constexpr int VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int SUMS = WG_K * DEPTH * TILE_BYTES;
    static constexpr int RECEIVED = SUMS + WG_K * VECTORS * VECTOR_BYTES;
    static constexpr int RAW = RECEIVED + (SPLIT - 1) * VECTORS / SPLIT * VECTOR_BYTES;
    static constexpr int VALS = 0, META = VALS + BM * A_PITCH, CODES = META + BM * A_PITCH;
    static constexpr int A_SCALE = CODES + BN * B_PITCH, B_SCALE = A_SCALE + BM * SCALE_PITCH;
    static constexpr int RAW_BYTES = B_SCALE + BN * SCALE_PITCH;

    static_assert(UNITS * PART_THREADS == BN * 4 && OWN * WG_K == VECTORS, "whole shares");
    static_assert(SPLIT <= 2 && WG_K % SPLIT == 0, "one partner");
};

/* Group d of the stage that starts at column k0. */
template <class S>
NVS_DEVICE void
copy_group(const nvs_gemm_args &args, uint32_t raw, uint32_t row0, uint32_t column0, uint32_t k0,
           int d)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    const uint32_t at = k0 + d * S::GROUP_K;
    copy_rows<S::THREADS, S::BN, S::GROUP_K / 32, S::B_PITCH, 16>(
        raw + S::CODES + d * (S::GROUP_K / 2), args.b_fp4, (uint32_t)args.b_fp4_ld, column0, n,
        at / 2, k / 2);
    copy_rows<S::THREADS, S::BM, S::GROUP_K / 64, S::A_PITCH, 16>(
        raw + S::VALS + d * (S::GROUP_K / 4), args.a_vals, (uint32_t)args.a_vals_ld, row0, m,
        at / 4, k / 4);
    copy_rows<S::THREADS, S::BM, S::GROUP_K / 64, S::A_PITCH, 16>(
        raw + S::META + d * (S::GROUP_K / 4), args.a_meta, (uint32_t)args.a_meta_ld, row0, m,
        at / 4, k / 4);
}

template <class S>
NVS_DEVICE void
copy_stage(const nvs_gemm_args &args, uint32_t raw, uint32_t row0, uint32_t column0, uint32_t k0)
{
    const uint32_t k = (uint32_t)args.k;
    copy_rows<S::THREADS, S::BN, S::STAGE_K / 64, S::SCALE_PITCH, 4>(
        raw + S::B_SCALE, args.b_scale, (uint32_t)args.b_scale_ld, column0, (uint32_t)args.n,
        k0 / 16, k / 16);
    copy_rows<S::THREADS, S::BM, S::STAGE_K / 64, S::SCALE_PITCH, 4>(
        raw + S::A_SCALE, args.a_scale, (uint32_t)args.a_scale_ld, row0, (uint32_t)args.m, k0 / 16,
        k / 16);
#pragma unroll
    for (int d = 0; d < S::DEPTH; ++d) {
        copy_group<S>(args, raw, row0, column0, k0, d);
        cp_async_commit_group();
    }
}

/* A thread decodes UNITS x half (32 columns) of two neighbouring segments of a row of B. Rows are
 * dealt to lanes so that neither the reads nor the swizzled 16-byte writes of a quarter-warp meet
 * in a bank: four rows that differ both in row / 2 and in row % 4. */
struct b_place {
    uint32_t row, pair, half;
};

NVS_DEVICE b_place
place_b(void)
{
    const uint32_t lane = threadIdx.x % 32, i = lane / 2 % 4;
    b_place at;
    at.pair = lane % 2;
    at.half = lane / 16;
    at.row = 2 * i + ((i ^ (i >> 1) ^ (lane >> 3)) & 1);
    return at;
}

template <class S>
NVS_DEVICE void
decode_b(uint32_t codes, uint32_t scale, uint32_t tile, const b_place &at)
{
    const uint4 raw[2] = {ld_shared_v4(codes), ld_shared_v4(codes + SEGMENT / 2)};
    const uint2 words = ld_shared_v2(scale);
    uint32_t scales[2]; /* of this half's two blocks, segment by segment */
    decode_scales(prmt(words.x, words.y, at.half ? 0x7632u : 0x5410u), scales);
#pragma unroll
    for (int i = 0; i < 2; ++i) { /* block 2 * half + i */
        uint32_t x[4][2][2];      /* group, segment, pair of columns */
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            decode_even_odd(word_of(raw[s], 2 * i), x[0][s], x[1][s]);
            decode_even_odd(word_of(raw[s], 2 * i + 1), x[2][s], x[3][s]);
        }
        const uint32_t s0 = broadcast_half(scales[0], i), s1 = broadcast_half(scales[1], i);
#pragma unroll
        for (int t = 0; t < 4; ++t)
            st_shared_v4(tile + i * S::SLAB_BYTES + (((2 * t + at.pair) ^ at.row) << 4),
                         mul_f16x2(x[t][0][0], s0), mul_f16x2(x[t][0][1], s0),
                         mul_f16x2(x[t][1][0], s1), mul_f16x2(x[t][1][1], s1));
    }
}

struct a_share { /* rows g and g + 8, this lane's segment */
    uint4 vals[2], meta[2];
    uint32_t scale[2][2];
};

template <class S>
NVS_DEVICE void
load_a(uint32_t vals, uint32_t scale, a_share &a)
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        a.vals[r] = ld_shared_v4(vals + 8 * r * S::A_PITCH);
        a.meta[r] = ld_shared_v4(vals + 8 * r * S::A_PITCH + S::META - S::VALS);
        decode_scales(ld_shared_u32(scale + 8 * r * S::SCALE_PITCH), a.scale[r]);
    }
}

/* Slab i of A, both its k32 steps, in the registers that wgmma reads. */
NVS_DEVICE void
decode_a(const a_share &a, int slab, const quad_transpose &transpose, uint32_t (&step)[2][4],
         uint32_t &meta)
{
    meta = swap_index_bits(
        quad_metadata(word_of(a.meta[0], slab), word_of(a.meta[1], slab), transpose));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        uint32_t f[4];
        decode_neighbours(word_of(a.vals[r], slab), f);
        const uint32_t scale = broadcast_half(a.scale[r][slab / 2], slab & 1);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            step[i / 2][2 * (i % 2) + r] = mul_f16x2(f[i], scale);
    }
}

/* Where a thread reads in a raw stage and writes in its part's tiles. */
struct place {
    uint32_t codes, b_scale, tile, vals, a_scale;
    uint64_t descriptor;
    b_place b;
    quad_transpose transpose;
};

template <class S>
NVS_DEVICE place
place_thread(uint32_t shared)
{
    const uint32_t part = threadIdx.x / S::PART_THREADS, thread = threadIdx.x % S::PART_THREADS;
    const uint32_t warp = thread / 32, g = thread % 32 / 4, q = thread % 4;
    const uint32_t raw = shared + S::RAW, tile = shared + part * S::TILE_BYTES;
    place at;
    at.b = place_b();
    const uint32_t b_row = 8 * warp + at.b.row, a_row = 16 * warp + g;
    at.codes = raw + S::CODES + b_row * S::B_PITCH + part * (SUPERSLAB / 2) + at.b.pair * SEGMENT +
               at.b.half * 16;
    at.b_scale = raw + S::B_SCALE + b_row * S::SCALE_PITCH + part * (SUPERSLAB / 16) +
                 at.b.pair * (SEGMENT / 8);
    at.tile = tile + b_row * 128 + at.b.half * (2 * S::SLAB_BYTES);
    at.vals = raw + S::VALS + a_row * S::A_PITCH + part * (SUPERSLAB / 4) + q * (SEGMENT / 4);
    at.a_scale = raw + S::A_SCALE + a_row * S::SCALE_PITCH + part * (SUPERSLAB / 16) +
                 q * (SEGMENT / 16);
    at.descriptor = swizzle128_descriptor(tile);
    at.transpose = quad_transpose_of(q);
    return at;
}

/* Superslab d of this part: decode, then eight k32 steps that run on behind. */
template <class S>
NVS_DEVICE void
multiply(const place &at, uint32_t stage_offset, int d, float (&sum)[4 * S::VECTORS])
{
    const uint32_t part = threadIdx.x / S::PART_THREADS, tile = d * S::WG_K * S::TILE_BYTES;
#pragma unroll
    for (int u = 0; u < S::UNITS; ++u)
        decode_b<S>(at.codes + stage_offset + d * (S::GROUP_K / 2) + u * 32 * S::WG_M * S::B_PITCH,
                    at.b_scale + stage_offset + d * (S::GROUP_K / 16) +
                        u * 32 * S::WG_M * S::SCALE_PITCH,
                    at.tile + tile + u * 32 * S::WG_M * 128, at.b);
    a_share a;
    load_a<S>(at.vals + stage_offset + d * (S::GROUP_K / 4),
              at.a_scale + stage_offset + d * (S::GROUP_K / 16), a);
    fence_proxy_async();
    uint32_t step[SLABS][2][4], meta[SLABS];
#pragma unroll
    for (int i = 0; i < SLABS; ++i) {
        decode_a(a, i, at.transpose, step[i], meta[i]);
        if (i == 0)
            bar_sync(1 + part, S::PART_THREADS);
        const uint64_t slab = at.descriptor + ((tile + i * S::SLAB_BYTES) >> 4);
        wgmma_fence();
        wgmma_sp_k32<0>(sum, step[i][0], slab, meta[i]);
        wgmma_sp_k32<1>(sum, step[i][1], slab + 4, meta[i]);
        wgmma_commit_group();
    }
}

NVS_DEVICE void
add(float4 &sum, const float4 &v)
{
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
}

/* Adds the parts' sums in part order: this part is left with vectors part * OWN and on. */
template <class S>
NVS_DEVICE void
add_parts(uint32_t mailbox, uint32_t part, const float (&sum)[4 * S::VECTORS],
          float4 (&own)[S::OWN])
{
    const uint32_t thread = threadIdx.x % S::PART_THREADS * 16;
#pragma unroll
    for (int v = 0; v < S::VECTORS; ++v)
        st_shared_v4(mailbox + (part * S::VECTORS + v) * S::VECTOR_BYTES + thread, sum[4 * v],
                     sum[4 * v + 1], sum[4 * v + 2], sum[4 * v + 3]);
    __syncthreads();
#pragma unroll
    for (int o = 0; o < S::OWN; ++o) {
        const uint32_t at = mailbox + (part * S::OWN + o) * S::VECTOR_BYTES + thread;
        own[o] = ld_shared_v4f(at);
#pragma unroll
        for (int p = 1; p < S::WG_K; ++p)
            add(own[o], ld_shared_v4f(at + p * S::VECTORS * S::VECTOR_BYTES));
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

/* LONG_K: more than one stage. The short form is straight-line code: a jump over instructions that
 * are not there yet costs more than many instructions. */
template <class S, bool LONG_K>
NVS_DEVICE void
gemm(const nvs_gemm_args &parameters)
{
    const nvs_gemm_args args = load_args(parameters);
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ __align__(8) uint64_t exchange;
    const uint32_t shared = (shared_address(dynamic_shared) + 1023u) & ~1023u;
    const uint32_t barrier = shared_address(&exchange);
    const uint32_t rank = S::SPLIT > 1 ? blockIdx.x % S::SPLIT : 0;
    const uint32_t row0 = row_of_tiles() * S::BM, column0 = blockIdx.x / S::SPLIT * S::BN;
    const uint32_t part = threadIdx.x / S::PART_THREADS, k = (uint32_t)args.k;

    copy_stage<S>(args, shared + S::RAW, row0, column0, rank * S::STAGE_K);
    if (S::SPLIT > 1) {
        if (threadIdx.x == 0) {
            mbarrier_init(barrier, 1);
            mbarrier_arrive_expect_tx(barrier, S::VECTORS / S::SPLIT * S::VECTOR_BYTES);
            fence_mbarrier_init_cluster();
        }
        barrier_cluster_arrive_relaxed();
    }
    const place at = place_thread<S>(shared);
    float sum[4 * S::VECTORS] = {};
    uint32_t stage_offset = 0;
    for (uint32_t k0 = rank * S::STAGE_K;;) {
        k0 += S::SPLIT * S::STAGE_K;
        const bool more = LONG_K && k0 < k;
        if (more)
            copy_stage<S>(args, shared + S::RAW + (stage_offset ^ S::RAW_BYTES), row0, column0, k0);
#pragma unroll
        for (int d = 0; d < S::DEPTH; ++d) {
            if (more)
                cp_async_wait_group(2 * S::DEPTH - 1 - d);
            else
                cp_async_wait_group(S::DEPTH - 1 - d);
            __syncthreads();
            multiply<S>(at, stage_offset, d, sum);
        }
        wgmma_wait_all();
        if (!more)
            break;
        stage_offset ^= S::RAW_BYTES;
        __syncthreads(); /* before the tiles and the older raw stage are written again */
    }
    float4 own[S::OWN];
    add_parts<S>(shared + S::SUMS, part, sum, own);
    if (S::SPLIT == 1 || add_blocks<S>(shared + S::RECEIVED, barrier, rank, part, own))
        store_own<S>(args, parameters, row0, column0, part, own);
}

#define KERNEL(NAME, LONG_K, ...)                                                                  \
    extern "C" __global__ void __launch_bounds__(shape<__VA_ARGS__>::THREADS, 1)                   \
        NAME(const __grid_constant__ nvs_gemm_args args)                                           \
    {                                                                                              \
        gemm<shape<__VA_ARGS__>, LONG_K>(args);                                                    \
    }

KERNEL(nvs_gemm_sm90_m64n32, false, 2, 1, 2, 2, 32)
KERNEL(nvs_gemm_sm90_m64n32_long, true, 2, 1, 2, 2, 32)
