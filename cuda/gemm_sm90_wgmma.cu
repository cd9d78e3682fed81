/* SPDX-License-Identifier: Apache-2.0
 *
 * 64 rows per warpgroup: sparse wgmma, A decoded into registers, B into shared memory.
 *
 * A cluster of two blocks computes 64 rows x 32 columns of C. The blocks take turns along K, a stage
 * of 1024 columns each. All threads copy a stage's operands to shared memory in whole lines, in
 * DEPTH groups that are decoded as they arrive; superslab (d, part), 256 columns, belongs to one of
 * the block's two parts (warpgroups). The sums meet first inside the block, then between the blocks
 * by st.async: remote shared memory is slow, so it carries no more than it must. K is permuted as
 * superslab.cuh says.
 */
#include "gemm_args.h"
#include "stage.cuh"
#include "superslab.cuh"
#include "tile_sum.cuh"

struct shape {
    static constexpr int BM = 64, BN = 32, SPLIT = 2, WG_K = 2, DEPTH = 2;
    static constexpr int PART_THREADS = 128, THREADS = PART_THREADS * WG_K;
    static constexpr int GROUP_K = WG_K * SUPERSLAB, STAGE_K = DEPTH * GROUP_K;

    /* Row pitches, and the units of swizzle(): eight lanes read half a line of every second row of
     * A, a whole line of B, and a warp 16 bytes of a row's scales. */
    static constexpr int A_PITCH = STAGE_K / 4, A_UNIT = 32, B_PITCH = STAGE_K / 2, B_UNIT = 0;
    static constexpr int SCALE_PITCH = STAGE_K / 16, SCALE_UNIT = 16;

    /* Byte offsets: decoded B tiles (1024-aligned), sums, what the other block sends, raw stages. */
    static constexpr int SLAB_BYTES = BN * 128, TILE_BYTES = SLABS * SLAB_BYTES;
    static constexpr int VECTORS = BN / 8; /* float4 that a thread holds of the tile */
    static constexpr int OWN = VECTORS / WG_K, LANE_ROWS = 2;
    static constexpr int VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int SUMS = WG_K * DEPTH * TILE_BYTES;
    static constexpr int RECEIVED = SUMS + WG_K * VECTORS * VECTOR_BYTES;
    static constexpr int RAW = RECEIVED + VECTORS / SPLIT * VECTOR_BYTES;
    static constexpr int VALS = 0, META = VALS + BM * A_PITCH, CODES = META + BM * A_PITCH;
    static constexpr int A_SCALE = CODES + BN * B_PITCH, B_SCALE = A_SCALE + BM * SCALE_PITCH;
    static constexpr int RAW_BYTES = B_SCALE + BN * SCALE_PITCH;

    /* Up to 1023 bytes go before the first tile, to align it. */
    static_assert(1024 + RAW + 2 * RAW_BYTES == NVS_SM90_M64N32_LONG_SHARED, "gemm_args.h");
    static_assert(RAW % 128 == 0 && RAW_BYTES % 128 == 0, "raw stages begin with a line");
};

/* Group d of the stage that starts at column k0. */
NVS_DEVICE void
copy_group(const nvs_gemm_args &args, uint32_t raw, uint32_t row0, uint32_t column0, uint32_t k0,
           int d)
{
    const uint32_t k = (uint32_t)args.k, m = (uint32_t)args.m, n = (uint32_t)args.n;
    const uint32_t at = k0 + d * shape::GROUP_K;
    copy_rows<shape::THREADS, shape::BN, shape::GROUP_K / 32, shape::B_PITCH, shape::B_UNIT, 16>(
        raw + shape::CODES, d * (shape::GROUP_K / 2), args.b_fp4, (uint32_t)args.b_fp4_ld, column0,
        n, at / 2, k / 2);
    copy_rows<shape::THREADS, shape::BM, shape::GROUP_K / 64, shape::A_PITCH, shape::A_UNIT, 16>(
        raw + shape::VALS, d * (shape::GROUP_K / 4), args.a_vals, (uint32_t)args.a_vals_ld, row0, m,
        at / 4, k / 4);
    copy_rows<shape::THREADS, shape::BM, shape::GROUP_K / 64, shape::A_PITCH, shape::A_UNIT, 16>(
        raw + shape::META, d * (shape::GROUP_K / 4), args.a_meta, (uint32_t)args.a_meta_ld, row0, m,
        at / 4, k / 4);
}

