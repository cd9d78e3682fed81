/* SPDX-License-Identifier: Apache-2.0
 *
 * For gemm_sm90_warp.cu: how a lane reads, decodes and multiplies its warp's columns of a stage, part
 * by part. K is permuted as warp_slab.cuh says, but in parts of 128 columns with segments of 32, two
 * blocks.
 */
#pragma once

#include "decode.cuh"
#include "ptx.cuh"
#include "warp_slab.cuh"
#include "warp_stage.cuh"

/* Where a lane reads the first part in a stage, and its constants. */
struct lane_place {
    uint32_t b[2], vals; /* b[h]: of segment q / 2 + 2h */
    uint32_t b_scale, a_scale;
    uint32_t entry, b_byte[2]; /* of the table, and the selectors of its bytes of a word of B */
    uint32_t b_scale_bytes;    /* the selector of its segments' scales */
    quad_transpose transpose;
};

template <class S>
NVS_DEVICE lane_place
place_lane(uint32_t shared, uint32_t table)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    lane_place at;
    static_assert(S::B % 128 == 0 && S::VALS % 128 == 0, "places in lines may be XORed");
    const uint32_t swizzled = swizzle<S::A_PITCH, UNIT>(g); /* B has rows of whole lines too */
    const uint32_t b = shared + S::B + g * S::B_PITCH + warp * (S::LINE_K / 2) +
                       q / 2 * (LANE_K / 2);
    const uint32_t vals = shared + S::VALS + g * S::A_PITCH + q * (LANE_K / 4);
    const uint32_t scales = g * S::SCALE_PITCH +
                            (warp * (S::LINE_K / 16) ^ swizzle<S::SCALE_PITCH, SCALE_UNIT>(g));
    at.b[0] = b + swizzled; /* of b's low seven bits one is set at most, bit 4 */
    at.b[1] = at.b[0] ^ LANE_K;
    at.vals = vals + (warp * (S::LINE_K / 4) ^ swizzled);
    at.b_scale = shared + S::B_SCALE + scales;
    at.a_scale = shared + S::A_SCALE + scales + q * LANE_BLOCKS;
    at.entry = table + 4 * (threadIdx.x % 32);
    at.b_byte[0] = table_selector(q & 1);
    at.b_byte[1] = table_selector(2 + (q & 1));
    at.b_scale_bytes = q / 2 ? 0x7632u : 0x5410u;
    at.transpose = quad_transpose_of(q);
    return at;
}

/* Where part i of A's values, of B's codes and of scales is, from where the first is. */
template <class S>
NVS_DEVICE uint32_t
vals_of_part(uint32_t first, int i)
{
    return (first ^ i % S::LINE_PARTS * (PART_K / 4)) + i / S::LINE_PARTS * (S::ROUND_K / 4);
}

template <class S>
NVS_DEVICE uint32_t
codes_of_part(uint32_t first, int i)
{
    return (first ^ i % 2 * (PART_K / 2)) + i % S::LINE_PARTS / 2 * 128 +
           i / S::LINE_PARTS * (S::ROUND_K / 2);
}

template <class S>
NVS_DEVICE uint32_t
scales_of_part(uint32_t first, int i)
{
    return (first ^ i % S::LINE_PARTS / 2 * SCALE_UNIT) + i % 2 * (PART_K / 16) +
           i / S::LINE_PARTS * (S::ROUND_K / 16);
}

/* Found now: ptxas would find it where it is used, after the wait. */
NVS_DEVICE void
settle(lane_place &at)
{
    asm volatile(""
                 : "+r"(at.b[0]), "+r"(at.b[1]), "+r"(at.vals), "+r"(at.b_scale), "+r"(at.a_scale),
                   "+r"(at.entry), "+r"(at.b_byte[0]), "+r"(at.b_byte[1]), "+r"(at.b_scale_bytes),
                   "+r"(at.transpose.rotate), "+r"(at.transpose.keep),
                   "+r"(at.transpose.merge)::"memory");
    keep_order();
}

