/* SPDX-License-Identifier: Apache-2.0
 *
 * Few rows, or few columns: a block computes 8 * ROW_GROUPS rows x 8 * N_TILES columns of C. Its
 * threads copy a stage of 2048 columns of K to shared memory, then each of its 8 warps decodes 256
 * of them straight into MMA fragments, in two parts; the warps meet again only to add their sums.
 * More rows are more blocks.
 * K is permuted as warp_slab.cuh says, but in parts of 128 columns with segments of 32, two blocks.
 */
#include "decode.cuh"
#include "epilogue.cuh"
#include "gemm_args.h"
#include "ptx.cuh"
#include "warp_slab.cuh"
#include "warp_stage.cuh"

/* Where a lane reads the first part in a stage, and its constants. */
struct lane_place {
    uint32_t b, b_scale, vals, a_scale;
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
    at.b = shared + S::B + g * B_PITCH + warp * (WARP_K / 2) + q / 2 * (LANE_K / 2);
    at.b_scale = shared + S::B_SCALE + g * SCALE_PITCH + warp * (WARP_K / 16);
    at.vals = shared + S::VALS + g * A_PITCH + warp * (WARP_K / 4) + q * (LANE_K / 4);
    at.a_scale = shared + S::A_SCALE + g * SCALE_PITCH + warp * (WARP_K / 16) + q * LANE_BLOCKS;
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
                 : "+r"(at.b), "+r"(at.b_scale), "+r"(at.vals), "+r"(at.a_scale), "+r"(at.entry),
                   "+r"(at.b_byte[0]), "+r"(at.b_byte[1]), "+r"(at.b_scale_bytes),
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
        const uint32_t vals = at.vals + stage + i * (PART_K / 4) + 8 * r * A_PITCH;
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
read_b(const lane_place &at, uint32_t stage, int i, lane_part<S> &part)
{
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n) {
        const uint32_t codes = at.b + stage + i * (PART_K / 2) + 8 * n * B_PITCH;
        const uint2 scales = ld_shared_v2(at.b_scale + stage + i * (PART_K / 16) +
                                          8 * n * SCALE_PITCH);
        const uint32_t own = prmt(scales.x, scales.y, at.b_scale_bytes);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            part.codes[n][h] = ld_shared_v4(codes + h * LANE_K);
            part.b_scale[n][h] = decode_two_scales(own >> 16 * h);
        }
    }
}

template <class S>
NVS_DEVICE void
multiply_part_block(const lane_part<S> &part, const lane_place &at, int block,
                    float (&sum)[S::M_TILES][S::N_TILES][4])
{
    uint32_t f[2 * S::M_TILES][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) /* the last tile's other rows, if it has none: any values do */
        if (S::ROW_GROUPS % 2)
            asm volatile("" : "=r"(f[2 * S::M_TILES - 1][i]));
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r)
        decode_a(word_of(part.vals[r], block), broadcast_half(part.a_scale[r], block), r, at.entry,
                 f[r]);
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n) {
        uint32_t b[2][4];
        decode_b(part.codes[n], part.b_scale[n], block, at, b);
#pragma unroll
        for (int t = 0; t < S::M_TILES; ++t)
            multiply_block(sum[t][n], f[2 * t], f[2 * t + 1], b, part.metadata[block][t]);
    }
}

/* The warp's columns of a stage. */
template <class S>
NVS_DEVICE void
multiply(const lane_place &at, uint32_t stage, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    lane_part<S> part[PARTS];
    read_a(at, stage, 0, part[0]);
    read_b(at, stage, 0, part[0]);
    multiply_part_block(part[0], at, 0, sum);
    read_a(at, stage, 1, part[1]);
    read_b(at, stage, 1, part[1]);
    multiply_part_block(part[0], at, 1, sum);
    multiply_part_block(part[1], at, 0, sum);
    multiply_part_block(part[1], at, 1, sum);
}

/* Where a thread leaves its sums and finds all warps' of its elements of C, and those elements.
 * Neighbouring threads have neighbours in C. */
template <class S>
struct store_place {
    static constexpr int ELEMENTS = (S::ROWS * S::BLOCK_N + THREADS - 1) / THREADS;
    uint32_t own, from[ELEMENTS], exists[ELEMENTS];
    int64_t at[ELEMENTS];
};

template <class S>
NVS_DEVICE store_place<S>
place_store(const nvs_gemm_args &args, uint32_t sums, uint32_t row0, uint32_t column0)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool by_columns = args.out_stride_n != 1;
    store_place<S> place;
    place.own = sums + warp * S::WARP_SUMS + lane / 4 * S::SUM_ROW + lane % 4 * 8;
    asm volatile("" : "+r"(place.own)::"memory");
