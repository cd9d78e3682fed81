/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse weights and few tokens: any number of rows of A, at most 16 columns of C. A is read once,
 * as fast as memory gives it: one block per SM walks tiles of 16 rows, and each of its 8 warps
 * copies its own slabs of A through a ring of its own in shared memory, several ahead and across
 * tiles, so that loads do not wait at the block's barriers. Where K has slabs for half of the warps
 * these are two teams, which take turns at the tiles.
 *
 * All of B stays in shared memory as it is: first its scales, then a warp's slabs of codes, each
 * beside the first slab of A that needs it; teams, which need the same ones, have them at once. Tiles
 * go in groups: a slab of B is decoded once for a group, and a warp's sums of its tiles wait in
 * shared memory for its next slab. At the end of a group the block adds its warps' sums in warp order
 * and stores.
 *
 * The kernels for much of A take two neighbouring slabs at a time, whole lines of 128 bytes: half as
 * many requests to L2. Where there is little, one at a time does better: the first ones are decoded
 * earlier, and more warps have some.
 */
#include "epilogue.cuh"
#include "gemm_args.h"
#include "stream_walk.cuh"
#include "warp_slab.cuh"

/* Bytes of a slab's row of B; chunk c of 16 bytes stands at place c ^ row, or all rows would start
 * at the same bank. */
static constexpr int B_ROW = SLAB_K / 2, A_SLAB_ROW = SLAB_K / 4, SCALE_ROW = SLAB_K / 16;
template <int N_TILES>
static constexpr int B_SLAB = N_TILES * 8 * B_ROW;

/* B's scales go by lines of eight slabs, which the warps share: by slabs, every SM would ask L2 for
 * a line eight times, all at the same time. */
static constexpr int LINE_SLABS = 8, LINE = LINE_SLABS * SCALE_ROW;
template <int N_TILES>
static constexpr int SCALE_LINES = N_TILES * 8 * LINE;

/* SLABS of A side by side, which a warp copies at a time, in shared memory: bytes of a row, offsets.
 * With one slab, lane L = 4g + q finds its 16 bytes of row g at the L-th place. With two, a row is a
 * line, and odd rows swap the slabs, so that eight lanes meet all banks. */
template <int SLABS>
struct a_slabs {
    static constexpr int ROW = SLABS * A_SLAB_ROW, SCALE = SLABS * SCALE_ROW;
    static constexpr int META = TILE_M * ROW, SCALES = 2 * META, BYTES = SCALES + TILE_M * SCALE;
    static_assert(SLABS == 1 || SLABS == 2, "what place() and scale_place() know");

    NVS_DEVICE uint32_t
    place(uint32_t row, uint32_t chunk)
    {
        return row * ROW + (chunk ^ (SLABS == 2 ? (row & 1) << 2 : 0)) * 16;
    }

    NVS_DEVICE uint32_t
    scale_place(uint32_t row, uint32_t slab)
    {
        return SCALES + row * SCALE + (slab ^ (SLABS == 2 ? row >> 2 & 1 : 0)) * SCALE_ROW;
    }
};

/* Parts of shared memory. DEPTH: copies in a warp's ring. GROUP: tiles in a group. */
template <int SLABS, int N_TILES, int DEPTH, int GROUP>
struct parts {
    static constexpr int WARP_RING = DEPTH * a_slabs<SLABS>::BYTES;
    static constexpr int TILE_SUMS = N_TILES * 512, WARP_SUMS = GROUP * TILE_SUMS;
    static constexpr int SUMS = WARPS * WARP_RING, B_SCALES = SUMS + WARPS * WARP_SUMS;

    /* Where the codes of `slabs` slabs of B begin; all bytes with them. */
    NVS_DEVICE constexpr int
    codes(int slabs)
    {
        return B_SCALES + (slabs + LINE_SLABS - 1) / LINE_SLABS * SCALE_LINES<N_TILES>;
    }

    NVS_DEVICE constexpr int
    bytes(int slabs)
    {
        return codes(slabs) + slabs * B_SLAB<N_TILES>;
    }
};

/* Where B's codes and scales begin; the number of slabs is known at run time. */
struct b_place {
    uint32_t codes, scales;
};

/* Where a row's scales of a slab stand: those of eight rows in different banks. */
template <int N_TILES>
NVS_DEVICE uint32_t
scales_of(const b_place &b, uint32_t slab, uint32_t row)
{
    return b.scales + slab / LINE_SLABS * SCALE_LINES<N_TILES> + row * LINE +
           ((slab ^ row) % LINE_SLABS) * SCALE_ROW;
}

