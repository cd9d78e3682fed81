/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse weights and few tokens: any number of rows of A, at most 16 columns of C. A is read once,
 * as fast as memory gives it: one block per SM walks tiles of 16 rows, and each of its 8 warps
 * copies its own slabs of A through a ring of its own in shared memory, several slabs ahead and
 * across tiles, so that loads do not wait at the block's barriers.
 *
 * Warp w owns the slabs w, w + 8, ... of K, of A and of B. Its slabs of B come in once, each beside
 * the first slab of A that needs it, and stay as they are. Tiles go in groups: a slab of B is
 * decoded once for all tiles of a group, and a warp's sums of these wait in shared memory for its
 * next slab. At the end of a group the block adds its warps' sums in warp order and stores.
 */
#include "epilogue.cuh"
#include "gemm_args.h"
#include "warp_slab.cuh"

static constexpr int WARPS = 8, THREADS = 32 * WARPS;
static constexpr int TILE_M = 16;

/* Bytes of a slab's row, and offsets in a slab. The rows of A stand as dense as they can: lane
 * L = 4g + q finds its 16 or 4 bytes of row g at the L-th place. In a row of B chunk c of 16 bytes
 * stands at place c ^ row, or all rows would start at the same bank. */
static constexpr int A_ROW = SLAB_K / 4, B_ROW = SLAB_K / 2, SCALE_ROW = SLAB_K / 16;
static constexpr int META = TILE_M * A_ROW, A_SCALE = 2 * META;
static constexpr int A_SLAB = A_SCALE + TILE_M * SCALE_ROW;
template <int N_TILES>
static constexpr int B_SCALE = N_TILES * 8 * B_ROW;
template <int N_TILES>
static constexpr int B_SLAB = B_SCALE<N_TILES> + N_TILES * 8 * SCALE_ROW;

/* Parts of shared memory. DEPTH: slabs in a warp's ring. GROUP: tiles in a group. */
template <int N_TILES, int DEPTH, int GROUP>
struct parts {
    static constexpr int WARP_RING = DEPTH * A_SLAB;
    static constexpr int TILE_SUMS = N_TILES * 512, WARP_SUMS = GROUP * TILE_SUMS;
    static constexpr int SUMS = WARPS * WARP_RING, B = SUMS + WARPS * WARP_SUMS;
};

/* The order in which a warp goes through its slabs of A: groups of tiles, in a group its slabs of
 * K, for each of these the tiles. */
struct walk {
    uint32_t tiles, slabs;      /* of all */
    uint32_t tile_step;         /* from a tile of this block to its next */
    uint32_t stride;            /* from a group of it to the next */
    uint32_t group, slab, tile; /* group: its first tile */
};

NVS_DEVICE void
advance(walk &at)
{
    at.tile += at.tile_step;
    if (at.tile < at.tiles && at.tile < at.group + at.stride)
        return;
    at.slab += WARPS;
    if (at.slab >= at.slabs) {
        at.slab = threadIdx.x / 32;
        at.group += at.stride;
    }
    at.tile = at.group;
}

/* A warp's slab of A. Rows past the last are zeros. */
NVS_DEVICE void
copy_a(const nvs_gemm_args &args, const walk &at, uint32_t slot)
{
    const uint32_t lane = threadIdx.x % 32, m = (uint32_t)args.m;
    const uint32_t vals_ld = (uint32_t)args.a_vals_ld, meta_ld = (uint32_t)args.a_meta_ld;
    const uint32_t row = at.tile * TILE_M + lane / 4, scale_row = at.tile * TILE_M + lane;
    const uint32_t byte = at.slab * A_ROW + lane % 4 * 16;
    const uint8_t *vals = args.a_vals + byte + (uint64_t)row * vals_ld;
    const uint8_t *meta = args.a_meta + byte + (uint64_t)row * meta_ld;
    const uint32_t to = slot + lane * 16;
    cp_async_16_of_line(to, vals, row < m);
    cp_async_16_of_line(to + META, meta, row < m);
    cp_async_16_of_line(to + 8 * A_ROW, vals + 8 * (uint64_t)vals_ld, row + 8 < m);
    cp_async_16_of_line(to + META + 8 * A_ROW, meta + 8 * (uint64_t)meta_ld, row + 8 < m);
    if (lane < TILE_M)
        cp_async_16_of_line(to + A_SCALE,
                            args.a_scale + at.slab * SCALE_ROW +
                                (uint64_t)scale_row * (uint32_t)args.a_scale_ld,
                            scale_row < m);
}