#pragma unroll
    for (int i = 0; i < place.ELEMENTS; ++i) {
        const uint32_t element = i * THREADS + threadIdx.x;
        const uint32_t row = by_columns ? element % S::ROWS : element / S::BLOCK_N;
        const uint32_t column = by_columns ? element / S::ROWS : element % S::BLOCK_N;
        place.from[i] = sums + row * S::SUM_ROW + column * 4;
        place.exists[i] = row < S::ROWS && column < S::BLOCK_N && row0 + row < (uint32_t)args.m &&
                          column0 + column < (uint32_t)args.n;
        place.at[i] = (row0 + row) * args.out_stride_m + (column0 + column) * args.out_stride_n;
        asm volatile("" : "+r"(place.from[i]), "+r"(place.exists[i]), "+l"(place.at[i])::"memory");
    }
    return place;
}

/* Adds the warps' sums in warp order and stores the tile. */
template <class S>
NVS_DEVICE void
reduce_and_store(const nvs_gemm_args &args, const store_place<S> &place,
                 const float (&sum)[S::M_TILES][S::N_TILES][4])
{
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r)
#pragma unroll
        for (int n = 0; n < S::N_TILES; ++n)
            st_shared_v2(place.own + 8 * r * S::SUM_ROW + 32 * n, sum[r / 2][n][2 * (r % 2)],
                         sum[r / 2][n][2 * (r % 2) + 1]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < place.ELEMENTS; ++i) {
        if (!place.exists[i])
            continue;
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            total += ld_shared_f32(place.from[i] + w * S::WARP_SUMS);
        store_value(args, place.at[i], scaled(total, load_alpha(args)));
    }
}

/* Where STAGES stages stand: as many as fit before the table, the others behind the sums. */
template <class S, int STAGES>
struct ring {
    static constexpr int FIT = S::TABLE / S::BYTES;
    static constexpr int BEFORE = STAGES < FIT ? STAGES : FIT;
    static constexpr int BEHIND = S::SUMS + WARPS * S::WARP_SUMS;
    static constexpr int SHARED_BYTES = BEHIND + (STAGES - BEFORE) * S::BYTES;

    NVS_DEVICE uint32_t
    next(uint32_t slot)
    {
        slot += S::BYTES;
        if (BEFORE < STAGES && slot == BEFORE * S::BYTES)
            return BEHIND;
        return slot == (BEFORE < STAGES ? SHARED_BYTES : STAGES * S::BYTES) ? 0 : slot;
    }
};

/* The tile and its parts of shared memory. */
struct block_place {
    uint32_t row0, column0, shared, table;
};

template <class S>
NVS_DEVICE block_place
place_block(void)
{
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    block_place at;
    at.row0 = row_of_tiles() * S::ROWS;
    at.column0 = blockIdx.x * S::BLOCK_N;
    at.shared = shared_address(dynamic_shared);
    at.table = at.shared + S::TABLE;
    return at;
}

/* K in whole warps' shares, up to a stage; scales by aligned 16 bytes. Each half of the warps copies
 * the half of K that it multiplies, so it waits for no other's copies, and each writes half of the
 * table, the second one before it copies: if both copied at the same time, their requests for the
 * operand that all blocks share would hold each other up, and no half would decode while the other's
 * operands are still on their way.
 *
 * Named barrier 1 + half stands for all that the half reads: its own copies, and the table, for
 * which the other half arrives there as soon as it has written.
 *
 * Straight-line code: a jump over instructions that are not there yet costs more than many
 * instructions. */
template <class S>
NVS_DEVICE void
gemm_one_stage(const nvs_gemm_args &parameters)
{
    constexpr int COPIERS = THREADS / 2, HALF_K = STAGE_K / 2;
    const nvs_gemm_args args = load_args(parameters);
    const block_place block = place_block<S>();
    const uint32_t half = threadIdx.x / COPIERS, thread = threadIdx.x % COPIERS;
    if (half == 1) {
        write_half_table(block.table, thread, 0);
        bar_arrive(1, THREADS);
    }
    copy_columns<S, COPIERS, HALF_K, 16>(args, block.shared, block.row0, block.column0,
                                         half * HALF_K, half * HALF_K, thread);
    cp_async_commit_group();
    if (half == 0) {
        write_half_table(block.table, thread, 1);
        bar_arrive(2, THREADS);
    }
    const store_place<S> place = place_store<S>(args, block.shared + S::SUMS, block.row0,
                                                block.column0);
    lane_place at = place_lane<S>(block.shared, block.table);
    settle(at);
    float sum[S::M_TILES][S::N_TILES][4] = {};
    cp_async_wait_group(0);
    bar_sync(1 + half, THREADS);
    multiply<S>(at, 0, sum);
    reduce_and_store<S>(args, place, sum);
}