/* A warp's SLABS of A. Rows past the last, and slabs past K, are zeros. */
template <int SLABS>
NVS_DEVICE void
copy_a(const nvs_gemm_args &args, const walk &at, uint32_t slot)
{
    using A = a_slabs<SLABS>;
    constexpr int CHUNKS = A::ROW / 16, ROWS = 32 / CHUNKS; /* of a row; a copy's rows */
    const uint32_t lane = threadIdx.x % 32, m = (uint32_t)args.m;
    const uint32_t vals_ld = (uint32_t)args.a_vals_ld, meta_ld = (uint32_t)args.a_meta_ld;
    const uint32_t row = at.tile * TILE_M + lane / CHUNKS;
    const uint32_t byte = at.slab * A_SLAB_ROW + lane % CHUNKS * 16;
    const uint32_t rows = SLABS == 1 || byte < (uint32_t)args.k / 4 ? m : 0;
    const uint8_t *vals = args.a_vals + byte + (uint64_t)row * vals_ld;
    const uint8_t *meta = args.a_meta + byte + (uint64_t)row * meta_ld;
    const uint32_t to = slot + A::place(lane / CHUNKS, lane % CHUNKS);
#pragma unroll
    for (int r = 0; r < TILE_M; r += ROWS) {
        cp_async_16_of_line(to + r * A::ROW, vals, row + r < rows);
        cp_async_16_of_line(to + r * A::ROW + A::META, meta, row + r < rows);
        vals += ROWS * (uint64_t)vals_ld;
        meta += ROWS * (uint64_t)meta_ld;
    }
    const uint32_t scale_row = lane / SLABS, scale_byte = at.slab * SCALE_ROW + lane % SLABS * 16;
    if (lane < TILE_M * SLABS)
        cp_async_16_of_line(
            slot + A::scale_place(scale_row, lane % SLABS),
            args.a_scale + scale_byte +
                (uint64_t)(at.tile * TILE_M + scale_row) * (uint32_t)args.a_scale_ld,
            at.tile * TILE_M + scale_row < m && (SLABS == 1 || scale_byte < (uint32_t)args.k / 16));
}

/* All of B's scales, by all threads, in whole lines, also the last. Columns past the last, and slabs
 * past K, are zeros. */
template <int N_TILES>
NVS_DEVICE void
copy_b_scales(const nvs_gemm_args &args, const b_place &b, uint32_t slabs)
{
    constexpr uint32_t ROWS = 8 * N_TILES;
    for (uint32_t i = threadIdx.x; i / ROWS / LINE_SLABS * LINE_SLABS < slabs; i += THREADS) {
        const uint32_t line = i / ROWS / LINE_SLABS, row = i / LINE_SLABS % ROWS;
        const uint32_t slab = line * LINE_SLABS + i % LINE_SLABS;
        cp_async_16(scales_of<N_TILES>(b, slab, row),
                    args.b_scale + slab * SCALE_ROW + (uint64_t)row * (uint32_t)args.b_scale_ld,
                    slab < slabs && row < (uint32_t)args.n);
    }
}

/* A warp's slab of B's codes. Columns past the last are zeros. */
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
}