NVS_DEVICE void
copy_stage(const nvs_gemm_args &args, uint32_t raw, uint32_t row0, uint32_t column0, uint32_t k0)
{
    const uint32_t k = (uint32_t)args.k;
    copy_rows<shape::THREADS, shape::BN, shape::STAGE_K / 64, shape::SCALE_PITCH, shape::SCALE_UNIT,
              4>(raw + shape::B_SCALE, 0, args.b_scale, (uint32_t)args.b_scale_ld, column0,
                 (uint32_t)args.n, k0 / 16, k / 16);
    copy_rows<shape::THREADS, shape::BM, shape::STAGE_K / 64, shape::SCALE_PITCH, shape::SCALE_UNIT,
              4>(raw + shape::A_SCALE, 0, args.a_scale, (uint32_t)args.a_scale_ld, row0,
                 (uint32_t)args.m, k0 / 16, k / 16);
#pragma unroll
    for (int d = 0; d < shape::DEPTH; ++d) {
        copy_group(args, raw, row0, column0, k0, d);
        cp_async_commit_group();
    }
}

NVS_DEVICE void
load_a(uint32_t vals, uint32_t scale, a_share<2> &a)
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        /* the first row is an even one: the next one's swizzle differs in this bit alone */
        const uint32_t row = (vals ^ r * shape::A_UNIT) + r * shape::A_PITCH;
        a.vals[r] = ld_shared_v4(row);
        a.meta[r] = ld_shared_v4(row + shape::META - shape::VALS);
        decode_scales(ld_shared_u32(scale + r * shape::SCALE_PITCH), a.scale[r]);
    }
}

/* Where a thread reads in a raw stage and writes in its part's tiles. */
struct place {
    uint32_t codes, b_scale, vals, a_scale;
    uint64_t descriptor;
    b_place b;
    b_chunks to;
    quad_transpose transpose;
};

NVS_DEVICE place
place_thread(uint32_t shared)
{
    const uint32_t part = threadIdx.x / shape::PART_THREADS,
                   thread = threadIdx.x % shape::PART_THREADS;
    const uint32_t warp = thread / 32, g = thread % 32 / 4, q = thread % 4;
    const uint32_t raw = shared + shape::RAW, tile = shared + part * shape::TILE_BYTES;
    place at;
    at.b = place_b();
    const uint32_t b_row = 8 * warp + at.b.row, a_row = 16 * warp + 2 * g;
    const uint32_t b_column = column_at<store_shape<shape>::RUN>(b_row);
    const auto scale_of = [&](uint32_t row) {
        return row * shape::SCALE_PITCH +
               (part * (SUPERSLAB / 16) ^ swizzle<shape::SCALE_PITCH, shape::SCALE_UNIT>(row));
    };
    at.codes = raw + shape::CODES + b_column * shape::B_PITCH + part * (SUPERSLAB / 2) +
               at.b.chunk * 16;
    at.b_scale = raw + shape::B_SCALE + scale_of(b_column) + at.b.chunk / 2 * (SEGMENT / 16);
    at.to = place_chunks<shape::BN>(tile + b_row * 128, at.b);
    at.vals = raw + shape::VALS + a_row * shape::A_PITCH +
              ((part * (SUPERSLAB / 4) + q * (SEGMENT / 4)) ^
               swizzle<shape::A_PITCH, shape::A_UNIT>(a_row));
    at.a_scale = raw + shape::A_SCALE + scale_of(a_row) + q * (SEGMENT / 16);
    at.descriptor = swizzle128_descriptor(tile);
    at.transpose = quad_transpose_of(q);
    return at;
}