/* Both steps' B registers of one block and n8 tile. */
NVS_DEVICE void
decode_b(const uint4 (&codes)[2], const uint32_t (&scales)[2], int block, const lane_place &at,
         uint32_t (&b)[2][4])
{
    uint32_t words[2][2], scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        words[h][0] = word_of(codes[h], 2 * block);
        words[h][1] = word_of(codes[h], 2 * block + 1);
        scale[h] = broadcast_half(scales[h], block);
    }
    decode_column_block_by_table(words, scale, at.entry, at.b_byte, b);
}

/* Of A's row groups, the odd ones: that keeps the load/store unit and the integer pipe about
 * equally busy. */
NVS_DEVICE constexpr bool
goes_through_table(int row_group)
{
    return row_group % 2 == 1;
}

/* One block of row group r of A. */
NVS_DEVICE void
decode_a(uint32_t vals, uint32_t scale, int r, uint32_t entry, uint32_t (&f)[4])
{
    if (goes_through_table(r))
#pragma unroll
        for (int i = 0; i < 4; ++i)
            f[i] = mul_f16x2(decode_by_table(vals, entry, table_selector(i)), scale);
    else
        decode_row_block(vals, scale, f);
}

/* A lane's share of a part: `metadata` as the MMAs want it, the rest still to be decoded. */
template <class S>
struct lane_part {
    uint2 vals[S::ROW_GROUPS];
    uint4 codes[S::N_TILES][2];
    uint32_t metadata[LANE_BLOCKS][S::M_TILES];
    uint32_t a_scale[S::ROW_GROUPS], b_scale[S::N_TILES][2];
};

/* Part i of A's tile t of 16 rows, or of the last 8, in the stage that stands `stage` bytes behind
 * the first. */
template <class S>
NVS_DEVICE void
read_tile(const lane_place &at, uint32_t stage, int i, int t, lane_part<S> &part)
{
    constexpr int GROUPS = S::ROW_GROUPS % 2 ? 1 : 2; /* of a tile */
    uint2 meta[GROUPS];
#pragma unroll
    for (int j = 0; j < GROUPS; ++j) {
        const int r = 2 * t + j;
        const uint32_t vals = vals_of_part<S>(at.vals, i) + stage + 8 * r * S::A_PITCH;
        const uint32_t scale = scales_of_part<S>(at.a_scale, i) + stage + 8 * r * S::SCALE_PITCH;
        meta[j] = ld_shared_v2(vals + S::META - S::VALS);
        part.vals[r] = ld_shared_v2(vals);
        part.a_scale[r] = decode_two_scales(ld_shared_u16(scale));
        if (!goes_through_table(r))
            part.a_scale[r] = mul_f16x2(part.a_scale[r], TWO_TO_THE_7TH);
    }
    if (GROUPS == 2) {
        part.metadata[0][t] = quad_metadata(meta[0].x, meta[GROUPS - 1].x, at.transpose);
        part.metadata[1][t] = quad_metadata(meta[0].y, meta[GROUPS - 1].y, at.transpose);
    }
    else { /* both blocks at once */
        part.metadata[0][t] = quad_metadata(meta[0].x, meta[0].y, at.transpose);
        part.metadata[1][t] = part.metadata[0][t] >> 16;
    }
}

template <class S>
NVS_DEVICE void
read_a(const lane_place &at, uint32_t stage, int i, lane_part<S> &part)
{
#pragma unroll
    for (int t = 0; t < S::M_TILES; ++t)
        read_tile(at, stage, i, t, part);
}

template <class S>
NVS_DEVICE void
read_b_scales(const lane_place &at, uint32_t stage, int i, lane_part<S> &part)
{
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n) {
        const uint2 scales = ld_shared_v2(scales_of_part<S>(at.b_scale, i) + stage +
                                          8 * n * S::SCALE_PITCH);
        const uint32_t own = prmt(scales.x, scales.y, at.b_scale_bytes);
#pragma unroll
        for (int h = 0; h < 2; ++h)
            part.b_scale[n][h] = decode_two_scales(own >> 16 * h);
    }
}

