/* SPDX-License-Identifier: Apache-2.0
 *
 * Few rows: a block computes 8 * ROW_GROUPS rows x 16 columns of C. All its threads copy a stage
 * of 2048 columns of K to shared memory, then each of its 8 warps decodes 256 of them straight
 * into MMA fragments; the warps meet again only to add their sums. More rows are more blocks.
 *
 * K inside a warp's 256 columns is permuted so that one 16-byte load of a_vals is a lane's share:
 * lane q of a quad owns segment q, the columns 64q .. 64q + 63. Step (i, s) of the 8 sparse k32
 * MMAs takes block i of all four segments, groups 2s and 2s + 1: MMA group j < 4 is group 2s of
 * segment j, group 4 + j is group 2s + 1 of it. Fragment layouts: PTX ISA, mma.sp.m16n8k32.
 */
#include "decode.cuh"
#include "epilogue.cuh"
#include "gemm_args.h"
#include "ptx.cuh"
#include "stage.cuh"

static constexpr int WARPS = 8, THREADS = 32 * WARPS;
static constexpr int WARP_K = 256, STAGE_K = WARPS * WARP_K, SEGMENT = 64, BLOCKS = 4;
static constexpr int BLOCK_N = 16, N_TILES = 2;

/* Row pitches that spread what a warp reads at a time over all banks. */
static constexpr int B_PITCH = STAGE_K / 2 + 16;
static constexpr int A_PITCH = STAGE_K / 4 + 64;
static constexpr int SCALE_PITCH = STAGE_K / 16 + 16;

template <int ROW_GROUPS>
struct stage { /* byte offsets of one stage's parts in shared memory */
    static constexpr int ROWS = 8 * ROW_GROUPS;
    static constexpr int B = 0;
    static constexpr int VALS = B + BLOCK_N * B_PITCH;
    static constexpr int META = VALS + ROWS * A_PITCH;
    static constexpr int B_SCALE = META + ROWS * A_PITCH;
    static constexpr int A_SCALE = B_SCALE + BLOCK_N * SCALE_PITCH;
    static constexpr int BYTES = A_SCALE + ROWS * SCALE_PITCH;
    static constexpr int SUM_BYTES = WARPS * ROWS * BLOCK_N * 4;
    static_assert(1024 + BYTES <= TABLE_BYTES, "a stage fits before the table");
};

/* What a kernel takes. ONE_STAGE is straight-line code: a jump over instructions that are not there
 * yet costs more than many instructions. */
enum form {
    ONE_STAGE,  /* aligned rows, K up to a stage */
    LONG_K,     /* aligned rows, any K */
    ANY_ADDRESS /* any K and rows at any address */
};

template <int ROW_GROUPS>
NVS_DEVICE void
copy_stage(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0, uint32_t k0)
{
    using S = stage<ROW_GROUPS>;
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows<THREADS, BLOCK_N, STAGE_K / 32, B_PITCH, 16>(
        shared + S::B, args.b_fp4, (uint32_t)args.b_fp4_ld, column0, n, k0 / 2, k / 2);
    copy_rows<THREADS, S::ROWS, STAGE_K / 64, A_PITCH, 16>(
        shared + S::VALS, args.a_vals, (uint32_t)args.a_vals_ld, row0, m, k0 / 4, k / 4);
    copy_rows<THREADS, S::ROWS, STAGE_K / 64, A_PITCH, 16>(
        shared + S::META, args.a_meta, (uint32_t)args.a_meta_ld, row0, m, k0 / 4, k / 4);
    copy_rows<THREADS, BLOCK_N, STAGE_K / 64, SCALE_PITCH, 4>(
        shared + S::B_SCALE, args.b_scale, (uint32_t)args.b_scale_ld, column0, n, k0 / 16, k / 16);
    copy_rows<THREADS, S::ROWS, STAGE_K / 64, SCALE_PITCH, 4>(
        shared + S::A_SCALE, args.a_scale, (uint32_t)args.a_scale_ld, row0, m, k0 / 16, k / 16);
}