/* A warp's slab of B. Columns past the last are zeros. */
template <int N_TILES>
NVS_DEVICE void
copy_b(const nvs_gemm_args &args, uint32_t slab, uint32_t to)
{
    const uint32_t lane = threadIdx.x % 32, n = (uint32_t)args.n;
    const uint32_t chunk = lane % 8, row = lane / 8;
    const uint8_t *from = args.b_fp4 + slab * B_ROW + chunk * 16;
#pragma unroll
    for (int r = 0; r < 8 * N_TILES; r += 4)
        cp_async_16(to + (row + r) * B_ROW + (chunk ^ ((row + r) & 7)) * 16,
                    from + (uint64_t)(row + r) * (uint32_t)args.b_fp4_ld, row + r < n);
    if (lane < 8 * N_TILES)
        cp_async_16(to + B_SCALE<N_TILES> + lane * SCALE_ROW,
                    args.b_scale + slab * SCALE_ROW + (uint64_t)lane * (uint32_t)args.b_scale_ld,
                    lane < n);
}

/* All of the lane's B registers of a slab. */
template <int N_TILES>
NVS_DEVICE void
decode_b(uint32_t slab, uint32_t (&b)[N_TILES][BLOCKS][2][4])
{
    const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
        uint4 codes[2][2];
        uint32_t scales[2][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint32_t row = slab + (8 * n + g) * B_ROW, segment = q / 2 + 2 * h;
            codes[h][0] = ld_shared_v4(row + ((2 * segment) ^ g) * 16);
            codes[h][1] = ld_shared_v4(row + ((2 * segment + 1) ^ g) * 16);
            decode_scales(ld_shared_u32(slab + B_SCALE<N_TILES> + (8 * n + g) * SCALE_ROW +
                                        segment * (SEGMENT / 16)),
                          scales[h]);
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            uint32_t words[2][2], scale[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                words[h][0] = word_of(codes[h][i / 2], 2 * (i & 1));
                words[h][1] = word_of(codes[h][i / 2], 2 * (i & 1) + 1);
                scale[h] = broadcast_half(scales[h][i / 2], i & 1);
            }
            decode_column_block(words, scale, column_selector(q), b[n][i]);
        }
    }
}

/* A lane's share of a slab of A, rows g and g + 8. */
struct a_share {
    uint4 vals[2], meta[2];
    uint32_t scales[2];
};

NVS_DEVICE a_share
load_a(uint32_t slot)
{
    const uint32_t lane = threadIdx.x % 32;
    a_share a;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        a.meta[r] = ld_shared_v4(slot + META + 8 * r * A_ROW + lane * 16);
        a.vals[r] = ld_shared_v4(slot + 8 * r * A_ROW + lane * 16);
        a.scales[r] = ld_shared_u32(slot + A_SCALE + 8 * r * SCALE_ROW + lane * 4);
    }
    return a;
}

/* Adds a slab of A times a slab of B. */
template <int N_TILES>
NVS_DEVICE void
multiply(const a_share &a, const quad_transpose &transpose,
         const uint32_t (&b)[N_TILES][BLOCKS][2][4], float (&sum)[N_TILES][4])
{
    uint32_t scales[2][2];
    decode_scales(a.scales[0], scales[0]);
    decode_scales(a.scales[1], scales[1]);
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        uint32_t rows[2][4];
        const uint32_t metadata = quad_metadata(word_of(a.meta[0], i), word_of(a.meta[1], i),
                                                transpose);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            decode_row_block(word_of(a.vals[r], i), broadcast_half(scales[r][i / 2], i & 1),
                             rows[r]);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
            multiply_block(sum[n], rows[0], rows[1], b[n][i], metadata);
    }
}

/* A lane's four sums of an n8 tile stand at this place of 32: reduce_and_store() reads the sums of
 * 8 rows at a time, and their places must differ in the low three bits. */
NVS_DEVICE uint32_t
place_of_sums(uint32_t lane)
{
    return lane ^ lane >> 3;
}

template <int N_TILES>
NVS_DEVICE void
load_sums(uint32_t from, float (&sum)[N_TILES][4])
{
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
        const float4 v = ld_shared_v4f(from + n * 512);
        sum[n][0] = v.x, sum[n][1] = v.y, sum[n][2] = v.z, sum[n][3] = v.w;
    }
}