/* Any K, a ring of STAGES of its stages; rows aligned to 16 bytes, scales to SCALE_CHUNK, or any
 * address if that is 0. A stage is copied to where the one before last stood, which all warps have
 * left when they meet for the next; of two stages one is not yet left then, so they meet once more.
 * The copies come after the arithmetic, whose reads of shared memory would queue behind them. */
template <class S, int STAGES, int SCALE_CHUNK>
NVS_DEVICE void
gemm_long(const nvs_gemm_args &parameters)
{
    using R = ring<S, STAGES>;
    const nvs_gemm_args args = load_args(parameters);
    const block_place block = place_block<S>();
    uint32_t ahead = 0, to = 0;
    const auto copy_next = [&] {
        if (ahead < (uint32_t)args.k) {
            if constexpr (SCALE_CHUNK > 0)
                copy_columns<S, THREADS, STAGE_K, SCALE_CHUNK>(
                    args, block.shared + to, block.row0, block.column0, ahead, 0, threadIdx.x);
            else
                copy_stage_bytewise<S>(args, block.shared + to, block.row0, block.column0, ahead);
        }
        ahead += STAGE_K;
        to = R::next(to);
        cp_async_commit_group();
    };
    copy_next();
    write_half_table(block.table, threadIdx.x % (THREADS / 2), threadIdx.x / (THREADS / 2));
#pragma unroll 1
    for (int i = 1; i < STAGES - 1; ++i)
        copy_next();
    const lane_place at = place_lane<S>(block.shared, block.table);
    float sum[S::M_TILES][S::N_TILES][4] = {};
    uint32_t slot = 0;
#pragma unroll 1
    for (uint32_t k0 = 0; k0 < (uint32_t)args.k; k0 += STAGE_K) {
        if (STAGES == 2)
            copy_next();
        cp_async_wait_group(STAGES == 2 ? 1 : STAGES - 2);
        __syncthreads();
        multiply<S>(at, slot, sum);
        if (STAGES > 2)
            copy_next();
        else
            __syncthreads();
        slot = R::next(slot);
    }
    const store_place<S> place = place_store<S>(args, block.shared + S::SUMS, block.row0,
                                                block.column0);
    reduce_and_store<S>(args, place, sum);
}

/* The function stands last, for the comma in its name. */
#define KERNEL(NAME, ROW_GROUPS, N_TILES, FEW, STAGES, SHARED, ...)                                \
    static_assert(ring<shape<ROW_GROUPS, N_TILES, FEW>, STAGES>::SHARED_BYTES == SHARED,           \
                  "gemm_args.h");                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        NAME(const __grid_constant__ nvs_gemm_args args)                                           \
    {                                                                                              \
        using S = shape<ROW_GROUPS, N_TILES, FEW>;                                                 \
        __VA_ARGS__(args);                                                                         \
    }

KERNEL(nvs_gemm_sm90_m8, 1, 2, false, 1, NVS_SM90_M8_SHARED, gemm_one_stage<S>)
KERNEL(nvs_gemm_sm90_m8_long, 1, 2, false, 4, NVS_SM90_M8_LONG_SHARED, gemm_long<S, 4, 4>)
KERNEL(nvs_gemm_sm90_m16, 2, 2, false, 1, NVS_SM90_M16_SHARED, gemm_one_stage<S>)
KERNEL(nvs_gemm_sm90_m16_long, 2, 2, false, 3, NVS_SM90_M16_LONG_SHARED, gemm_long<S, 3, 4>)
KERNEL(nvs_gemm_sm90_m16n8, 2, 1, true, 1, NVS_SM90_M16N8_SHARED, gemm_one_stage<S>)
KERNEL(nvs_gemm_sm90_m16n8_long, 2, 1, true, 4, NVS_SM90_M16N8_LONG_SHARED, gemm_long<S, 4, 16>)
KERNEL(nvs_gemm_sm90_m16n16, 2, 2, true, 1, NVS_SM90_M16_SHARED, gemm_one_stage<S>)
KERNEL(nvs_gemm_sm90_m16n16_long, 2, 2, true, 3, NVS_SM90_M16_LONG_SHARED, gemm_long<S, 3, 16>)
KERNEL(nvs_gemm_sm90_m32_long, 4, 2, false, 2, NVS_SM90_M32_LONG_SHARED, gemm_long<S, 2, 4>)
KERNEL(nvs_gemm_sm90_m32_any, 4, 2, false, 2, NVS_SM90_M32_LONG_SHARED, gemm_long<S, 2, 0>)