template <class S>
NVS_DEVICE void
read_b_codes(const lane_place &at, uint32_t stage, int i, lane_part<S> &part)
{
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            part.codes[n][h] = ld_shared_v4(codes_of_part<S>(at.b[h], i) + stage +
                                            8 * n * S::B_PITCH);
}

/* A's registers of one block of tile t. */
template <class S>
NVS_DEVICE void
decode_tile(const lane_part<S> &part, const lane_place &at, int block, int t, uint32_t (&f)[2][4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) /* the other rows, if there are none: any values do */
        if (S::ROW_GROUPS % 2)
            asm volatile("" : "=r"(f[1][i]));
#pragma unroll
    for (int r = 2 * t; r < min(2 * t + 2, S::ROW_GROUPS); ++r)
        decode_a(word_of(part.vals[r], block), broadcast_half(part.a_scale[r], block), r, at.entry,
                 f[r % 2]);
}

/* One block, B still to be decoded. */
template <class S>
NVS_DEVICE void
multiply_columns(const lane_part<S> &part, const lane_place &at, int block,
                 const uint32_t (&f)[S::M_TILES][2][4], float (&sum)[S::M_TILES][S::N_TILES][4])
{
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n) {
        uint32_t b[2][4];
        decode_b(part.codes[n], part.b_scale[n], block, at, b);
#pragma unroll
        for (int t = 0; t < S::M_TILES; ++t)
            multiply_block(sum[t][n], f[t][0], f[t][1], b, part.metadata[block][t]);
    }
}

/* One block of A's tile t, which is still to be decoded. */
template <class S>
NVS_DEVICE void
multiply_rows(const lane_part<S> &part, const lane_place &at, int block, int t,
              const uint32_t (&b)[S::N_TILES][2][4], float (&sum)[S::M_TILES][S::N_TILES][4])
{
    uint32_t f[2][4];
    decode_tile(part, at, block, t, f);
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n)
        multiply_block(sum[t][n], f[0], f[1], b[n], part.metadata[block][t]);
}

template <class S>
NVS_DEVICE void
multiply_part_block(const lane_part<S> &part, const lane_place &at, int block,
                    float (&sum)[S::M_TILES][S::N_TILES][4])
{
    uint32_t f[S::M_TILES][2][4];
#pragma unroll
    for (int t = 0; t < S::M_TILES; ++t)
        decode_tile(part, at, block, t, f[t]);
    multiply_columns(part, at, block, f, sum);
}

/* The warp's columns of a stage. */
template <class S>
NVS_DEVICE void
multiply(const lane_place &at, uint32_t stage, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    lane_part<S> part[S::PARTS];
#pragma unroll
    for (int i = 0; i < S::PARTS; ++i) {
        read_a(at, stage, i, part[i]);
        read_b_scales(at, stage, i, part[i]);
        read_b_codes(at, stage, i, part[i]);
        if (i > 0) /* beside the MMAs of the part before */
            multiply_part_block(part[i - 1], at, 1, sum);
        multiply_part_block(part[i], at, 0, sum);
    }
    multiply_part_block(part[S::PARTS - 1], at, 1, sum);
}

/* Until of the warp's own copies all but the last `pending` groups have landed, for all its lanes. */
NVS_DEVICE void
wait_for_own_copies(int pending)
{
    keep_order();
    cp_async_wait_group(pending);
    __syncwarp();
}

/* Decoded now: ptxas would put the last steps off until they are used, behind the wait. */
NVS_DEVICE void
settle(uint32_t (&f16x2)[2][4])
{
#pragma unroll
    for (int i = 0; i < 2; ++i)
        asm volatile(""
                     : "+r"(f16x2[i][0]), "+r"(f16x2[i][1]), "+r"(f16x2[i][2]),
                       "+r"(f16x2[i][3])::"memory");
}

