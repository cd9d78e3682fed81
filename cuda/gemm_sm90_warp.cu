/* SPDX-License-Identifier: Apache-2.0
 *
 * Few rows, or few columns: a block computes 8 * ROW_GROUPS rows x 8 * N_TILES columns of C. Its
 * threads copy a stage of 2048 columns of K to shared memory, then each of its 8 warps decodes 256
 * of them straight into MMA fragments; the warps meet again only to add their sums. More rows are
 * more blocks.
 * K is permuted as warp_slab.cuh says.
 */
#include "decode.cuh"
#include "epilogue.cuh"
#include "gemm_args.h"
#include "ptx.cuh"
#include "stage.cuh"
#include "warp_slab.cuh"

static constexpr int WARPS = 8, THREADS = 32 * WARPS;
static constexpr int STAGE_K = WARPS * SLAB_K; /* a slab a warp */

/* Row pitches that spread what a warp reads at a time over all banks. */
static constexpr int B_PITCH = STAGE_K / 2 + 16;
static constexpr int A_PITCH = STAGE_K / 4 + 64;
static constexpr int SCALE_PITCH = STAGE_K / 16 + 16;

/* A tile's size, and which operand all blocks share: B if FEW_COLUMNS, else A. */
template <int ROW_GROUPS_, int N_TILES_, bool FEW_COLUMNS_>
struct shape { /* and the byte offsets of one stage's parts in shared memory */
    static constexpr int ROW_GROUPS = ROW_GROUPS_, N_TILES = N_TILES_;
    static constexpr bool FEW_COLUMNS = FEW_COLUMNS_;
    static constexpr int ROWS = 8 * ROW_GROUPS, BLOCK_N = 8 * N_TILES;
    static constexpr int M_TILES = (ROW_GROUPS + 1) / 2;
    static constexpr int B = 0;
    static constexpr int VALS = B + BLOCK_N * B_PITCH;
    static constexpr int META = VALS + ROWS * A_PITCH;
    static constexpr int B_SCALE = META + ROWS * A_PITCH;
    static constexpr int A_SCALE = B_SCALE + BLOCK_N * SCALE_PITCH;
    static constexpr int BYTES = A_SCALE + ROWS * SCALE_PITCH;

    /* A warp's sums: bytes of a row and of all. Two words between rows keep the rows of a column
     * in banks of their own. */
    static constexpr int SUM_ROW = (BLOCK_N + 2) * 4, WARP_SUMS = ROWS * SUM_ROW;

    /* Stages, table, sums. Dynamic shared memory starts 1 KB into the block's own on compute
     * capability 9.0, so the table stands at 64 KB. */
    static constexpr int TABLE = TABLE_BYTES - 1024, SUMS = TABLE + TABLE_BYTES;
    static_assert(BYTES <= TABLE, "a stage fits before the table");
};

/* COLUMNS of K from k0 on to the stage's columns from `at` on, by COPIERS threads.
 *
 * The operand that all blocks share comes last, each block starting at another row of it: its
 * lines keep a few slices of L2 busy, and what an SM asks for behind them waits as well. */
template <class S, int COPIERS, int COLUMNS, int SCALE_CHUNK>
NVS_DEVICE void
copy_columns(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
             uint32_t k0, uint32_t at, uint32_t thread)
{
    constexpr int SCALES = COLUMNS / 16 / SCALE_CHUNK;
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    const uint32_t a_turn = S::FEW_COLUMNS ? 0 : blockIdx.x;
    const uint32_t b_turn = S::FEW_COLUMNS ? blockIdx.y : 0;
    const auto copy_b = [&] {
        copy_rows<COPIERS, S::BLOCK_N, COLUMNS / 32, B_PITCH, 16>(
            shared + S::B + at / 2, args.b_fp4, (uint32_t)args.b_fp4_ld, column0, n, k0 / 2, k / 2,
            thread, b_turn);
    };
    const auto copy_b_scales = [&] {
        copy_rows<COPIERS, S::BLOCK_N, SCALES, SCALE_PITCH, SCALE_CHUNK>(
            shared + S::B_SCALE + at / 16, args.b_scale, (uint32_t)args.b_scale_ld, column0, n,
            k0 / 16, k / 16, thread);
    };
    if (!S::FEW_COLUMNS)
        copy_b();
    copy_rows<COPIERS, S::ROWS, COLUMNS / 64, A_PITCH, 16>(shared + S::VALS + at / 4, args.a_vals,
                                                           (uint32_t)args.a_vals_ld, row0, m,
                                                           k0 / 4, k / 4, thread, a_turn);
    copy_rows<COPIERS, S::ROWS, COLUMNS / 64, A_PITCH, 16>(shared + S::META + at / 4, args.a_meta,
                                                           (uint32_t)args.a_meta_ld, row0, m,
                                                           k0 / 4, k / 4, thread, a_turn);
    if (!S::FEW_COLUMNS)
        copy_b_scales();
    copy_rows<COPIERS, S::ROWS, SCALES, SCALE_PITCH, SCALE_CHUNK>(
        shared + S::A_SCALE + at / 16, args.a_scale, (uint32_t)args.a_scale_ld, row0, m, k0 / 16,
        k / 16, thread);
    if (S::FEW_COLUMNS) {
        copy_b();
        copy_b_scales();
    }
}

