/* SPDX-License-Identifier: Apache-2.0
 *
 * For gemm_sm90_warp.cu: how a lane reads, decodes and multiplies its warp's columns of a stage, in
 * two parts. K is permuted as warp_slab.cuh says, but in parts of 128 columns with segments of 32,
 * two blocks.
 */
#pragma once

#include "decode.cuh"
#include "ptx.cuh"
#include "warp_slab.cuh"
#include "warp_stage.cuh"

/* Where a lane reads the parts in a stage (scales: the first part), and its constants. */
struct lane_place {
    uint32_t b[PARTS][2], vals[PARTS]; /* b[i][h]: of part i segment q / 2 + 2h */
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
    const uint32_t swizzled = swizzle<A_PITCH, UNIT>(g); /* B has rows of whole lines too */
    const uint32_t b = shared + S::B + g * B_PITCH + warp * (WARP_K / 2) + q / 2 * (LANE_K / 2);
    const uint32_t vals = shared + S::VALS + g * A_PITCH + q * (LANE_K / 4);
    const uint32_t scales = g * SCALE_PITCH +
                            (warp * (WARP_K / 16) ^ swizzle<SCALE_PITCH, SCALE_UNIT>(g));
    at.b[0][0] = b + swizzled; /* of b's low seven bits one is set at most, bit 4 */
    at.b[0][1] = at.b[0][0] ^ LANE_K;
    at.b[1][0] = at.b[0][0] ^ (PART_K / 2);
    at.b[1][1] = at.b[0][1] ^ (PART_K / 2);
    at.vals[0] = vals + (warp * (WARP_K / 4) ^ swizzled);
    at.vals[1] = at.vals[0] ^ (PART_K / 4);
    at.b_scale = shared + S::B_SCALE + scales;
    at.a_scale = shared + S::A_SCALE + scales + q * LANE_BLOCKS;
    at.entry = table + 4 * (threadIdx.x % 32);
    at.b_byte[0] = table_selector(q & 1);
    at.b_byte[1] = table_selector(2 + (q & 1));
    at.b_scale_bytes = q / 2 ? 0x7632u : 0x5410u;
    at.transpose = quad_transpose_of(q);
    return at;
}

/* Found now: ptxas would find it where it is used, after the wait. */
NVS_DEVICE void
settle(lane_place &at)
{
    asm volatile(""
                 : "+r"(at.b[0][0]), "+r"(at.b[0][1]), "+r"(at.b[1][0]), "+r"(at.b[1][1]),
                   "+r"(at.vals[0]), "+r"(at.vals[1]), "+r"(at.b_scale), "+r"(at.a_scale),
                   "+r"(at.entry), "+r"(at.b_byte[0]), "+r"(at.b_byte[1]), "+r"(at.b_scale_bytes),
                   "+r"(at.transpose.rotate), "+r"(at.transpose.keep),
                   "+r"(at.transpose.merge)::"memory");
    keep_order();
}

/* Both steps' B registers of one block and n8 tile: register 2j + h of step s is the even or the
 * odd byte of group 2s + j of segment q / 2 + 2h. */
NVS_DEVICE void
decode_b(const uint4 (&codes)[2], const uint32_t (&scales)[2], int block, const lane_place &at,
         uint32_t (&b)[2][4])
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t scale = broadcast_half(scales[h], block);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                b[s][2 * j + h] = mul_f16x2(
                    decode_by_table(word_of(codes[h], 2 * block + s), at.entry, at.b_byte[j]),
                    scale);
    }
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

/* Part i of A in the stage that stands `stage` bytes behind the first. */
template <class S>
NVS_DEVICE void
read_a(const lane_place &at, uint32_t stage, int i, lane_part<S> &part)
{
    uint2 meta[2 * S::M_TILES];
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r) {
        const uint32_t vals = at.vals[i] + stage + 8 * r * A_PITCH;
        const uint32_t scale = at.a_scale + stage + i * (PART_K / 16) + 8 * r * SCALE_PITCH;
        meta[r] = ld_shared_v2(vals + S::META - S::VALS);
        part.vals[r] = ld_shared_v2(vals);
        part.a_scale[r] = decode_two_scales(ld_shared_u16(scale));
        if (!goes_through_table(r))
            part.a_scale[r] = mul_f16x2(part.a_scale[r], TWO_TO_THE_7TH);
    }
#pragma unroll
    for (int t = 0; t < S::M_TILES; ++t) {
        const uint2 upper = meta[2 * t], lower = meta[2 * t + 1];
        if (2 * t + 1 < S::ROW_GROUPS) {
            part.metadata[0][t] = quad_metadata(upper.x, lower.x, at.transpose);
            part.metadata[1][t] = quad_metadata(upper.y, lower.y, at.transpose);
        }
        else { /* both blocks at once */
            part.metadata[0][t] = quad_metadata(upper.x, upper.y, at.transpose);
            part.metadata[1][t] = part.metadata[0][t] >> 16;
        }
    }
}

template <class S>
NVS_DEVICE void
read_b_scales(const lane_place &at, uint32_t stage, int i, lane_part<S> &part)
{
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n) {
        const uint2 scales = ld_shared_v2(at.b_scale + stage + i * (PART_K / 16) +
                                          8 * n * SCALE_PITCH);
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
            part.codes[n][h] = ld_shared_v4(at.b[i][h] + stage + 8 * n * B_PITCH);
}

