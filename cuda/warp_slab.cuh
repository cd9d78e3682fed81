/* SPDX-License-Identifier: Apache-2.0
 *
 * What a warp does with a slab, 256 columns of K: fragments of mma.sp.m16n8k32 straight from the
 * operands' bytes.
 *
 * K inside a slab is permuted so that one 16-byte load of a_vals is a lane's share of a row: lane
 * q of a quad owns segment q, the columns 64q .. 64q + 63, four blocks of one scale each. Step
 * (i, s) of the slab's 8 MMAs takes block i of all four segments, groups 2s and 2s + 1: MMA group
 * j < 4 is group 2s of segment j, group 4 + j is group 2s + 1 of it. So lane (g, q) of a warp
 * supplies of A rows g and g + 8, segment q; and of B column g, segments q / 2 and q / 2 + 2, of
 * each group the even byte if q is even, else the odd one. Fragment layouts: PTX ISA.
 */
#pragma once

#include "decode.cuh"
#include "ptx.cuh"

static constexpr int SLAB_K = 256, SEGMENT = 64, BLOCKS = 4;

/* Both steps' A registers of one block of one row. */
NVS_DEVICE void
decode_row_block(uint32_t vals, uint32_t scale, uint32_t (&a)[4])
{
    decode_neighbours(vals, a);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        a[i] = mul_f16x2(a[i], scale);
}

/* PRMT selector of the bytes of B that lane q of a quad uses, out of two words. */
NVS_DEVICE uint32_t
column_selector(uint32_t q)
{
    return (q & 1) ? 0x7531u : 0x6420u;
}

/* Both steps' B registers of one block: register 2j + h of step s is the lane's byte of group
 * 2s + j of segment q / 2 + 2h. words[h] are that segment's two words, scale[h] its scale. */
NVS_DEVICE void
decode_column_block(const uint32_t (&words)[2][2], const uint32_t (&scale)[2], uint32_t selector,
                    uint32_t (&b)[2][4])
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t f[4];
        decode_neighbours(prmt(words[h][0], words[h][1], selector), f);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                b[s][2 * j + h] = mul_f16x2(f[2 * s + j], scale[h]);
    }
}

/* The same by table. byte[j]: the selector of the lane's byte of a word's group j. */
NVS_DEVICE void
decode_column_block_by_table(const uint32_t (&words)[2][2], const uint32_t (&scale)[2],
                             uint32_t lane_entry, const uint32_t (&byte)[2], uint32_t (&b)[2][4])
{
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                b[s][2 * j + h] = mul_f16x2(decode_by_table(words[h][s], lane_entry, byte[j]),
                                            scale[h]);
}

/* One block's two steps: rows g and g + 8 of A times 8 columns of B. */
NVS_DEVICE void
multiply_block(float (&sum)[4], const uint32_t (&row_g)[4], const uint32_t (&row_g8)[4],
               const uint32_t (&b)[2][4], uint32_t metadata)
{
    mma_sp_m16n8k32<0>(sum, row_g[0], row_g8[0], row_g[1], row_g8[1], b[0], metadata);
    mma_sp_m16n8k32<1>(sum, row_g[2], row_g8[2], row_g[3], row_g8[3], b[1], metadata);
}
