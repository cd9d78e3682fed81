/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels for K up to 2048 share: two parts and a warp that issues TMA, all of the block's
 * 1024 columns of K in one stage, four superslabs of 256.
 *
 * Two parts do as well as four: a multiprocessor decodes as many instructions a cycle, and there
 * are half the sums to add. What a thread needs once the operands land is found while they are on
 * their way.
 */
#pragma once

#include "cluster_k.cuh"
#include "tile_sum.cuh"

static constexpr int WORKERS = 256, THREADS = WORKERS + 32;
static constexpr int WINDOW = 8;        /* slabs of A in registers, for MMAs under way */
static constexpr int AHEAD = 4;         /* of these decoded before their turn */
static constexpr int LEAD_IS_TAKEN = 3; /* a named barrier */

/* Byte offsets of a block's mbarriers: the halves of A, what the other block sends (S::EXCHANGES:
 * one, or one a part). */
static constexpr int EXCHANGE = 16, BARRIER_BYTES = 32;

/* The warp that issues TMA: A, from `a` on, and the mbarriers. */
template <class S>
NVS_DEVICE void
fetch_a(const nvs_a_maps &maps, uint32_t a, uint32_t barriers, uint32_t row0, uint32_t k0)
{
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int b = 0; b < EXCHANGE + 8 * S::EXCHANGES; b += 8)
            mbarrier_init(barriers + b, 1);
        fence_mbarrier_init_cluster();
        fetch_a_stage<S::BM>(maps, a, barriers, row0, k0);
#pragma unroll
        for (int e = 0; e < S::EXCHANGES; ++e)
            mbarrier_arrive_expect_tx(barriers + EXCHANGE + 8 * e,
                                      S::EXCHANGE_BYTES / S::EXCHANGES);
    }
    announce_barriers<WORKERS>();
}

/* A warp copies its own rows of N superslabs of B and waits for no other warp's. Codes lie, slab by
 * slab, where the warp's part of the last superslab's f16 tile will stand; it is the last to be
 * written. Loads to registers would be waited for all together, and the scales' 4 bytes a lane take
 * as many requests to L2 as the codes. */
template <int BN, int N>
struct b_copy {
    static constexpr int UNITS = b_share<BN>::UNITS;
    static constexpr int SCALE_PITCH = N == 2 ? 32 : 80; /* a warp reads four rows, in all banks */
    static constexpr int UNIT_SCALES = 8 * SCALE_PITCH, WARP_SCALES = UNITS * UNIT_SCALES;
    static constexpr int SCALE_BYTES = WORKERS / 32 * WARP_SCALES;
    uint32_t scales;       /* of the warp */
    uint32_t codes, scale; /* of this lane's first row */
};

/* tile: the part's rows of the last superslab's first slab. scales: SCALE_BYTES. */
template <int BN, int N>
NVS_DEVICE b_copy<BN, N>
place_b_copy(uint32_t tile, uint32_t scales, const b_place &at)
{
    b_copy<BN, N> copy;
    copy.scales = scales + threadIdx.x / 32 * copy.WARP_SCALES;
    copy.codes = tile + (first_b_row() + at.row) * 128 + at.chunk * 16;
    copy.scale = copy.scales + at.row * copy.SCALE_PITCH + at.chunk / 2 * 4;
    return copy;
}

/* The scales of all superslabs from column k of K on, 16 bytes a lane. */
template <int RUN, int BN, int N>
NVS_DEVICE void
copy_b_scales(const nvs_gemm_args &args, uint32_t column0, uint32_t k, const b_copy<BN, N> &copy)
{
    const uint32_t lane = threadIdx.x % 32, superslab = lane % N, row = lane / N;
    const uint32_t b_row = first_b_row() + row % 8 + row / 8 * 32; /* of the f16 tile */
    const uint32_t column = min(column0 + column_at<RUN>(b_row), (uint32_t)args.n - 1);
    k += superslab * SUPERSLAB;
    cp_async_16_if(row < 8 * copy.UNITS, copy.scales + row * copy.SCALE_PITCH + superslab * 16,
                   args.b_scale + (uint64_t)column * (uint32_t)args.b_scale_ld + k / 16,
                   k < (uint32_t)args.k);
}

/* From column k of K on, a group of copies for each superslab, the first with all scales. Columns of
 * C past the last read the last one; past K all is zeros. */
template <int RUN, int TILE_BN, int BN, int N>
NVS_DEVICE void
copy_b(const nvs_gemm_args &parameters, uint32_t column0, uint32_t k, const b_place &at,
       const b_copy<BN, N> &copy)
{
    const nvs_gemm_args args = load_b_args(parameters);
    const uint32_t column = column0 + column_at<RUN>(first_b_row() + at.row),
                   last = (uint32_t)args.n - 1;
    const uint8_t *codes = args.b_fp4 + k / 2 + at.chunk * 16;
#pragma unroll
    for (int s = 0; s < N; ++s) {
#pragma unroll
        for (int u = 0; u < copy.UNITS; ++u)
#pragma unroll
            for (int r = 0; r < 2; ++r) /* four rows of a tile on are 2 * RUN columns on */
                cp_async_16(copy.codes + s * TILE_BN * 128 + (32 * u + 4 * r) * 128,
                            codes +
                                (uint64_t)min(column + 32 * u + 2 * RUN * r, last) *
                                    (uint32_t)args.b_fp4_ld +
                                s * SUPERSLAB / 2,
                            k + s * SUPERSLAB < (uint32_t)args.k);
        keep_order(); /* the first copies before the addresses of the others */
        if (s == 0)
            copy_b_scales<RUN>(args, column0, k, copy);
        cp_async_commit_group();
    }
}