template <class S>
NVS_DEVICE void
copy_stage_bytewise(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
                    uint32_t k0)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows_bytewise<THREADS, S::BLOCK_N, STAGE_K / 2, B_PITCH>(
        shared + S::B, args.b_fp4, args.b_fp4_ld, column0, n, k0 / 2, k / 2);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH>(
        shared + S::VALS, args.a_vals, args.a_vals_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH>(
        shared + S::META, args.a_meta, args.a_meta_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::BLOCK_N, STAGE_K / 16, SCALE_PITCH>(
        shared + S::B_SCALE, args.b_scale, args.b_scale_ld, column0, n, k0 / 16, k / 16);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 16, SCALE_PITCH>(
        shared + S::A_SCALE, args.a_scale, args.a_scale_ld, row0, m, k0 / 16, k / 16);
}

/* Where a lane reads in a stage, and its constants. */
struct lane_place {
    uint32_t b, b_scale, vals, a_scale;
    uint32_t entry, b_byte[2]; /* of the table, and the selectors of its bytes of a word of B */
    quad_transpose transpose;
};

template <class S>
NVS_DEVICE lane_place
place_lane(uint32_t shared, uint32_t table)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    lane_place at;
    at.b = shared + S::B + g * B_PITCH + warp * (SLAB_K / 2) + q / 2 * (SEGMENT / 2);
    at.b_scale = shared + S::B_SCALE + g * SCALE_PITCH + warp * (SLAB_K / 16) +
                 q / 2 * (SEGMENT / 16);
    at.vals = shared + S::VALS + g * A_PITCH + warp * (SLAB_K / 4) + q * (SEGMENT / 4);
    at.a_scale = shared + S::A_SCALE + g * SCALE_PITCH + warp * (SLAB_K / 16) + q * (SEGMENT / 16);
    at.entry = table + 4 * (threadIdx.x % 32);
    at.b_byte[0] = table_selector(q & 1);
    at.b_byte[1] = table_selector(2 + (q & 1));
    at.transpose = quad_transpose_of(q);
    return at;
}

/* Both steps' B registers of one block and n8 tile: register 2j + h of step s is the even or the
 * odd byte of group 2s + j of segment q / 2 + 2h. */
NVS_DEVICE void
decode_b(const uint4 (&codes)[2][2], const uint32_t (&scales)[2][2], int block,
         const lane_place &at, uint32_t (&b)[2][4])
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t scale = broadcast_half(scales[h][block / 2], block & 1);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                b[s][2 * j + h] = mul_f16x2(
                    decode_by_table(word_of(codes[h][block / 2], 2 * (block & 1) + s), at.entry,
                                    at.b_byte[j]),
                    scale);
    }
}

/* One block of row group r of A. Odd row groups go through the table, even ones do not: that
 * keeps the load/store unit and the integer pipe about equally busy. */
NVS_DEVICE void
decode_a(uint32_t vals, uint32_t scale, int r, uint32_t entry, uint32_t (&f)[4])
{
    if (r & 1)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            f[i] = decode_by_table(vals, entry, table_selector(i));
    else
        decode_neighbours(vals, f);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        f[i] = mul_f16x2(f[i], scale);
}