template <int ROW_GROUPS>
NVS_DEVICE void
copy_stage_bytewise(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
                    uint32_t k0)
{
    using S = stage<ROW_GROUPS>;
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    copy_rows_bytewise<THREADS, BLOCK_N, STAGE_K / 2, B_PITCH>(
        shared + S::B, args.b_fp4, args.b_fp4_ld, column0, n, k0 / 2, k / 2);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH>(
        shared + S::VALS, args.a_vals, args.a_vals_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, S::ROWS, STAGE_K / 4, A_PITCH>(
        shared + S::META, args.a_meta, args.a_meta_ld, row0, m, k0 / 4, k / 4);
    copy_rows_bytewise<THREADS, BLOCK_N, STAGE_K / 16, SCALE_PITCH>(
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

template <int ROW_GROUPS>
NVS_DEVICE lane_place
place_lane(uint32_t shared, uint32_t table)
{
    using S = stage<ROW_GROUPS>;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    lane_place at;
    at.b = shared + S::B + g * B_PITCH + warp * (WARP_K / 2) + q / 2 * (SEGMENT / 2);
    at.b_scale = shared + S::B_SCALE + g * SCALE_PITCH + warp * (WARP_K / 16) +
                 q / 2 * (SEGMENT / 16);
    at.vals = shared + S::VALS + g * A_PITCH + warp * (WARP_K / 4) + q * (SEGMENT / 4);
    at.a_scale = shared + S::A_SCALE + g * SCALE_PITCH + warp * (WARP_K / 16) + q * (SEGMENT / 16);
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

template <int ROW_GROUPS>
NVS_DEVICE void
multiply(const lane_place &at, uint32_t stage_offset,
         float (&sum)[(ROW_GROUPS + 1) / 2][N_TILES][4])
{
    using S = stage<ROW_GROUPS>;
    constexpr int M_TILES = (ROW_GROUPS + 1) / 2;
    uint4 vals[2 * M_TILES], meta[2 * M_TILES], codes[N_TILES][2][2];
    uint32_t a_scale[2 * M_TILES][2], b_scale[N_TILES][2][2];
#pragma unroll
    for (int r = 0; r < 2 * M_TILES; ++r) {
        vals[r] = meta[r] = make_uint4(0, 0, 0, 0);
        a_scale[r][0] = a_scale[r][1] = 0;
        if (r < ROW_GROUPS) {
            const uint32_t vals_at = at.vals + stage_offset + 8 * r * A_PITCH;
            meta[r] = ld_shared_v4(vals_at + S::META - S::VALS);
            vals[r] = ld_shared_v4(vals_at);
            decode_scales(ld_shared_u32(at.a_scale + stage_offset + 8 * r * SCALE_PITCH),
                          a_scale[r]);
        }
    }
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint32_t b_at = at.b + stage_offset + 8 * n * B_PITCH + h * SEGMENT;
            codes[n][h][0] = ld_shared_v4(b_at);
            codes[n][h][1] = ld_shared_v4(b_at + 16);
            decode_scales(
                ld_shared_u32(at.b_scale + stage_offset + 8 * n * SCALE_PITCH + h * (SEGMENT / 8)),
                b_scale[n][h]);
        }
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        uint32_t f[2 * M_TILES][4] = {}, e[M_TILES];
#pragma unroll
        for (int t = 0; t < M_TILES; ++t)
            e[t] = quad_metadata(word_of(meta[2 * t], block), word_of(meta[2 * t + 1], block),
                                 at.transpose);
#pragma unroll
        for (int r = 0; r < ROW_GROUPS; ++r)
            decode_a(word_of(vals[r], block), broadcast_half(a_scale[r][block / 2], block & 1), r,
                     at.entry, f[r]);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            uint32_t b[2][4];
            decode_b(codes[n], b_scale[n], block, at, b);
#pragma unroll
            for (int t = 0; t < M_TILES; ++t) {
                const uint32_t(&x)[4] = f[2 * t], (&y)[4] = f[2 * t + 1];
                mma_sp_m16n8k32<0>(sum[t][n], x[0], y[0], x[1], y[1], b[0], e[t]);
                mma_sp_m16n8k32<1>(sum[t][n], x[2], y[2], x[3], y[3], b[1], e[t]);
            }
        }
    }
}

/* Adds the warps' sums in warp order and stores the tile. */
template <int ROW_GROUPS>
NVS_DEVICE void
reduce_and_store(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t column0,
                 const float (&sum)[(ROW_GROUPS + 1) / 2][N_TILES][4])
{
    constexpr int ROWS = 8 * ROW_GROUPS, TILE = ROWS * BLOCK_N;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; ++r)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
            st_shared_v2(
                shared + 4 * (warp * TILE + (8 * r + lane / 4) * BLOCK_N + 8 * n + 2 * (lane % 4)),
                sum[r / 2][n][2 * (r % 2)], sum[r / 2][n][2 * (r % 2) + 1]);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < TILE; e += THREADS) {
        const uint32_t at = e + threadIdx.x;
        if (TILE < THREADS && at >= TILE)
            return;
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            total += ld_shared_f32(shared + 4 * (w * TILE + at));
        store_element(args, row0 + at / BLOCK_N, column0 + at % BLOCK_N, total);
    }
}