/* Superslab d of this part. */
NVS_DEVICE void
multiply(const place &at, uint32_t stage_offset, int d, float (&sum)[shape::BN / 2])
{
    const uint32_t part = threadIdx.x / shape::PART_THREADS,
                   tile = d * shape::WG_K * shape::TILE_BYTES;
    const uint32_t codes = at.codes + stage_offset + d * (shape::GROUP_K / 2);
    constexpr int RUN = store_shape<shape>::RUN; /* four rows of a tile are 2 * RUN columns */
    static_assert(swizzle<shape::SCALE_PITCH, shape::SCALE_UNIT>(2 * RUN) == 0 &&
                      swizzle<shape::SCALE_PITCH, shape::SCALE_UNIT>(1) == 0,
                  "both rows of a lane are swizzled alike, of B and of A");
    /* A row of scales is half a line, aligned: d is one bit of it. */
    const uint32_t scale = (at.b_scale + stage_offset) ^ d * (shape::GROUP_K / 16);
    const uint4 raw[2] = {ld_shared_v4(codes), ld_shared_v4(codes + 2 * RUN * shape::B_PITCH)};
    const uint32_t words[2] = {ld_shared_u32(scale),
                               ld_shared_u32(scale + 2 * RUN * shape::SCALE_PITCH)};
    decode_b<shape::BN>(raw, words, at.to, tile, at.b);
    a_share<2> a;
    load_a(at.vals + stage_offset + d * (shape::GROUP_K / 4),
           (at.a_scale + stage_offset) ^ d * (shape::GROUP_K / 16), a);
    multiply_superslab<shape::BN, 2>(a, at.transpose, at.descriptor + (tile >> 4), 1 + part,
                                     shape::PART_THREADS, sum);
}

extern "C" __global__ void __launch_bounds__(shape::THREADS, 1)
    nvs_gemm_sm90_m64n32_long(const __grid_constant__ nvs_gemm_args parameters)
{
    const nvs_gemm_args args = load_args(parameters);
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ __align__(8) uint64_t exchange;
    const uint32_t shared = (shared_address(dynamic_shared) + 1023u) & ~1023u;
    const uint32_t barrier = shared_address(&exchange);
    const uint32_t rank = blockIdx.x % shape::SPLIT;
    const uint32_t row0 = row_of_tiles() * shape::BM,
                   column0 = blockIdx.x / shape::SPLIT * shape::BN;
    const uint32_t part = threadIdx.x / shape::PART_THREADS, k = (uint32_t)args.k;

    copy_stage(args, shared + shape::RAW, row0, column0, rank * shape::STAGE_K);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init_cluster();
    }
    barrier_cluster_arrive_relaxed();
    const place at = place_thread(shared);
    float sum[shape::BN / 2] = {};
    uint32_t stage_offset = 0;
    for (uint32_t k0 = rank * shape::STAGE_K;;) {
        k0 += shape::SPLIT * shape::STAGE_K;
        const bool more = k0 < k;
        if (more)
            copy_stage(args, shared + shape::RAW + (stage_offset ^ shape::RAW_BYTES), row0, column0,
                       k0);
#pragma unroll
        for (int d = 0; d < shape::DEPTH; ++d) {
            if (more)
                cp_async_wait_group(2 * shape::DEPTH - 1 - d);
            else
                cp_async_wait_group(shape::DEPTH - 1 - d);
            __syncthreads();
            multiply(at, stage_offset, d, sum);
        }
        wgmma_wait<0>();
        if (!more)
            break;
        stage_offset ^= shape::RAW_BYTES;
        __syncthreads(); /* before the tiles and the older raw stage are written again */
    }
    if (threadIdx.x == 0) /* not right behind the init, which racecheck takes for a race */
        mbarrier_arrive_expect_tx(barrier, shape::VECTORS / shape::SPLIT * shape::VECTOR_BYTES);
    const uint32_t thread = threadIdx.x % shape::PART_THREADS;
    const store_place store = place_store<shape>(
        args, row0 + thread / 32 * 16 + thread % 32 / 4 * 2,
        column0 + store_shape<shape>::RUN * (4 * part + thread % 4));
    float4 own[shape::OWN];
    add_parts<shape>(shared + shape::SUMS, shape::VECTORS * shape::VECTOR_BYTES, part, sum, own);
    barrier_cluster_wait();
    if (add_blocks<shape>(shared + shape::RECEIVED, barrier, rank, part, own))
        store_own<shape>(parameters, store, own);
}
