/* SPDX-License-Identifier: Apache-2.0
 *
 * Superslabs of 256 columns of K for sparse wgmma: A into the registers that it reads, B into
 * 128-byte-swizzled shared memory.
 *
 * K inside a superslab is permuted: lane q of a quad owns segment q, the columns 64q .. 64q + 63 of
 * A. Slab i (64 of the MMA's k) holds block i of the four segments: group t of segment s is at k
 * 16t + 4s, so a 16-byte chunk of B is group t of segments 2c and 2c + 1.
 */
#pragma once

#include "decode.cuh"
#include "wgmma.cuh"

static constexpr int SUPERSLAB = 256, SEGMENT = 64, SLABS = 4;

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

/* Where a unit's four 16-byte chunks of a block go; `row` is the row in the slab of its first
 * block. */
struct b_chunks {
    uint32_t group[4];
};

NVS_DEVICE b_chunks
place_chunks(uint32_t row, const b_place &at)
{
    b_chunks to;
#pragma unroll
    for (int t = 0; t < 4; ++t)
        to.group[t] = row + (((2 * t + at.pair) ^ at.row) << 4);
    return to;
}

/* One unit, 16 bytes of codes of each segment and the four scales of each, `offset` bytes behind
 * the chunks. */
template <int BN>
NVS_DEVICE void
decode_b(const uint4 (&raw)[2], uint2 words, const b_chunks &to, uint32_t offset, const b_place &at)
{
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
            st_shared_v4(to.group[t] + offset + i * (BN * 128), mul_f16x2(x[t][0][0], s0),
                         mul_f16x2(x[t][0][1], s0), mul_f16x2(x[t][1][0], s1),
                         mul_f16x2(x[t][1][1], s1));
    }
}

/* This lane's segment of its ROWS rows of a warp's part of A: g and g + 8, or g alone, and then the
 * MMA's rows g + 8 are zeros. */
template <int ROWS>
struct a_share {
    uint4 vals[ROWS], meta[ROWS];
    uint32_t scale[ROWS][2];
};

/* The metadata of all slabs, before any values: a shuffle waits long, and these wait together. With
 * one row a lane, two slabs share the two halves of a word: what the MMA then takes for the
 * metadata of the rows of zeros is of no account. */
template <int ROWS>
NVS_DEVICE void
decode_metadata(const a_share<ROWS> &a, const quad_transpose &transpose, uint32_t (&meta)[SLABS])
{
#pragma unroll
    for (int i = 0; i < SLABS; i += 3 - ROWS) {
        const uint32_t second = ROWS == 2 ? word_of(a.meta[ROWS - 1], i)
                                          : word_of(a.meta[0], i + 1);
        meta[i] = swap_index_bits(quad_metadata(word_of(a.meta[0], i), second, transpose));
        if (ROWS == 1)
            meta[i + 1] = meta[i] >> 16;
    }
    keep_order();
}

/* Slab i of A, both its k32 steps, in the registers that wgmma reads. */
template <int ROWS>
NVS_DEVICE void
decode_a(const a_share<ROWS> &a, int slab, uint32_t (&step)[2][4])
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        uint32_t f[4] = {};
        if (r < ROWS)
            decode_neighbours(word_of(a.vals[r % ROWS], slab), f);
        const uint32_t scale = broadcast_half(a.scale[r % ROWS][slab / 2], slab & 1);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            step[i / 2][2 * (i % 2) + r] = r < ROWS ? mul_f16x2(f[i], scale) : 0;
    }
}

/* A slab of A against the part's B tile: two k32 steps that run on behind. ptxas would decode all
 * slabs first and leave the MMAs for the end; in this order they run beside the decoding. */
template <int BN>
NVS_DEVICE void
multiply_slab(const uint32_t (&step)[2][4], uint64_t slab, uint32_t meta, float (&sum)[BN / 2])
{
    wgmma_fence();
    wgmma_sp_k32<0>(sum, step[0], slab, meta);
    wgmma_sp_k32<1>(sum, step[1], slab + 4, meta);
    wgmma_commit_group();
    keep_order();
}

/* A's four slabs against the part's B tile. The part's threads meet once, when the first slab of A
 * is ready and so, by then, is the tile; each has called fence_proxy_async() since it wrote there. */
template <int BN, int ROWS>
NVS_DEVICE void
multiply_slabs(const a_share<ROWS> &a, const uint32_t (&meta)[SLABS], uint64_t tile, int barrier,
               int threads, float (&sum)[BN / 2])
{
    uint32_t step[SLABS][2][4];
#pragma unroll
    for (int i = 0; i < SLABS; ++i) {
        decode_a(a, i, step[i]);
        if (i == 0)
            bar_sync(barrier, threads);
        multiply_slab<BN>(step[i], tile + i * (BN * 128 >> 4), meta[i], sum);
    }
}

template <int BN, int ROWS>
NVS_DEVICE void
multiply_superslab(const a_share<ROWS> &a, const quad_transpose &transpose, uint64_t tile,
                   int barrier, int threads, float (&sum)[BN / 2])
{
    uint32_t meta[SLABS];
    decode_metadata(a, transpose, meta);
    fence_proxy_async();
    multiply_slabs<BN>(a, meta, tile, barrier, threads, sum);
}
