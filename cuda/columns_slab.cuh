/* SPDX-License-Identifier: Apache-2.0
 *
 * For gemm_sm90_columns.cu: both operands in shared memory and how they get there, and a warp's slab
 * of both, decoded and multiplied.
 */
#pragma once

#include "gemm_args.h"
#include "warp_slab.cuh"

static constexpr int WARPS = 8, THREADS = 32 * WARPS;
static constexpr int TILE_N = 16, N_TILES = TILE_N / 8;

/* A tile's slab of B in a slot of a ring: 16 rows of codes, chunk c of 16 bytes of row r at place
 * c ^ r % 8, lest all rows start at the same bank, then the rows' scales. */
static constexpr int B_ROW = SLAB_K / 2, A_ROW = SLAB_K / 4, SCALE_ROW = SLAB_K / 16;
static constexpr int B_SCALES = TILE_N * B_ROW, SLOT = B_SCALES + TILE_N * SCALE_ROW;

/* A's values and metadata by lines of two slabs, its scales by lines of eight: whole lines, as all
 * SMs ask for them at the same time (stage.cuh). */
static constexpr int LINE = 128, LINE_SLABS = LINE / A_ROW, SCALE_LINE_SLABS = LINE / SCALE_ROW;

/* Of up to SLABS slabs of 8 * ROW_GROUPS rows. */
template <int ROW_GROUPS, int SLABS>
struct a_lines {
    static constexpr int ROWS = 8 * ROW_GROUPS, META = ROWS * LINE, PAIR = 2 * META;
    static constexpr int SCALES = SLABS / LINE_SLABS * PAIR;
    static constexpr int BYTES = SCALES + SLABS / SCALE_LINE_SLABS * ROWS * LINE;
    static_assert(SLABS % SCALE_LINE_SLABS == 0, "whole lines");
};

/* Where 16 bytes stand in a line of values or metadata, and of scales a slab's: a quarter-warp reads
 * a slab's half of two neighbouring rows, a warp four bytes of each row's. */
NVS_DEVICE uint32_t
chunk_of(uint32_t chunk, uint32_t row)
{
    return (chunk ^ (row & 1) << 2) * 16;
}

NVS_DEVICE uint32_t
scales_of(uint32_t slab, uint32_t row)
{
    return (slab ^ row) % SCALE_LINE_SLABS * SCALE_ROW;
}

/* What a lane copies of a slab of B: 16 bytes of every fourth row's codes, and one row's scales. */
struct copy_place {
    const uint8_t *codes, *scales; /* in the first tile */
    uint32_t row, to_codes;        /* of the codes; where they go in a slot */
};

NVS_DEVICE copy_place
place_copies(const nvs_gemm_args &args)
{
    const uint32_t lane = threadIdx.x % 32, chunk = lane % 8;
    copy_place at;
    at.row = lane / 8;
    at.to_codes = at.row * B_ROW + (chunk ^ at.row) * 16;
    at.codes = args.b_fp4 + chunk * 16 + (uint64_t)at.row * (uint32_t)args.b_fp4_ld;
    at.scales = args.b_scale + (uint64_t)lane * (uint32_t)args.b_scale_ld;
    return at;
}

/* A tile's slab of B. Columns past the last are zeros. */
NVS_DEVICE void
copy_b(const nvs_gemm_args &args, const copy_place &at, uint32_t tile, uint32_t slab, uint32_t slot)
{
    const uint32_t lane = threadIdx.x % 32, ld = (uint32_t)args.b_fp4_ld;
    const uint32_t column = tile * TILE_N, to = slot + at.to_codes;
    const int left = (int)((uint32_t)args.n - column);
    const uint8_t *from = at.codes + slab * B_ROW + (uint64_t)column * ld;
#pragma unroll
    for (int r = 0; r < TILE_N; r += 4) { /* four rows on, the chunk's place differs in bit 2 */
        cp_async_16((r & 4 ? to ^ 64 : to) + r * B_ROW, from, left > (int)at.row + r);
        from += 4 * (uint64_t)ld;
    }
    const bool has_scales = lane < TILE_N;
    cp_async_16_if(has_scales, slot + B_SCALES + lane * SCALE_ROW,
                   at.scales + slab * SCALE_ROW + (uint64_t)column * (uint32_t)args.b_scale_ld,
                   (int)lane < left);
}

