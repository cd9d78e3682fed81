/* SPDX-License-Identifier: Apache-2.0
 *
 * E2M1 and UE4M3 to f16 for tensor cores, and 2:4 positions to MMA metadata.
 *
 * A code c = s eem becomes the f16 with bits s 000ee m000000000, which is its value times 2^-14
 * (subnormals included); a scale becomes its value times 2^7. So an operand is v * s * 2^-7: a
 * multiple of 2^-17 below 2^5, exact in f16, and a product of two operands carries 2^-14, which
 * the epilogue takes out (DECODE_UNSCALE).
 *
 * Inside a group, B's columns stand in the order 0 2 1 3: a word of eight codes yields the even
 * and the odd ones more cheaply than neighbours. The positions in the metadata follow: the two
 * bits of an index change places.
 */
#pragma once

#include "ptx.cuh"

static constexpr float DECODE_UNSCALE = 16384.f; /* 2^14 */

static constexpr uint32_t MAGNITUDE_BITS = 0x0E0E0E0Eu;

/* Eight codes to f16x2, pairs (0, 1) (2, 3) (4, 5) (6, 7): each register one group of A. */
NVS_DEVICE void
decode_neighbours(uint32_t codes, uint32_t (&f16x2)[4])
{
    uint32_t signs = codes & 0x88888888u;
    uint32_t even = lop3_select(codes << 1, shl_by_mul(signs, 16), MAGNITUDE_BITS);
    uint32_t odd = lop3_select(codes >> 3, signs, MAGNITUDE_BITS);
    uint32_t low = prmt(even, odd, 0x5140), high = prmt(even, odd, 0x7362);
    f16x2[0] = prmt(low, 0, 0x1404);
    f16x2[1] = prmt(low, 0, 0x3424);
    f16x2[2] = prmt(high, 0, 0x1404);
    f16x2[3] = prmt(high, 0, 0x3424);
}

/* Eight codes (two groups of B) to f16x2: group 0 as (0, 2) (1, 3), then group 1. */
NVS_DEVICE void
decode_even_odd(uint32_t codes, uint32_t (&group0)[2], uint32_t (&group1)[2])
{
    uint32_t signs = codes & 0x88888888u;
    uint32_t even = lop3_select(codes << 1, shl_by_mul(signs, 16), MAGNITUDE_BITS);
    uint32_t odd = lop3_select(codes >> 3, signs, MAGNITUDE_BITS);
    group0[0] = prmt(even, 0, 0x1404);
    group1[0] = prmt(even, 0, 0x3424);
    group0[1] = prmt(odd, 0, 0x1404);
    group1[1] = prmt(odd, 0, 0x3424);
}

static constexpr uint32_t TWO_TO_THE_7TH = 0x58005800u; /* f16x2 */

/* Two UE4M3 bytes (the low 16 bits) to f16x2; bit 7 is ignored, 0x7F gives NaN. */
NVS_DEVICE uint32_t
decode_two_scales(uint32_t bytes)
{
    return cvt_f16x2_e4m3x2(bytes & 0x7F7F7F7Fu);
}

/* Four UE4M3 bytes to two f16x2 of the value times 2^7. */
NVS_DEVICE void
decode_scales(uint32_t bytes, uint32_t (&f16x2)[2])
{
    f16x2[0] = mul_f16x2(decode_two_scales(bytes), TWO_TO_THE_7TH);
    f16x2[1] = mul_f16x2(decode_two_scales(bytes >> 16), TWO_TO_THE_7TH);
}

/* The lane's part of the transpose in quad_metadata(). */
struct quad_transpose {
    uint32_t rotate, keep, merge;
};

NVS_DEVICE quad_transpose
quad_transpose_of(int lane_in_quad)
{
    quad_transpose t;
    t.rotate = (lane_in_quad & 1) ? 28u : 4u;
    t.keep = (lane_in_quad & 1) ? 0xF0F0F0F0u : 0x0F0F0F0Fu;
    t.merge = (lane_in_quad & 2) ? 0x3715u : 0x6240u;
    return t;
}

/* MMA metadata of one block (four groups) of two rows per lane. Each lane brings the a_meta words
 * of its own segment; lane t of a quad leaves with group t of the segments of lanes 0..3, row g
 * in the low half, row g + 8 in the high half: a 4 x 4 transpose of nibbles over the quad. */
NVS_DEVICE uint32_t
quad_metadata(uint32_t row_g, uint32_t row_g8, const quad_transpose &t)
{
    uint32_t packed = lop3_select(prmt(row_g, row_g8, 0x6420), prmt(row_g, row_g8, 0x7531) << 4,
                                  0x0F0F0F0Fu);
    uint32_t other = __shfl_xor_sync(~0u, packed, 1);
    packed = lop3_select(packed, __funnelshift_l(other, other, t.rotate), t.keep);
    other = __shfl_xor_sync(~0u, packed, 2);
    return prmt(packed, other, t.merge);
}

/* Metadata for a B whose groups stand in the order 0 2 1 3. */
NVS_DEVICE uint32_t
swap_index_bits(uint32_t metadata)
{
    return lop3_select(metadata << 1, metadata >> 1, 0xAAAAAAAAu);
}

/* ---- decoding by table ----------------------------------------------------------------------
 *
 * The load/store unit idles while the integer pipe decodes, so part of the work goes to a table in
 * shared memory: entry b, 256 bytes long, holds the f16x2 of byte b's two codes once per bank, and
 * lane L reads bank L: no conflicts. The table is 64 KB, aligned to 64 KB, so that one PRMT makes
 * an address: byte 1 of it is the byte to decode. Its values are 2^7 times those of the other
 * functions, and their scales without that factor. */

static constexpr uint32_t TABLE_BYTES = 65536;

/* Writes the entry of a byte; a barrier must follow. */
NVS_DEVICE void
write_table_entry(uint32_t table, uint32_t byte)
{
    const uint32_t codes = (byte & 7u) << 9 | (byte & 8u) << 12 | (byte & 0x70u) << 21 |
                           (byte & 0x80u) << 24;
    const uint32_t f16x2 = mul_f16x2(codes, TWO_TO_THE_7TH);
    const uint32_t entry = table + 256 * byte + (byte & 7u) * 16;
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) /* neighbours start at different banks */
        st_shared_v4(entry ^ j * 16, f16x2, f16x2, f16x2, f16x2);
}

/* PRMT selector for byte i of a word of codes against lane_entry = table + 4 * lane. */
NVS_DEVICE uint32_t
table_selector(uint32_t i)
{
    return 0x7604u | i << 4;
}

NVS_DEVICE uint32_t
decode_by_table(uint32_t codes, uint32_t lane_entry, uint32_t selector)
{
    uint32_t f16x2; /* not volatile: the table does not change once it is written */
    asm("ld.shared.u32 %0, [%1];" : "=r"(f16x2) : "r"(prmt(codes, lane_entry, selector)));
    return f16x2;
}