/* The warp's columns of the only stage, in `rounds`: A is there, and the scales; B is multiplied as
 * its copies land. */
template <class S>
NVS_DEVICE void
multiply_when_b_lands(const lane_place &at, int rounds, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    lane_part<S> part[S::PARTS];
    uint32_t f[S::PARTS][LANE_BLOCKS][S::M_TILES][2][4];
#pragma unroll
    for (int i = 0; i < S::PARTS; ++i) {
        if (i / S::LINE_PARTS >= rounds)
            break;
        read_b_scales(at, 0, i, part[i]);
        read_a(at, 0, i, part[i]);
#pragma unroll
        for (int block = 0; block < LANE_BLOCKS; ++block)
#pragma unroll
            for (int t = 0; t < S::M_TILES; ++t) {
                decode_tile(part[i], at, block, t, f[i][block][t]);
                settle(f[i][block][t]);
            }
    }
#pragma unroll
    for (int round = 0; round < S::ROUNDS; ++round) {
        if (round >= rounds)
            break;
        const int first = round * S::LINE_PARTS, end = first + S::LINE_PARTS;
        wait_for_own_copies(S::ROUNDS - 1 - round);
#pragma unroll
        for (int i = first; i < end; ++i)
            read_b_codes(at, 0, i, part[i]);
#pragma unroll
        for (int i = first; i < end; ++i)
#pragma unroll
            for (int block = 0; block < LANE_BLOCKS; ++block)
                multiply_columns(part[i], at, block, f[i][block], sum);
    }
}

/* Of the only stage, N of B's parts from `first` on, which are there. */
template <class S, int N>
NVS_DEVICE void
decode_columns(const lane_place &at, int first, int rounds, lane_part<S> (&part)[S::PARTS],
               uint32_t (&b)[N][LANE_BLOCKS][S::N_TILES][2][4])
{
#pragma unroll
    for (int i = first; i < first + N; ++i) {
        if (i / S::LINE_PARTS >= rounds)
            break;
        read_b_scales(at, 0, i, part[i]);
        read_b_codes(at, 0, i, part[i]);
#pragma unroll
        for (int block = 0; block < LANE_BLOCKS; ++block)
#pragma unroll
            for (int n = 0; n < S::N_TILES; ++n) {
                decode_b(part[i].codes[n], part[i].b_scale[n], block, at, b[i - first][block][n]);
                settle(b[i - first][block][n]);
            }
    }
}

/* The same with A and B the other way round: B is decoded as far ahead as there are registers. */
template <class S>
NVS_DEVICE void
multiply_when_a_lands(const lane_place &at, int rounds, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    constexpr int AHEAD = S::PARTS * S::N_TILES <= 8 ? S::PARTS : S::LINE_PARTS;
    lane_part<S> part[S::PARTS];
    uint32_t b[AHEAD][LANE_BLOCKS][S::N_TILES][2][4];
#pragma unroll
    for (int copy = 0; copy < S::OWN_COPIES; ++copy) {
        const int round = copy / S::M_TILES, t = copy % S::M_TILES;
        const int first = round * S::LINE_PARTS, end = first + S::LINE_PARTS;
        if (round >= rounds)
            break;
        if (first % AHEAD == 0 && t == 0)
            decode_columns(at, first, rounds, part, b);
        wait_for_own_copies(S::OWN_COPIES - 1 - copy);
#pragma unroll
        for (int i = first; i < end; ++i)
            read_tile(at, 0, i, t, part[i]);
#pragma unroll
        for (int i = first; i < end; ++i)
#pragma unroll
            for (int block = 0; block < LANE_BLOCKS; ++block)
                multiply_rows(part[i], at, block, t, b[i % AHEAD][block], sum);
    }
}