/* All of A, by all threads. Rows past the last, and slabs past K, are zeros. */
template <class S>
NVS_DEVICE void
copy_a(const nvs_gemm_args &args, uint32_t shared)
{
    using L = typename S::lines;
    constexpr int SLABS = S::SLABS * S::TEAM, STEP = THREADS / 8 / L::ROWS; /* lines at a time */
    const uint32_t m = (uint32_t)args.m, k = (uint32_t)args.k;
    const uint32_t chunk = threadIdx.x % 8, row = threadIdx.x / 8 % L::ROWS;
    const uint32_t first = threadIdx.x / 8 / L::ROWS;
    const uint8_t *vals = args.a_vals + (uint64_t)row * (uint32_t)args.a_vals_ld;
    const uint8_t *meta = args.a_meta + (uint64_t)row * (uint32_t)args.a_meta_ld;
    const uint8_t *scales = args.a_scale + (uint64_t)row * (uint32_t)args.a_scale_ld;
    const uint32_t to = shared + S::A + row * LINE + chunk_of(chunk, row);
    const uint32_t to_scales = shared + S::A + L::SCALES + row * LINE + scales_of(chunk, row);
    static_assert(SLABS / LINE_SLABS % STEP == 0, "no thread is left over");
#pragma unroll
    for (int i = 0; i < SLABS / LINE_SLABS; i += STEP) {
        const uint32_t line = first + i, byte = line * LINE + chunk * 16;
        const bool inside = byte < k / 4 && row < m;
        cp_async_16(to + line * L::PAIR, vals + byte, inside);
        cp_async_16(to + line * L::PAIR + L::META, meta + byte, inside);
    }
#pragma unroll
    for (int i = 0; i < SLABS / SCALE_LINE_SLABS; i += STEP) {
        const uint32_t line = first + i, byte = line * LINE + chunk * 16;
        cp_async_16_if(line < SLABS / SCALE_LINE_SLABS, to_scales + line * L::ROWS * LINE,
                       scales + byte, byte < k / 16 && row < m);
    }
}

/* A slab of A in the MMA's registers. */
template <int ROW_GROUPS>
struct a_slab {
    uint32_t rows[BLOCKS][ROW_GROUPS][4], metadata[ROW_GROUPS == 2 ? BLOCKS : BLOCKS / 2];
};

template <int ROW_GROUPS>
NVS_DEVICE uint32_t
metadata_of(const a_slab<ROW_GROUPS> &a, int block)
{
    return ROW_GROUPS == 2 ? a.metadata[block] : a.metadata[block / 2] >> 16 * (block & 1);
}

/* Row group r of a slab: the lane's 16 bytes of values, and its four scales. */
template <int ROW_GROUPS>
NVS_DEVICE void
decode_row_group(const uint4 &vals, uint32_t bytes, int r, a_slab<ROW_GROUPS> &a)
{
    uint32_t scales[2];
    decode_scales(bytes, scales);
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        decode_row_block(word_of(vals, i), broadcast_half(scales[i / 2], i & 1), a.rows[i][r]);
}

template <int ROW_GROUPS>
NVS_DEVICE void
decode_metadata(const uint4 (&meta)[ROW_GROUPS], a_slab<ROW_GROUPS> &a)
{
    const quad_transpose transpose = quad_transpose_of(threadIdx.x % 4);
    constexpr int STEP = 3 - ROW_GROUPS; /* of one row group two blocks share a word */
#pragma unroll
    for (int i = 0; i < BLOCKS; i += STEP) {
        const uint32_t second = ROW_GROUPS == 2 ? word_of(meta[ROW_GROUPS - 1], i)
                                                : word_of(meta[0], i + 1);
        a.metadata[i / STEP] = quad_metadata(word_of(meta[0], i), second, transpose);
    }
}

/* A slab of what copy_a() copied. */
template <class S>
NVS_DEVICE void
decode_a(uint32_t shared, uint32_t slab, a_slab<S::ROW_GROUPS> &a)
{
    using L = typename S::lines;
    const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, pair = slab / LINE_SLABS;
    uint4 meta[S::ROW_GROUPS];
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r) {
        const uint32_t row = 8 * r + g;
        const uint32_t vals = shared + S::A + pair * L::PAIR + row * LINE +
                              chunk_of(slab % LINE_SLABS * 4 + q, row);
        const uint32_t scales = shared + S::A + L::SCALES + scales_of(slab, row) + q * 4 +
                                (slab / SCALE_LINE_SLABS * L::ROWS + row) * LINE;
        meta[r] = ld_shared_v4(vals + L::META);
        decode_row_group(ld_shared_v4(vals), ld_shared_u32(scales), r, a);
    }
    decode_metadata(meta, a);
}

/* Two neighbouring slabs of a row group of A in a slot: eight lines of values, of metadata, and the
 * rows' scales. */
static constexpr int PAIR_META = 8 * LINE, PAIR_SCALES = 2 * PAIR_META;
static_assert(PAIR_SCALES + 8 * LINE_SLABS * SCALE_ROW == SLOT, "a slot");