/* All of the lane's B registers of a slab. */
template <int N_TILES>
NVS_DEVICE void
decode_b(const b_place &at, uint32_t slab, uint32_t (&b)[N_TILES][BLOCKS][2][4])
{
    const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
        uint4 codes[2][2];
        uint32_t scales[2][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint32_t row = at.codes + slab * B_SLAB<N_TILES> + (8 * n + g) * B_ROW;
            const uint32_t segment = q / 2 + 2 * h;
            codes[h][0] = ld_shared_v4(row + ((2 * segment) ^ g) * 16);
            codes[h][1] = ld_shared_v4(row + ((2 * segment + 1) ^ g) * 16);
            decode_scales(
                ld_shared_u32(scales_of<N_TILES>(at, slab, 8 * n + g) + segment * (SEGMENT / 16)),
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

template <int SLABS>
NVS_DEVICE a_share
load_a(uint32_t slot, uint32_t slab)
{
    using A = a_slabs<SLABS>;
    const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    a_share a;
#pragma unroll
    for (int r = 0; r < 2; ++r) { /* eight rows on, places are as here */
        const uint32_t vals = slot + 8 * r * A::ROW + A::place(g, slab * 4 + q);
        a.meta[r] = ld_shared_v4(vals + A::META);
        a.vals[r] = ld_shared_v4(vals);
        a.scales[r] = ld_shared_u32(slot + 8 * r * A::SCALE + A::scale_place(g, slab) + q * 4);
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

/* Adds the warps' sums of a group, of a tile those of its team, in warp order and stores its tiles.
 * Neighbouring threads take neighbouring rows. */
template <int N_TILES, int GROUP, int TEAMS>
NVS_DEVICE void
reduce_and_store(const nvs_gemm_args &args, const walk &at, uint32_t sums)
{
    using P = parts<1, N_TILES, 1, GROUP>;
    constexpr int ELEMENTS = TILE_M * 8 * N_TILES;
    const uint32_t row = threadIdx.x % TILE_M, column = threadIdx.x % ELEMENTS / TILE_M;
    const uint32_t register_of_lane = row / 8 * 2 + column % 2;
    uint32_t t = threadIdx.x / ELEMENTS, tile = at.group + t * gridDim.x;
    uint32_t from = sums + t * P::TILE_SUMS + column / 8 * 512 +
                    place_of_sums(row % 8 * 4 + column % 8 / 2) * 16 + register_of_lane * 4;
    constexpr uint32_t TILES_AT_A_TIME = THREADS / ELEMENTS;
    for (; t < GROUP && tile < at.tiles; t += TILES_AT_A_TIME) {
        const uint32_t team = t % TEAMS * TEAM_WARPS<TEAMS> * P::WARP_SUMS;
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < TEAM_WARPS<TEAMS>; ++w)
            total += ld_shared_f32(from + team + w * P::WARP_SUMS);
        store_element(args, tile * TILE_M + row, column, total);
        tile += TILES_AT_A_TIME * gridDim.x;
        from += TILES_AT_A_TIME * P::TILE_SUMS;
    }
}

/* A warp's B registers of SLABS slabs from `slab` on; of those past the last, zeros. */
template <int SLABS, int N_TILES>
NVS_DEVICE void
decode_b_slabs(const b_place &at, uint32_t slab, uint32_t slabs,
               uint32_t (&b)[SLABS][N_TILES][BLOCKS][2][4])
{
#pragma unroll
    for (int j = 0; j < SLABS; ++j)
        if (j == 0 || slab + j < slabs)
            decode_b<N_TILES>(at, slab + j, b[j]);
        else
            memset(b[j], 0, sizeof(b[j]));
}

/* The next copy of A into slot `to`, if there is one, and B's codes if that is the first to need
 * them; one group of copies either way. */
template <int SLABS, int N_TILES, int TEAMS>
NVS_DEVICE void
copy_next(const nvs_gemm_args &args, walk &ahead, const b_place &b, uint32_t to)
{
    if (ahead.tile < ahead.tiles && ahead.first < ahead.slabs) {
        if (TEAMS == 1 && ahead.tile == blockIdx.x)
#pragma unroll
            for (int j = 0; j < SLABS; ++j)
                if (j == 0 || ahead.slab + j < ahead.slabs)
                    copy_b<N_TILES>(args, ahead.slab + j,
                                    b.codes + (ahead.slab + j) * B_SLAB<N_TILES>);
        copy_a<SLABS>(args, ahead, to);
        advance(ahead);
    }
    cp_async_commit_group();
}

template <int SLABS, int N_TILES, int DEPTH, int GROUP, int TEAMS>
NVS_DEVICE void
gemm(const nvs_gemm_args &parameters)
{
    using P = parts<SLABS, N_TILES, DEPTH, GROUP>;
    constexpr int A_BYTES = a_slabs<SLABS>::BYTES;
    constexpr bool LATE = SLABS * N_TILES > 2; /* registers are scarce */
    nvs_gemm_args args = load_args(parameters);
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    const uint32_t shared = shared_address(dynamic_shared);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ring = shared + warp * P::WARP_RING, end_of_ring = ring + P::WARP_RING;
    const uint32_t sums = shared + P::SUMS + warp * P::WARP_SUMS + place_of_sums(lane) * 16;
    const quad_transpose transpose = quad_transpose_of(lane % 4);
    walk at = start_walk<SLABS, GROUP, TEAMS>(args), ahead = at;
    const b_place b_at = {shared + P::codes(at.slabs), shared + P::B_SCALES};
    copy_b_scales<N_TILES>(args, b_at, at.slabs);
    if (TEAMS > 1 && warp < at.slabs)
        copy_b<N_TILES>(args, warp, b_at.codes + warp * B_SLAB<N_TILES>);
    cp_async_commit_group();
#pragma unroll 1
    for (uint32_t slot = ring; slot < end_of_ring - A_BYTES; slot += A_BYTES)
        copy_next<SLABS, N_TILES, TEAMS>(args, ahead, b_at, slot);
    settle_alpha(args);
    if (at.first >= at.slabs)
        for (int t = 0; t < P::WARP_SUMS; t += 512)
            st_shared_v4(sums + t, 0.f, 0.f, 0.f, 0.f);
    uint32_t slot = ring, last_slot = end_of_ring - A_BYTES;
    uint32_t b[SLABS][N_TILES][BLOCKS][2][4], decoded = at.slabs; /* which is in b; none yet */
    cp_async_wait_group(DEPTH - 1);
    __syncthreads(); /* all scales of B are there, and what teams share */
    for (; at.group < at.tiles; at.group += at.stride) {
        for (at.slab = at.first; at.slab < at.slabs; at.slab += at.slab_step) {
            uint32_t sums_at = sums + warp / TEAM_WARPS<TEAMS> * P::TILE_SUMS;
            for (at.tile = at.group + at.first_tile;
                 at.tile < at.tiles && at.tile < at.group + at.stride; at.tile += at.tile_step) {
                float sum[N_TILES][4] = {};
                cp_async_wait_group(DEPTH - 2);
                __syncwarp();
                a_share a[SLABS];
#pragma unroll
                for (int j = 0; j < (LATE ? 1 : SLABS); ++j)
                    a[j] = load_a<SLABS>(slot, j);
                if (at.slab != at.first)
                    load_sums<N_TILES>(sums_at, sum);
                copy_next<SLABS, N_TILES, TEAMS>(args, ahead, b_at, last_slot);
                if (at.slab != decoded)
                    decode_b_slabs<SLABS, N_TILES>(b_at, at.slab, at.slabs, b);
                decoded = at.slab;
#pragma unroll
                for (int j = 0; j < SLABS; ++j) {
                    if (LATE && j > 0)
                        a[j] = load_a<SLABS>(slot, j);
                    multiply<N_TILES>(a[j], transpose, b[j], sum);
                }
                store_sums<N_TILES>(sums_at, sum);
                sums_at += TEAMS * P::TILE_SUMS;
                last_slot = slot;
                slot = slot + A_BYTES == end_of_ring ? ring : slot + A_BYTES;
            }
        }
        __syncthreads();
        reduce_and_store<N_TILES, GROUP, TEAMS>(args, at, shared + P::SUMS);
        __syncthreads();
    }
}

#define KERNEL(NAME, SLABS, N_TILES, DEPTH, GROUP, TEAMS, K_MAX, SHARED)                           \
    static_assert(GROUP % TEAMS == 0, "a group has as many tiles for each team");                  \
    static_assert(TEAMS == 1 || K_MAX / SLAB_K <= TEAM_WARPS<TEAMS> * SLABS,                       \
                  "a team has all of K");                                                          \
    static_assert(TEAMS == 1 || K_MAX / SLAB_K <= WARPS, "a warp copies a slab of B at most");     \
    static_assert(parts<SLABS, N_TILES, DEPTH, GROUP>::bytes(K_MAX / SLAB_K) == SHARED,            \
                  "gemm_args.h");                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        NAME(const __grid_constant__ nvs_gemm_args args)                                           \
    {                                                                                              \
        gemm<SLABS, N_TILES, DEPTH, GROUP, TEAMS>(args);                                           \
    }

/* K as long as shared memory allows: with 8 columns all that a block can have is taken. */
KERNEL(nvs_gemm_sm90_stream8, 1, 1, 6, 4, 1, 23296, NVS_SM90_STREAM8_SHARED)
KERNEL(nvs_gemm_sm90_stream16, 1, 2, 6, 4, 1, 9728, NVS_SM90_STREAM16_SHARED)
KERNEL(nvs_gemm_sm90_stream8_lines, 2, 1, 3, 4, 1, 23296, NVS_SM90_STREAM8_SHARED)
KERNEL(nvs_gemm_sm90_stream16_lines, 2, 2, 3, 4, 1, 9728, NVS_SM90_STREAM16_SHARED)
KERNEL(nvs_gemm_sm90_stream8_k1024, 1, 1, 4, 4, 2, 1024, NVS_SM90_STREAM8_K1024_SHARED)
KERNEL(nvs_gemm_sm90_stream16_k1024, 1, 2, 4, 4, 2, 1024, NVS_SM90_STREAM16_K1024_SHARED)
KERNEL(nvs_gemm_sm90_stream8_k2048, 2, 1, 3, 4, 2, 2048, NVS_SM90_STREAM8_K2048_SHARED)
KERNEL(nvs_gemm_sm90_stream16_k2048, 2, 2, 3, 4, 2, 2048, NVS_SM90_STREAM16_K2048_SHARED)