template <class S>
NVS_DEVICE void
multiply(const lane_place &at, uint32_t stage_offset, float (&sum)[S::M_TILES][S::N_TILES][4])
{
    uint4 vals[2 * S::M_TILES], meta[2 * S::M_TILES], codes[S::N_TILES][2][2];
    uint32_t a_scale[2 * S::M_TILES][2], b_scale[S::N_TILES][2][2];
#pragma unroll
    for (int r = 0; r < 2 * S::M_TILES; ++r) {
        vals[r] = meta[r] = make_uint4(0, 0, 0, 0);
        a_scale[r][0] = a_scale[r][1] = 0;
        if (r < S::ROW_GROUPS) {
            const uint32_t vals_at = at.vals + stage_offset + 8 * r * A_PITCH;
            meta[r] = ld_shared_v4(vals_at + S::META - S::VALS);
            vals[r] = ld_shared_v4(vals_at);
            decode_scales(ld_shared_u32(at.a_scale + stage_offset + 8 * r * SCALE_PITCH),
                          a_scale[r]);
        }
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint32_t b_at = at.b + stage_offset + 8 * n * B_PITCH + h * SEGMENT;
            codes[n][h][0] = ld_shared_v4(b_at);
            codes[n][h][1] = ld_shared_v4(b_at + 16);
            decode_scales(
                ld_shared_u32(at.b_scale + stage_offset + 8 * n * SCALE_PITCH + h * (SEGMENT / 8)),
                b_scale[n][h]);
        }
    uint32_t e[S::M_TILES];
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        uint32_t f[2 * S::M_TILES][4] = {};
#pragma unroll
        for (int t = 0; t < S::M_TILES; ++t)
            if (2 * t + 1 < S::ROW_GROUPS)
                e[t] = quad_metadata(word_of(meta[2 * t], block), word_of(meta[2 * t + 1], block),
                                     at.transpose);
            else if (block % 2 == 0)
                e[t] = quad_metadata(word_of(meta[2 * t], block), word_of(meta[2 * t], block + 1),
                                     at.transpose);
            else
                e[t] >>= 16;
#pragma unroll
        for (int r = 0; r < S::ROW_GROUPS; ++r)
            decode_a(word_of(vals[r], block), broadcast_half(a_scale[r][block / 2], block & 1), r,
                     at.entry, f[r]);
#pragma unroll
        for (int n = 0; n < S::N_TILES; ++n) {
            uint32_t b[2][4];
            decode_b(codes[n], b_scale[n], block, at, b);
#pragma unroll
            for (int t = 0; t < S::M_TILES; ++t)
                multiply_block(sum[t][n], f[2 * t], f[2 * t + 1], b, e[t]);
        }
    }
}

/* Adds the warps' sums in warp order and stores the tile. Neighbouring threads take what are
 * neighbours in C. */
template <class S>
NVS_DEVICE void
reduce_and_store(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
                 const float (&sum)[S::M_TILES][S::N_TILES][4])
{
    constexpr int TILE = S::ROWS * S::BLOCK_N;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t own = shared + warp * S::WARP_SUMS + lane / 4 * S::SUM_ROW + lane % 4 * 8;
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r)
#pragma unroll
        for (int n = 0; n < S::N_TILES; ++n)
            st_shared_v2(own + 8 * r * S::SUM_ROW + 32 * n, sum[r / 2][n][2 * (r % 2)],
                         sum[r / 2][n][2 * (r % 2) + 1]);
    const bool by_columns = args.out_stride_n != 1;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < TILE; e += THREADS) {
        const uint32_t at = e + threadIdx.x;
        if (TILE < THREADS && at >= TILE)
            return;
        const uint32_t row = by_columns ? at % S::ROWS : at / S::BLOCK_N;
        const uint32_t column = by_columns ? at / S::ROWS : at % S::BLOCK_N;
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            total += ld_shared_f32(shared + w * S::WARP_SUMS + row * S::SUM_ROW + column * 4);
        store_element(args, row0 + row, column0 + column, total);
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
 * the half of K that it multiplies, so it waits for no other's copies. The second half writes the
 * table before it copies: the first decodes while the second's operands are still on their way.
 *
 * One barrier a half, named 1 + half, stands for all that the half reads. The first half's counts
 * the second too, which arrives once the table is written and goes on to its copies; the second
 * half's own threads wrote the table, so it meets alone.
 *
 * Straight-line code: a jump over instructions that are not there yet costs more than many
 * instructions. */
template <class S>
NVS_DEVICE void
gemm_one_stage(const nvs_gemm_args &parameters)
{
    constexpr int HALF = THREADS / 2, HALF_K = STAGE_K / 2;
    const nvs_gemm_args args = load_args(parameters);
    const block_place block = place_block<S>();
    const uint32_t half = threadIdx.x / HALF, thread = threadIdx.x % HALF;
    if (half == 1) {
        write_two_table_entries(block.table, thread);
        bar_arrive(1, THREADS);
    }
    copy_columns<S, HALF, HALF_K, 16>(args, block.shared, block.row0, block.column0, half * HALF_K,
                                      half * HALF_K, thread);
    cp_async_commit_group();
    const lane_place at = place_lane<S>(block.shared, block.table);
    float sum[S::M_TILES][S::N_TILES][4] = {};
    cp_async_wait_group(0);
    bar_sync(1 + half, half == 0 ? THREADS : HALF);
    multiply<S>(at, 0, sum);
    reduce_and_store<S>(args, block.shared + S::SUMS, block.row0, block.column0, sum);
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
    write_table_entry(block.table, threadIdx.x);
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
    reduce_and_store<S>(args, block.shared + S::SUMS, block.row0, block.column0, sum);
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