/* Superslab s of the copy, once it is there. */
template <int TILE_BN, int BN, int N>
NVS_DEVICE void
read_b_copy(const b_copy<BN, N> &copy, int s, b_share<BN> &b)
{
    cp_async_wait_group(N - 1 - s);
    __syncwarp();
#pragma unroll
    for (int u = 0; u < copy.UNITS; ++u)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            b.codes[u][r] = ld_shared_v4(copy.codes + s * TILE_BN * 128 + (32 * u + 4 * r) * 128);
            b.scale[u][r] = ld_shared_u32(copy.scale + u * copy.UNIT_SCALES +
                                          4 * r * copy.SCALE_PITCH + s * 16);
        }
}

/* To f16 tiles of TILE_BN columns that are neighbours; `to` is in the first. Each superslab is read
 * while the last row of the one before is decoded. */
template <int TILE_BN, int BN, int N>
NVS_DEVICE void
decode_superslabs(const b_copy<BN, N> &copy, const b_chunks &to, const b_place &at)
{
    b_share<BN> b[2];
    read_b_copy<TILE_BN>(copy, 0, b[0]);
#pragma unroll
    for (int s = 0; s < N; ++s)
#pragma unroll
        for (int u = 0; u < copy.UNITS; ++u) {
            uint32_t scales[2];
            decode_b_scales(b[s % 2].scale[u], at, scales);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const bool is_last = u == copy.UNITS - 1 && r == 1;
                if (is_last && s < N - 1)
                    read_b_copy<TILE_BN>(copy, s + 1, b[(s + 1) % 2]);
                if (s == N - 1 && u == 0 && r == 0)
                    __syncwarp(); /* now the copy is written over */
                decode_b_row<TILE_BN>(b[s % 2].codes[u][r], scales[r], r, to,
                                      s * SLABS * TILE_BN * 128 + 32 * u * 128);
            }
        }
}

/* Where a worker finds its share of A and puts its share of B, and its constants. */
struct work_place {
    a_place a; /* of its first superslab */
    b_chunks b;
    quad_transpose transpose;
};

/* Found now: ptxas would find it where it is used, after the wait. */
NVS_DEVICE void
settle(work_place &at)
{
    asm volatile(""
                 : "+r"(at.a.vals), "+r"(at.a.scale), "+r"(at.transpose.rotate),
                   "+r"(at.transpose.keep), "+r"(at.transpose.merge)::"memory");
#pragma unroll
    for (int t = 0; t < 4; ++t)
        asm volatile("" : "+r"(at.b.group[t])::"memory");
    keep_order();
}

/* `i` superslabs on; the first one's number has no bit in common with i. */
template <int ROWS>
NVS_DEVICE a_place
superslab_on(const a_place &at, int i)
{
    return {(at.vals ^ (i % 2 * 64)) + i / 2 * a_tile<ROWS>::HALF, at.scale ^ (i * 16)};
}

/* The slabs of N superslabs of A, in pairs, decoded two pairs ahead of their MMAs. Where parts have
 * rows of their own, part 0 leads: it multiplies S::LEAD slabs alone, and part 1 its last ones,
 * while the first one's sums are on their way to the other block. */
template <class S, int N>
NVS_DEVICE void
multiply_in_pairs(const a_share<S::LANE_ROWS> (&a)[N], const uint32_t (&meta)[N][SLABS],
                  uint64_t tiles, uint32_t part, int barrier, int writers, float (&sum)[S::BN / 2])
{
    uint32_t step[WINDOW][2][4];
#pragma unroll
    for (int slab = 0; slab < AHEAD; ++slab)
        decode_a(a[slab / SLABS], slab % SLABS, step[slab]);
    bar_sync(barrier, writers);
    if (S::LEAD > 0 && part == 1) {
        keep_order();
        bar_sync(LEAD_IS_TAKEN, WORKERS);
    }
#pragma unroll
    for (int slab = 0; slab < N * SLABS; slab += 2) {
        multiply_pair<S::BN>(step[slab % WINDOW], step[slab % WINDOW + 1], slab % SLABS,
                             tiles + slab * (S::BN * 128 >> 4), meta[slab / SLABS][slab % SLABS],
                             meta[slab / SLABS][slab % SLABS + 1], sum);
        if (S::LEAD > 0 && slab + 2 == S::LEAD && part == 0)
            bar_arrive(LEAD_IS_TAKEN, WORKERS);
        const int next = slab + AHEAD;
        if (next >= N * SLABS)
            continue;
        if (next >= WINDOW)
            wgmma_wait<(WINDOW - AHEAD) / 2>();
#pragma unroll
        for (int s = next; s < next + 2; ++s)
            decode_a(a[s / SLABS], s % SLABS, step[s % WINDOW]);
    }
    wgmma_wait<0>();
}

/* N superslabs of A, the first at `at`, against their tiles of B, which are neighbours. The
 * `writers` of the tiles meet here. All of A is read before the first MMA: the MMAs leave no
 * bandwidth of shared memory to others. */
template <class S, int N>
NVS_DEVICE void
multiply_superslabs(const a_place &at, const quad_transpose &transpose, uint64_t tiles,
                    uint32_t part, int barrier, int writers, float (&sum)[S::BN / 2])
{
    a_share<S::LANE_ROWS> a[N];
    uint32_t meta[N][SLABS];
#pragma unroll
    for (int s = 0; s < N; ++s)
        load_a<S::BM>(superslab_on<S::BM>(at, s), a[s]);
#pragma unroll
    for (int s = 0; s < N; ++s)
        decode_metadata(a[s], transpose, meta[s]);
    fence_proxy_async();
    multiply_in_pairs<S, N>(a, meta, tiles, part, barrier, writers, sum);
}
