/* SPDX-License-Identifier: Apache-2.0
 *
 * 64 rows and K up to 2048 in one stage: gemm_sm90_wgmma.cu with the shortest way to the first MMA.
 *
 * A cluster of two blocks computes 64 rows x BN columns of C; each takes 1024 columns of K, and
 * each of its four parts (warpgroups) 256 of those. A part loads its B straight into the registers
 * that decode it. A comes through shared memory in whole lines, in two halves of K with a barrier
 * each, so that the first two parts decode while the others' half is still on its way. From load to
 * MMA no barrier is wider than a part. K is permuted as superslab.cuh says.
 *
 * Straight-line code: a jump over instructions that are not there yet costs more than many
 * instructions. So K comes in whole superslabs, and scales by aligned 16 bytes.
 */
#include "gemm_args.h"
#include "stage.cuh"
#include "superslab.cuh"
#include "tile_sum.cuh"

template <int BN_>
struct shape {
    static constexpr int BN = BN_, BM = 64, SPLIT = 2, WG_K = 4, PART_THREADS = 128;
    static constexpr int THREADS = WG_K * PART_THREADS, BLOCK_K = WG_K * SUPERSLAB;
    static constexpr int UNITS = BN / 32; /* of decode_b(), a thread */

    /* Neighbouring rows 64 (values, metadata) or 16 bytes on in the 128 of the banks. */
    static constexpr int A_PITCH = BLOCK_K / 4 + 64, SCALE_PITCH = BLOCK_K / 16 + 16;

    /* Byte offsets. A part's sums go where its B tile was. */
    static constexpr int VECTORS = BN / 8, OWN = VECTORS / WG_K, VECTOR_BYTES = PART_THREADS * 16;
    static constexpr int TILE_BYTES = SLABS * BN * 128, RECEIVED = WG_K * TILE_BYTES;
    static constexpr int VALS = RECEIVED + VECTORS / SPLIT * VECTOR_BYTES;
    static constexpr int META = VALS + BM * A_PITCH, A_SCALE = META + BM * A_PITCH;
    static_assert(OWN * WG_K == VECTORS && VECTORS * VECTOR_BYTES <= TILE_BYTES, "shares");

    /* Up to 1023 bytes go before the first tile, to align it. */
    static_assert(1024 + A_SCALE + BM * SCALE_PITCH ==
                      (BN == 32 ? NVS_SM90_M64N32_SHARED : NVS_SM90_M64N64_SHARED),
                  "gemm_args.h");
};

template <int UNITS>
struct b_share {
    uint4 codes[UNITS][2];
    uint2 scale[UNITS];
};

/* Rows past the end read the last one, columns past K (whole superslabs) read nothing. */
template <int UNITS>
NVS_DEVICE void
load_b(const nvs_gemm_args &args, uint32_t column0, uint32_t k0, const b_place &at,
       b_share<UNITS> &b)
{
    const uint32_t warp = threadIdx.x % 128 / 32;
    const uint32_t k = k0 + threadIdx.x / 128 * SUPERSLAB + at.pair * 2 * SEGMENT;
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const uint32_t row = min(column0 + 32 * u + 8 * warp + at.row, (uint32_t)args.n - 1);
        const uint8_t *codes = args.b_fp4 + (uint64_t)row * (uint32_t)args.b_fp4_ld + k / 2 +
                               at.half * 16;
        const uint8_t *scale = args.b_scale + (uint64_t)row * (uint32_t)args.b_scale_ld + k / 16;
        b.codes[u][0] = b.codes[u][1] = make_uint4(0, 0, 0, 0);
        b.scale[u] = make_uint2(0, 0);
        if (k < (uint32_t)args.k) {
            b.codes[u][0] = ld_global_nc_v4(codes);
            b.codes[u][1] = ld_global_nc_v4(codes + SEGMENT / 2);
            b.scale[u] = ld_global_nc_v2(scale);
        }
    }
}

/* Values and metadata of half h of the block's K. */
template <class S>
NVS_DEVICE void
copy_half(const nvs_gemm_args &args, uint32_t shared, uint32_t row0, uint32_t k0, int h)
{
    constexpr int HALF = S::BLOCK_K / 2;
    const uint32_t at = k0 + h * HALF, k = (uint32_t)args.k, m = (uint32_t)args.m;
    copy_rows<S::THREADS, S::BM, HALF / 64, S::A_PITCH, 16>(shared + S::VALS + h * (HALF / 4),
                                                            args.a_vals, (uint32_t)args.a_vals_ld,
                                                            row0, m, at / 4, k / 4);
    copy_rows<S::THREADS, S::BM, HALF / 64, S::A_PITCH, 16>(shared + S::META + h * (HALF / 4),
                                                            args.a_meta, (uint32_t)args.a_meta_ld,
                                                            row0, m, at / 4, k / 4);
}