template <int N_TILES>
NVS_DEVICE void
store_sums(uint32_t to, const float (&sum)[N_TILES][4])
{
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
        st_shared_v4(to + n * 512, sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
}

/* Adds the warps' sums of a group in warp order and stores its tiles. Neighbouring threads take
 * neighbouring rows. */
template <int N_TILES, int GROUP>
NVS_DEVICE void
reduce_and_store(const nvs_gemm_args &args, const walk &at, uint32_t sums)
{
    using P = parts<N_TILES, 1, GROUP>;
    constexpr int ELEMENTS = TILE_M * 8 * N_TILES;
    const uint32_t row = threadIdx.x % TILE_M, column = threadIdx.x % ELEMENTS / TILE_M;
    const uint32_t register_of_lane = row / 8 * 2 + column % 2;
    uint32_t t = threadIdx.x / ELEMENTS, tile = at.group + t * at.tile_step;
    uint32_t from = sums + t * P::TILE_SUMS + column / 8 * 512 +
                    place_of_sums(row % 8 * 4 + column % 8 / 2) * 16 + register_of_lane * 4;
    constexpr uint32_t TILES_AT_A_TIME = THREADS / ELEMENTS;
    for (; t < GROUP && tile < at.tiles; t += TILES_AT_A_TIME) {
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            total += ld_shared_f32(from + w * P::WARP_SUMS);
        store_element(args, tile * TILE_M + row, column, total);
        tile += TILES_AT_A_TIME * at.tile_step;
        from += TILES_AT_A_TIME * P::TILE_SUMS;
    }
}

template <int N_TILES, int DEPTH, int GROUP>
NVS_DEVICE void
gemm(const nvs_gemm_args &parameters)
{
    using P = parts<N_TILES, DEPTH, GROUP>;
    nvs_gemm_args args = load_args(parameters);
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    const uint32_t shared = shared_address(dynamic_shared);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ring = shared + warp * P::WARP_RING, end_of_ring = ring + P::WARP_RING;
    const uint32_t sums = shared + P::SUMS + warp * P::WARP_SUMS + place_of_sums(lane) * 16;
    const quad_transpose transpose = quad_transpose_of(lane % 4);
    walk at;
    at.tiles = ((uint32_t)args.m + TILE_M - 1) / TILE_M;
    at.slabs = (uint32_t)args.k / SLAB_K;
    at.tile_step = gridDim.x;
    at.stride = GROUP * gridDim.x;
    at.group = at.tile = blockIdx.x;
    at.slab = warp;
    walk ahead = at;
    /* The next slab, if there is one; one group of copies either way. */
    const auto copy_next = [&](uint32_t to) {
        if (ahead.group < ahead.tiles && warp < ahead.slabs) {
            if (ahead.tile == blockIdx.x)
                copy_b<N_TILES>(args, ahead.slab, shared + P::B + ahead.slab * B_SLAB<N_TILES>);
            copy_a(args, ahead, to);
            advance(ahead);
        }
        cp_async_commit_group();
    };
#pragma unroll 1
    for (uint32_t slot = ring; slot < end_of_ring - A_SLAB; slot += A_SLAB)
        copy_next(slot);
    args.alpha = load_alpha(args);
    args.alpha_ptr = nullptr;
    if (warp >= at.slabs)
        for (int t = 0; t < P::WARP_SUMS; t += 512)
            st_shared_v4(sums + t, 0.f, 0.f, 0.f, 0.f);
    uint32_t slot = ring, last_slot = end_of_ring - A_SLAB;
    uint32_t b[N_TILES][BLOCKS][2][4], decoded = at.slabs; /* the slab that is in b, none yet */
    for (; at.group < at.tiles; at.group += at.stride) {
        for (at.slab = warp; at.slab < at.slabs; at.slab += WARPS) {
            uint32_t sums_at = sums;
            for (at.tile = at.group; at.tile < at.tiles && at.tile < at.group + at.stride;
                 at.tile += at.tile_step) {
                float sum[N_TILES][4] = {};
                cp_async_wait_group<DEPTH - 2>();
                __syncwarp();
                const a_share a = load_a(slot);
                if (at.slab != warp)
                    load_sums<N_TILES>(sums_at, sum);
                copy_next(last_slot);
                if (at.slab != decoded)
                    decode_b<N_TILES>(shared + P::B + at.slab * B_SLAB<N_TILES>, b);
                decoded = at.slab;
                multiply<N_TILES>(a, transpose, b, sum);
                store_sums<N_TILES>(sums_at, sum);
                sums_at += P::TILE_SUMS;
                last_slot = slot;
                slot = slot + A_SLAB == end_of_ring ? ring : slot + A_SLAB;
            }
        }
        __syncthreads();
        reduce_and_store<N_TILES, GROUP>(args, at, shared + P::SUMS);
        __syncthreads();
    }
}

#define KERNEL(NAME, N_TILES, DEPTH, GROUP, K_MAX, SHARED)                                         \
    static_assert(parts<N_TILES, DEPTH, GROUP>::B + K_MAX / SLAB_K * B_SLAB<N_TILES> == SHARED,    \
                  "gemm_args.h");                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        NAME(const __grid_constant__ nvs_gemm_args args)                                           \
    {                                                                                              \
        gemm<N_TILES, DEPTH, GROUP>(args);                                                         \
    }

/* K as long as shared memory allows. */
KERNEL(nvs_gemm_sm90_stream8, 1, 6, 4, 23296, NVS_SM90_STREAM8_SHARED)
KERNEL(nvs_gemm_sm90_stream16, 2, 6, 4, 9728, NVS_SM90_STREAM16_SHARED)
