/* SPDX-License-Identifier: Apache-2.0
 *
 * B on its way to shared memory, for the kernels of gemm_sm90_tall.cu: each of the four warps that
 * decode it copies what it decodes itself, B_SLOTS superslabs ahead, and waits for no other's.
 */
#pragma once

#include "cluster_k.cuh"
#include "tile_sum.cuh"

/* The block's tile, and its share of K. */
struct share {
    uint32_t shared, row0, column0;
    uint32_t rank, superslabs;
};

/* A warp's way along its columns of B, a superslab at a time: eight tile rows of each 32. A lane
 * copies its chunk of four of these columns, whose distance the tile's order says, and the first
 * lanes a column's scales. */
template <class S>
struct b_stream {
    static constexpr int UNITS = S::BN / 32, RUN = store_shape<S>::RUN; /* see column_at() */
    static constexpr int UNIT_COLUMNS = column_at<RUN>(32); /* from a unit to the next */

    const uint8_t *codes, *scale; /* of the first column */
    uint32_t ld;
    int columns, scale_columns;        /* left of B, from there */
    uint32_t next;                     /* superslab of the block's share */
    uint32_t to, scale_to, scale_from; /* where to, and where the scales to its codes are */
    uint32_t slot;                     /* of B, in bytes */
};

template <class S>
NVS_DEVICE b_stream<S>
start_stream(const nvs_gemm_args &args, const share &block, const b_place &at)
{
    constexpr int RUN = b_stream<S>::RUN;
    const uint32_t lane = threadIdx.x % 32, row = first_b_row() + at.row; /* of the tile */
    const uint32_t scale_row = first_b_row() + lane / 8 % 2 * 32 + lane % 8;
    const uint32_t column = block.column0 + column_at<RUN>(row);
    const uint32_t scale_column = block.column0 + column_at<RUN>(scale_row);
    const uint32_t k0 = block.rank * BLOCK_K;
    b_stream<S> stream;
    stream.ld = (uint32_t)args.b_fp4_ld;
    stream.codes = args.b_fp4 + (uint64_t)column * stream.ld + k0 / 2 + at.chunk * 16;
    stream.scale = args.b_scale + (uint64_t)scale_column * (uint32_t)args.b_scale_ld + k0 / 16;
    stream.columns = (int)((uint32_t)args.n - column);
    stream.scale_columns = (int)((uint32_t)args.n - scale_column);
    stream.next = 0;
    stream.to = block.shared + S::B + row * (SUPERSLAB / 2) + at.chunk * 16;
    stream.scale_to = block.shared + S::B + S::B_SCALE + scale_row * (SUPERSLAB / 16);
    stream.scale_from = block.shared + S::B + S::B_SCALE + at.chunk / 2 * 4 +
                        row * (SUPERSLAB / 16);
    stream.slot = 0;
    return stream;
}

/* A group of copies, once all lanes have read what they write over. Columns past the last are zeros,
 * and so is what comes behind the block's share of K. */
template <class S>
NVS_DEVICE void
copy_next_b(const share &block, b_stream<S> &stream)
{
    const int columns = stream.next < block.superslabs ? stream.columns : 0;
    const bool scales = stream.next < block.superslabs && stream.scale_columns > 0;
    ++stream.next; /* the first superslab of the block's next stage is a stage further on */
    const uint32_t step = SUPERSLAB + (stream.next % 4 == 0 ? (S::BLOCKS - 1) * BLOCK_K : 0);
    __syncwarp();
#pragma unroll
    for (int u = 0; u < stream.UNITS; ++u)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int on = u * stream.UNIT_COLUMNS + r * 2 * stream.RUN;
            cp_async_16(stream.to + stream.slot + (32 * u + 4 * r) * (SUPERSLAB / 2),
                        stream.codes + (uint64_t)on * stream.ld, columns > on);
        }
    cp_async_16_if(threadIdx.x % 32 < 8 * stream.UNITS, stream.scale_to + stream.slot, stream.scale,
                   scales);
    cp_async_commit_group();
    stream.codes += step / 2;
    stream.scale += step / 16;
    stream.slot = stream.slot == (S::B_SLOTS - 1) * S::B_BYTES ? 0 : stream.slot + S::B_BYTES;
}

/* The oldest superslab under way, which the next copy will write over. */
template <class S>
NVS_DEVICE void
read_b(const b_stream<S> &stream, b_share<S::BN> &b)
{
    cp_async_wait_group(S::B_SLOTS - 1);
    __syncwarp();
#pragma unroll
    for (int u = 0; u < stream.UNITS; ++u)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = 32 * u + 4 * r;
            b.codes[u][r] = ld_shared_v4(stream.to + stream.slot + row * (SUPERSLAB / 2));
            b.scale[u][r] = ld_shared_u32(stream.scale_from + stream.slot + row * (SUPERSLAB / 16));
        }
}
