/* SPDX-License-Identifier: Apache-2.0
 *
 * Superslabs of 256 columns of K for sparse wgmma: A into the registers that it reads, B into
 * 128-byte-swizzled shared memory.
 *
 * K inside a superslab is permuted: lane q of a quad owns segment q, the columns 64q .. 64q + 63 of
 * A. Slab i (64 of the MMA's k) holds block i of the four segments: group t of segment s is at k
 * 16t + 4s, or in slabs 2 and 3 at 16(t ^ 2) + 4s: so a 16-byte chunk of B is a group of segments 2c
 * and 2c + 1, and the two halves of a segment write to different banks.
 */
#pragma once

#include "decode.cuh"
#include "wgmma.cuh"

static constexpr int SUPERSLAB = 256, SEGMENT = 64, SLABS = 4;

/* A warp takes eight rows of a superslab of B, a lane one chunk of 16 bytes (two blocks of a
 * segment) of rows `row` and `row` + 4: so eight lanes read a line. Rows are dealt to lanes
 * so that the swizzled 8-byte writes of half a warp meet all banks. */
struct b_place {
    uint32_t row, chunk;
};

NVS_DEVICE b_place
place_b(void)
{
    const uint32_t lane = threadIdx.x % 32;
    return {lane / 16 + lane / 8 % 2 * 2, lane % 8};
}

/* The column that stands at row `at` of an f16 tile: of 4 * RUN columns, a lane of the MMA holds RUN
 * in as many registers, and these are to be neighbours. */
template <int RUN>
NVS_DEVICE constexpr uint32_t
column_at(uint32_t at)
{
    return at / (4 * RUN) * (4 * RUN) + at % 8 / 2 * RUN + at / 8 % (RUN / 2) * 2 + at % 2;
}

/* Where the four groups of the first of a lane's blocks go in its first row. */
struct b_chunks {
    uint32_t group[4];
};

/* row: where the lane's first row stands in the first slab of the superslab. */
template <int BN>
NVS_DEVICE b_chunks
place_chunks(uint32_t row, const b_place &at)
{
    const uint32_t segment = at.chunk / 2, half = at.chunk % 2;
    row += half * (2 * BN * 128) + segment % 2 * 8;
    b_chunks to;
#pragma unroll
    for (int t = 0; t < 4; ++t)
        to.group[t] = row + (((2 * (t ^ 2 * half) + segment / 2) ^ at.row) << 4);
    return to;
}

/* The scales of a chunk's two blocks in its two rows, row by row. words: those of the segment. */
NVS_DEVICE void
decode_b_scales(const uint32_t (&words)[2], const b_place &at, uint32_t (&scales)[2])
{
    decode_scales(prmt(words[0], words[1], at.chunk % 2 ? 0x7632u : 0x5410u), scales);
}

/* A lane's chunk of its row r, `offset` bytes behind `to`. */
template <int BN>
NVS_DEVICE void
decode_b_row(const uint4 &raw, uint32_t scale, int r, const b_chunks &to, uint32_t offset)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t x[4][2]; /* group, pair of columns */
        decode_even_odd(word_of(raw, 2 * i), x[0], x[1]);
        decode_even_odd(word_of(raw, 2 * i + 1), x[2], x[3]);
        const uint32_t s = broadcast_half(scale, i);
#pragma unroll
        for (int t = 0; t < 4; ++t) /* four rows on, chunks of 16 bytes change places */
            st_shared_v2(to.group[t ^ 2 * r] + offset + i * (BN * 128) + 4 * r * 128,
                         mul_f16x2(x[t][0], s), mul_f16x2(x[t][1], s));
        keep_order(); /* ptxas would decode all first and leave the writes for the end */
    }
}

/* Both rows of a lane's chunk, with the four scales of its segment in each. */
template <int BN>
NVS_DEVICE void
decode_b(const uint4 (&raw)[2], const uint32_t (&words)[2], const b_chunks &to, uint32_t offset,
         const b_place &at)
{
    uint32_t scales[2];
    decode_b_scales(words, at, scales);
#pragma unroll
    for (int r = 0; r < 2; ++r)
        decode_b_row<BN>(raw[r], scales[r], r, to, offset);
}

/* This lane's segment of its ROWS rows of a warp's part of A: two, or one, and then the MMA's second
 * eight rows are zeros. */
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

/* Slab i of A against its f16 tile: two k32 steps that run on behind. */
template <int BN>
NVS_DEVICE void
issue_slab(const uint32_t (&step)[2][4], int i, uint64_t slab, uint32_t meta, float (&sum)[BN / 2])
{
    wgmma_sp_k32<0>(sum, step[0], slab + (i < 2 ? 0 : 4), meta);
    wgmma_sp_k32<1>(sum, step[1], slab + (i < 2 ? 4 : 0), meta);
}

/* The same as a group. ptxas would decode all slabs first and leave the MMAs for the end; in this
 * order they run beside the decoding. */
template <int BN>
NVS_DEVICE void
multiply_slab(const uint32_t (&step)[2][4], int i, uint64_t slab, uint32_t meta,
              float (&sum)[BN / 2])
{
    wgmma_fence();
    issue_slab<BN>(step, i, slab, meta, sum);
    wgmma_commit_group();
    keep_order();
}

/* Slabs i and i + 1 as one group; `slab` is the first one's f16 tile. */
template <int BN>
NVS_DEVICE void
multiply_pair(const uint32_t (&first)[2][4], const uint32_t (&second)[2][4], int i, uint64_t slab,
              uint32_t first_meta, uint32_t second_meta, float (&sum)[BN / 2])
{
    wgmma_fence();
    issue_slab<BN>(first, i, slab, first_meta, sum);
    issue_slab<BN>(second, i + 1, slab + (BN * 128 >> 4), second_meta, sum);
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
    uint32_t step[2][2][4]; /* two slabs at a time: registers are scarce */
#pragma unroll
    for (int i = 0; i < SLABS; ++i) {
        if (i >= 2)
            wgmma_wait<1>();
        decode_a(a, i, step[i % 2]);
        if (i == 0)
            bar_sync(barrier, threads);
        multiply_slab<BN>(step[i % 2], i, tile + i * (BN * 128 >> 4), meta[i], sum);
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