template <int ROW_GROUPS, form FORM>
NVS_DEVICE void
gemm(const nvs_gemm_args &parameters)
{
    const nvs_gemm_args args = load_args(parameters);
    using S = stage<ROW_GROUPS>;
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    const uint32_t shared = shared_address(dynamic_shared), k = (uint32_t)args.k;
    const uint32_t table = (shared + S::BYTES + TABLE_BYTES - 1) & ~(TABLE_BYTES - 1);
    const uint32_t sums = table + TABLE_BYTES, other_stage = sums + S::SUM_BYTES - shared;
    const uint32_t row0 = row_of_tiles() * S::ROWS, column0 = blockIdx.x * BLOCK_N;
    const auto copy = [&](uint32_t to, uint32_t k0) {
        if (FORM == ANY_ADDRESS)
            copy_stage_bytewise<ROW_GROUPS>(args, to, row0, column0, k0);
        else
            copy_stage<ROW_GROUPS>(args, to, row0, column0, k0);
        cp_async_commit_group();
    };
    copy(shared, 0);
    write_table_entry(table, threadIdx.x);
    const lane_place at = place_lane<ROW_GROUPS>(shared, table);
    float sum[(ROW_GROUPS + 1) / 2][N_TILES][4] = {};
    uint32_t stage_offset = 0;
    if (FORM != ONE_STAGE)
        for (uint32_t next = STAGE_K; next < k; next += STAGE_K) {
            copy(shared + (stage_offset ^ other_stage), next);
            cp_async_wait_group(1);
            __syncthreads();
            multiply<ROW_GROUPS>(at, stage_offset, sum);
            __syncthreads();
            stage_offset ^= other_stage;
        }
    cp_async_wait_group(0);
    __syncthreads();
    multiply<ROW_GROUPS>(at, stage_offset, sum);
    reduce_and_store<ROW_GROUPS>(args, sums, row0, column0, sum);
}

/* Dynamic shared memory starts 1 KB into the block's own on compute capability 9.0, so the table
 * stands at 64 KB, the first stage before it and the rest behind. */
template <int ROW_GROUPS, form FORM>
constexpr int SHARED_BYTES = 2 * TABLE_BYTES - 1024 + stage<ROW_GROUPS>::SUM_BYTES +
                             (FORM == ONE_STAGE ? 0 : stage<ROW_GROUPS>::BYTES);

#define KERNEL(NAME, ROW_GROUPS, FORM, SHARED)                                                     \
    static_assert(SHARED_BYTES<ROW_GROUPS, FORM> == SHARED, "gemm_args.h");                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        NAME(const __grid_constant__ nvs_gemm_args args)                                           \
    {                                                                                              \
        gemm<ROW_GROUPS, FORM>(args);                                                              \
    }

KERNEL(nvs_gemm_sm90_m8, 1, ONE_STAGE, NVS_SM90_M8_SHARED)
KERNEL(nvs_gemm_sm90_m8_long, 1, LONG_K, NVS_SM90_M8_LONG_SHARED)
KERNEL(nvs_gemm_sm90_m16, 2, ONE_STAGE, NVS_SM90_M16_SHARED)
KERNEL(nvs_gemm_sm90_m16_long, 2, LONG_K, NVS_SM90_M16_LONG_SHARED)
KERNEL(nvs_gemm_sm90_m32, 4, ONE_STAGE, NVS_SM90_M32_SHARED)
KERNEL(nvs_gemm_sm90_m32_long, 4, LONG_K, NVS_SM90_M32_LONG_SHARED)
KERNEL(nvs_gemm_sm90_m32_any, 4, ANY_ADDRESS, NVS_SM90_M32_LONG_SHARED)