/* By one warp. Rows past the last, and a slab past K, are zeros. */
NVS_DEVICE void
copy_a_pair(const nvs_gemm_args &args, int r, uint32_t pair, uint32_t slot)
{
    const uint32_t lane = threadIdx.x % 32, m = (uint32_t)args.m, k = (uint32_t)args.k;
    const uint32_t chunk = lane % 8, byte = pair * LINE + chunk * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t in_group = lane / 8 + 4 * half, row = 8 * r + in_group;
        const uint32_t to = slot + in_group * LINE + chunk_of(chunk, row);
        const bool inside = byte < k / 4 && row < m;
        cp_async_16(to, args.a_vals + byte + (uint64_t)row * (uint32_t)args.a_vals_ld, inside);
        cp_async_16(to + PAIR_META, args.a_meta + byte + (uint64_t)row * (uint32_t)args.a_meta_ld,
                    inside);
    }
    const uint32_t row = 8 * r + lane / LINE_SLABS;
    const uint32_t scale = (pair * LINE_SLABS + lane % LINE_SLABS) * SCALE_ROW;
    cp_async_16_if(lane < 8 * LINE_SLABS, slot + PAIR_SCALES + lane * SCALE_ROW,
                   args.a_scale + scale + (uint64_t)row * (uint32_t)args.a_scale_ld,
                   scale < k / 16 && row < m);
}

/* Its values and scales; of its metadata the lane's. */
template <int ROW_GROUPS>
NVS_DEVICE void
decode_a_pair(uint32_t slot, int r, a_slab<ROW_GROUPS> (&a)[LINE_SLABS],
              uint4 (&meta)[LINE_SLABS][ROW_GROUPS])
{
    const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < LINE_SLABS; ++s) {
        const uint32_t vals = slot + g * LINE + chunk_of(s * 4 + q, g);
        const uint32_t scales = slot + PAIR_SCALES + (g * LINE_SLABS + s) * SCALE_ROW + q * 4;
        meta[s][r] = ld_shared_v4(vals + PAIR_META);
        decode_row_group(ld_shared_v4(vals), ld_shared_u32(scales), r, a[s]);
    }
}

/* Where a lane reads a slab of B, and the selectors of its bytes of a word. */
struct b_place {
    uint32_t codes[2][2], scales[2]; /* of its two segments */
    uint32_t entry, byte[2];
};

NVS_DEVICE b_place
place_b(uint32_t table)
{
    const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    b_place at;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t segment = q / 2 + 2 * h;
        at.codes[h][0] = g * B_ROW + ((2 * segment) ^ g) * 16;
        at.codes[h][1] = g * B_ROW + ((2 * segment + 1) ^ g) * 16;
        at.scales[h] = B_SCALES + g * SCALE_ROW + segment * (SEGMENT / 16);
    }
    at.entry = table + 4 * (threadIdx.x % 32);
    at.byte[0] = table_selector(q & 1);
    at.byte[1] = table_selector(2 + (q & 1));
    return at;
}

/* Both steps' B registers of one block of an n8 tile. */
NVS_DEVICE void
decode_b(const uint4 (&codes)[2][2], const uint32_t (&scales)[2][2], int block, const b_place &at,
         uint32_t (&b)[2][4])
{
    uint32_t words[2][2], scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        words[h][0] = word_of(codes[h][block / 2], 2 * (block & 1));
        words[h][1] = word_of(codes[h][block / 2], 2 * (block & 1) + 1);
        scale[h] = broadcast_half(scales[h][block / 2], block & 1);
    }
    decode_column_block_by_table(words, scale, at.entry, at.byte, b);
}

/* Adds a slab of A times a tile's slab of B. */
template <int ROW_GROUPS>
NVS_DEVICE void
multiply(const b_place &at, uint32_t slot, const a_slab<ROW_GROUPS> &a, float (&sum)[N_TILES][4])
{
    uint32_t none[4]; /* the other rows, if there are none: any values do */
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm volatile("" : "=r"(none[i]));
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
        uint4 codes[2][2];
        uint32_t scales[2][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            codes[h][0] = ld_shared_v4(slot + at.codes[h][0] + n * (8 * B_ROW));
            codes[h][1] = ld_shared_v4(slot + at.codes[h][1] + n * (8 * B_ROW));
            const uint32_t bytes = ld_shared_u32(slot + at.scales[h] + n * (8 * SCALE_ROW));
            scales[h][0] = decode_two_scales(bytes);
            scales[h][1] = decode_two_scales(bytes >> 16);
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            uint32_t b[2][4];
            decode_b(codes, scales, i, at, b);
            if constexpr (ROW_GROUPS == 2)
                multiply_block(sum[n], a.rows[i][0], a.rows[i][1], b, metadata_of(a, i));
            else
                multiply_block(sum[n], a.rows[i][0], none, b, metadata_of(a, i));
        }
    }
}