template <class S>
NVS_DEVICE void
load_a(uint32_t shared, a_share &a)
{
    const uint32_t part = threadIdx.x / S::PART_THREADS, q = threadIdx.x % 4;
    const uint32_t row = threadIdx.x % S::PART_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
    const uint32_t vals = shared + S::VALS + row * S::A_PITCH + part * (SUPERSLAB / 4) + q * 16;
    const uint32_t scale = shared + S::A_SCALE + row * S::SCALE_PITCH + part * (SUPERSLAB / 16) +
                           q * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        a.vals[r] = ld_shared_v4(vals + 8 * r * S::A_PITCH);
        a.meta[r] = ld_shared_v4(vals + 8 * r * S::A_PITCH + S::META - S::VALS);
        decode_scales(ld_shared_u32(scale + 8 * r * S::SCALE_PITCH), a.scale[r]);
    }
}

template <class S>
NVS_DEVICE void
gemm(const nvs_gemm_args &parameters)
{
    const nvs_gemm_args args = load_args(parameters);
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ __align__(8) uint64_t barriers[3]; /* the halves of A, the exchange */
    const uint32_t shared = (shared_address(dynamic_shared) + 1023u) & ~1023u;
    const uint32_t barrier = shared_address(barriers), exchange = barrier + 16;
    const uint32_t rank = blockIdx.x % 2, part = threadIdx.x / S::PART_THREADS;
    const uint32_t row0 = row_of_tiles() * S::BM, column0 = blockIdx.x / 2 * S::BN;
    const uint32_t k0 = rank * S::BLOCK_K;

    const b_place at = place_b();
    b_share<S::UNITS> b;
    load_b(args, column0, k0, at, b);
    if (threadIdx.x < S::THREADS / 2)
        copy_rows<S::THREADS / 2, S::BM, S::BLOCK_K / 256, S::SCALE_PITCH, 16>(
            shared + S::A_SCALE, args.a_scale, (uint32_t)args.a_scale_ld, row0, (uint32_t)args.m,
            k0 / 16, (uint32_t)args.k / 16);
    copy_half<S>(args, shared, row0, k0, 0);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, S::THREADS);
        mbarrier_init(barrier + 8, S::THREADS);
        mbarrier_init(exchange, 1);
        mbarrier_arrive_expect_tx(exchange, S::VECTORS / S::SPLIT * S::VECTOR_BYTES);
        fence_mbarrier_init_cluster();
    }
    __syncthreads();
    cp_async_mbarrier_arrive_noinc(barrier);
    copy_half<S>(args, shared, row0, k0, 1);
    cp_async_mbarrier_arrive_noinc(barrier + 8);
    barrier_cluster_arrive_relaxed();

    const uint32_t tile = shared + part * S::TILE_BYTES;
    const uint32_t b_row = threadIdx.x % S::PART_THREADS / 32 * 8 + at.row;
    const uint32_t unit = tile + at.half * (2 * S::BN * 128) + b_row * 128;
    const quad_transpose transpose = quad_transpose_of(threadIdx.x % 4);
#pragma unroll
    for (int u = 0; u < S::UNITS; ++u)
        decode_b<S::BN>(b.codes[u], b.scale[u], unit + u * 32 * 128, at);
    mbarrier_wait(barrier + part / 2 * 8, 0);
    a_share a;
    load_a<S>(shared, a);
    float sum[4 * S::VECTORS] = {};
    multiply_superslab<S::BN>(a, transpose, swizzle128_descriptor(tile), 1 + part, S::PART_THREADS,
                              sum);
    const store_place store = place_store<S>(args, row0, column0, part);
    wgmma_wait_all();
    bar_sync(1 + part, S::PART_THREADS); /* the tile is read, all of it */
    float4 own[S::OWN];
    add_parts<S>(shared, S::TILE_BYTES, part, sum, own);
    if (add_blocks<S>(shared + S::RECEIVED, exchange, rank, part, own))
        store_own<S>(parameters, store, own);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    nvs_gemm_sm90_m64n32(const __grid_constant__ nvs_gemm_args args)
{
    gemm<shape<32>>(args);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    nvs_gemm_sm90_m64n64(const __grid_constant__ nvs_gemm_args args)
{
    gemm<shape<64>>(args);
}