/* A's registers of one block. */
template <class S>
NVS_DEVICE void
decode_rows(const lane_part<S> &part, const lane_place &at, int block,
            uint32_t (&f)[2 * S::M_TILES][4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) /* the last tile's other rows, if it has none: any values do */
        if (S::ROW_GROUPS % 2)
            asm volatile("" : "=r"(f[2 * S::M_TILES - 1][i]));
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r)
        decode_a(word_of(part.vals[r], block), broadcast_half(part.a_scale[r], block), r, at.entry,
                 f[r]);
}

/* One block of a tile of 8 columns. */
template <class S>
NVS_DEVICE void
multiply_tile(const lane_part<S> &part, int block, int n, const uint32_t (&f)[2 * S::M_TILES][4],
              const uint32_t (&b)[2][4], float (&sum)[S::M_TILES][S::N_TILES][4])
{
#pragma unroll
    for (int t = 0; t < S::M_TILES; ++t)
        multiply_block(sum[t][n], f[2 * t], f[2 * t + 1], b, part.metadata[block][t]);
}

/* One block, B still to be decoded. */
template <class S>
NVS_DEVICE void
multiply_columns(const lane_part<S> &part, const lane_place &at, int block,
                 const uint32_t (&f)[2 * S::M_TILES][4], float (&sum)[S::M_TILES][S::N_TILES][4])
{
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n) {
        uint32_t b[2][4];
        decode_b(part.codes[n], part.b_scale[n], block, at, b);
        multiply_tile(part, block, n, f, b, sum);
    }
}

/* One block, A still to be decoded. */
template <class S>
NVS_DEVICE void
multiply_rows(const lane_part<S> &part, const lane_place &at, int block,
              const uint32_t (&b)[S::N_TILES][2][4], float (&sum)[S::M_TILES][S::N_TILES][4])
{
    uint32_t f[2 * S::M_TILES][4];
    decode_rows(part, at, block, f);
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n)
        multiply_tile(part, block, n, f, b[n], sum);
}

template <class S>
NVS_DEVICE void
multiply_part_block(const lane_part<S> &part, const lane_place &at, int block,
                    float (&sum)[S::M_TILES][S::N_TILES][4])
{
    uint32_t f[2 * S::M_TILES][4];
    decode_rows(part, at, block, f);
    multiply_columns(part, at, block, f, sum);
}

/* The warp's columns of a stage. */
template <class S>
NVS_DEVICE void
multiply(const lane_place &at, uint32_t stage, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    lane_part<S> part[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        read_a(at, stage, i, part[i]);
        read_b_scales(at, stage, i, part[i]);
        read_b_codes(at, stage, i, part[i]);
        if (i > 0) /* beside the MMAs of the part before */
            multiply_part_block(part[i - 1], at, 1, sum);
        multiply_part_block(part[i], at, 0, sum);
    }
    multiply_part_block(part[PARTS - 1], at, 1, sum);
}

/* Until the warp's own copies, the last group, have landed for all its lanes. */
NVS_DEVICE void
wait_for_own_copies(void)
{
    keep_order();
    cp_async_wait_group(0);
    __syncwarp();
}

/* Decoded now: ptxas would put the last steps off until they are used, behind the wait. */
template <int N>
NVS_DEVICE void
settle(uint32_t (&f16x2)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile(""
                     : "+r"(f16x2[i][0]), "+r"(f16x2[i][1]), "+r"(f16x2[i][2]),
                       "+r"(f16x2[i][3])::"memory");
}

/* The warp's columns of the only stage: A is there, and the scales; B once its copies have landed. */
template <class S>
NVS_DEVICE void
multiply_when_b_lands(const lane_place &at, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    lane_part<S> part[PARTS];
    uint32_t f[PARTS][LANE_BLOCKS][2 * S::M_TILES][4];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        read_b_scales(at, 0, i, part[i]);
        read_a(at, 0, i, part[i]);
#pragma unroll
        for (int block = 0; block < LANE_BLOCKS; ++block) {
            decode_rows(part[i], at, block, f[i][block]);
            settle(f[i][block]);
        }
    }
    wait_for_own_copies();
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
        read_b_codes(at, 0, i, part[i]);
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
#pragma unroll
        for (int block = 0; block < LANE_BLOCKS; ++block)
            multiply_columns(part[i], at, block, f[i][block], sum);
}

/* The same if it is B that is there. */
template <class S>
NVS_DEVICE void
multiply_when_a_lands(const lane_place &at, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    lane_part<S> part[PARTS];
    uint32_t b[PARTS][LANE_BLOCKS][S::N_TILES][2][4];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        read_b_scales(at, 0, i, part[i]);
        read_b_codes(at, 0, i, part[i]);
#pragma unroll
        for (int block = 0; block < LANE_BLOCKS; ++block)
#pragma unroll
            for (int n = 0; n < S::N_TILES; ++n) {
                decode_b(part[i].codes[n], part[i].b_scale[n], block, at, b[i][block][n]);
                settle(b[i][block][n]);
            }
    }
    wait_for_own_copies();
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
        read_a(at, 0, i, part[i]);
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
#pragma unroll
        for (int block = 0; block < LANE_BLOCKS; ++block)
            multiply_rows(part[i], at, block, b[i][block], sum);
}
