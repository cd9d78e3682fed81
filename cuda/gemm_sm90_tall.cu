/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of 64 * ROW_TILES rows x 64 columns of C, and any K in multiples of 256: B is decoded once
 * for up to four row tiles.
 *
 * A warpgroup decodes B, a superslab at a time, into two f16 tiles in turn. Each of the others has
 * a row tile, whose A it decodes into registers while its MMAs run, so no sums meet in the block.
 * The decoders copy what they decode themselves, superslabs ahead, and have A brought by TMA in
 * slots of 512 columns of K. An f16 tile is handed over by two mbarriers; the one that comes back
 * tells also how far A has been read. K is permuted as superslab.cuh says.
 *
 * Either one block computes a tile, or where there are few, a cluster of two: these take turns along
 * K, a stage of 1024 columns each, and every thread sends half of its sums to the other block.
 */
#include "b_stream.cuh"

/* Named barriers: the mbarriers are there, for the decoders; and for the multipliers; all of B is
 * decoded. */
static constexpr int DECODERS_START = 1, MULTIPLIERS_START = 2, DECODERS_END = 3;

/* Of four row tiles: all threads start with 96. */
static constexpr int DECODER_REGISTERS = 64, MULTIPLIER_REGISTERS = 104;

template <int ROW_TILES_, int BLOCKS_, int SLOTS_, int B_SLOTS_>
struct shape {
    static constexpr int ROW_TILES = ROW_TILES_, BLOCKS = BLOCKS_; /* in a cluster */
    static constexpr int SLOTS = SLOTS_, B_SLOTS = B_SLOTS_;
    static constexpr int BM = 64 * ROW_TILES, BN = 64, LANE_ROWS = 2;
    static constexpr int MULTIPLIERS = ROW_TILES * PART_THREADS,
                         THREADS = MULTIPLIERS + PART_THREADS;

    /* tile_sum.cuh: a thread's sums as vectors, and how many it stores. */
    static constexpr int VECTORS = BN / 8, OWN = VECTORS / BLOCKS;
    static constexpr int VECTOR_BYTES = MULTIPLIERS * 16, EXCHANGE_BYTES = OWN * VECTOR_BYTES;

    /* Byte offsets. A slot of A holds values, then metadata; one of B codes, then scales. The other
     * block's sums come to where the f16 tiles were. */
    static constexpr int TILE_BYTES = SLABS * BN * 128, A = 2 * TILE_BYTES;
    static constexpr int VALS_BYTES = BM * NVS_A_BOX, SLOT_BYTES = 2 * VALS_BYTES;
    static constexpr int SCALE = A + SLOTS * SLOT_BYTES, SCALE_BYTES = BM * NVS_A_SCALE_BOX;
    static constexpr int B = SCALE + SCALE_BYTES;
    static constexpr int B_SCALE = BN * SUPERSLAB / 2, B_BYTES = B_SCALE + BN * SUPERSLAB / 16;
    static_assert(BLOCKS == 1 || EXCHANGE_BYTES <= 2 * TILE_BYTES, "sums");

    /* mbarriers: slots of A, its scales, f16 tiles written, f16 tiles read, the exchange. */
    static constexpr int A_IS_THERE = B + B_SLOTS * B_BYTES;
    static constexpr int SCALES_ARE_THERE = A_IS_THERE + 8 * SLOTS;
    static constexpr int TILE_IS_THERE = SCALES_ARE_THERE + 8, TILE_IS_READ = TILE_IS_THERE + 16;
    static constexpr int EXCHANGE = TILE_IS_READ + 16, END = EXCHANGE + 8;
};

template <class S>
NVS_DEVICE share
place_share(const nvs_gemm_args &args)
{
    extern __shared__ __align__(1024) uint8_t dynamic_shared[];
    const uint32_t superslabs = (uint32_t)args.k / SUPERSLAB;
    share at;
    at.shared = shared_address(dynamic_shared);
    at.rank = blockIdx.x % S::BLOCKS;
    at.row0 = row_of_tiles() * S::BM;
    at.column0 = blockIdx.x / S::BLOCKS * S::BN;
    const uint32_t rest = superslabs % 8; /* of two stages */
    at.superslabs = S::BLOCKS == 1
                        ? superslabs
                        : superslabs / 8 * 4 + (at.rank ? max(rest, 4u) - 4 : min(rest, 4u));
    return at;
}

/* ---- A by TMA, by single threads ------------------------------------------------------------ */

/* A half of a stage, 512 columns, if there is any; halves are counted along the block's share. */
template <class S>
NVS_DEVICE void
fetch_a(const nvs_a_maps &maps, const share &at, uint32_t half)
{
    if (2 * half >= at.superslabs)
        return;
    const uint32_t slot = half % S::SLOTS, to = at.shared + S::A + slot * S::SLOT_BYTES;
    const uint32_t barrier = at.shared + S::A_IS_THERE + 8 * slot;
    const uint32_t column = (2 * (half / 2 * S::BLOCKS + at.rank) + half % 2) * NVS_A_BOX;
    mbarrier_arrive_expect_tx(barrier, S::SLOT_BYTES);
    tma_load(to, &maps.vals, column, at.row0, barrier);
    tma_load(to + S::VALS_BYTES, &maps.meta, column, at.row0, barrier);
}

/* A stage's scales. */
template <class S>
NVS_DEVICE void
fetch_a_scales(const nvs_a_maps &maps, const share &at, uint32_t stage)
{
    if (4 * stage >= at.superslabs)
        return;
    mbarrier_arrive_expect_tx(at.shared + S::SCALES_ARE_THERE, S::SCALE_BYTES);
    tma_load(at.shared + S::SCALE, &maps.scale, (stage * S::BLOCKS + at.rank) * NVS_A_SCALE_BOX,
             at.row0, at.shared + S::SCALES_ARE_THERE);
}

/* ---- the decoders --------------------------------------------------------------------------- */

/* Makes room for superslab s of B, 2 or a later one: when its f16 tile has been read, so has
 * superslab s - 1 of A. */
template <class S>
NVS_DEVICE void
make_room(const nvs_a_maps &maps, const share &block, uint32_t s)
{
    mbarrier_wait(block.shared + S::TILE_IS_READ + 8 * (s % 2), (s / 2 - 1) & 1);
    if (threadIdx.x == 0 && s % 2 == 0)
        fetch_a<S>(maps, block, s / 2 - 1 + S::SLOTS);
    if (threadIdx.x == 32 && s % 4 == 2)
        fetch_a_scales<S>(maps, block, s / 4 + 1);
    __syncwarp();
}

template <class S>
NVS_DEVICE void
decode_all_b(const nvs_a_maps &maps, const share &block, b_stream<S> &stream, const b_place &at)
{
    const b_chunks to = place_b_share<S::BN>(block.shared, at);
    if (block.superslabs == 0)
        bar_sync(DECODERS_START, PART_THREADS + 32);
#pragma unroll 1
    for (uint32_t s = 0; s < block.superslabs; ++s) {
        b_share<S::BN> b;
        read_b(stream, b);
        if (s >= 2)
            make_room<S>(maps, block, s);
        decode_b_share<S::BN>(b, to, s % 2 * S::TILE_BYTES, at);
        fence_proxy_async(); /* before the copies, lest it wait for them */
        if (s == 0)
            bar_sync(DECODERS_START, PART_THREADS + 32);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(block.shared + S::TILE_IS_THERE + 8 * (s % 2));
        copy_next_b(block, stream);
    }
    cp_async_wait_group(0);
}

/* ---- the multipliers ------------------------------------------------------------------------ */

using pair = uint32_t[2][2][4]; /* two slabs in f16 */

/* Where a lane finds its segments of its two rows of A, in the first slot; and these rows' scales
 * in the next four superslabs, all read at once, so that one place does for all stages'. */
struct a_walk {
    a_place first;
    uint32_t words[2][4];
    quad_transpose transpose;
};

/* row: of the tile, the lane's first. */
template <class S>
NVS_DEVICE a_walk
start_a_walk(uint32_t shared, uint32_t row)
{
    a_walk walk;
    walk.first = place_a(shared + S::A, shared + S::SCALE, 0, row);
    walk.transpose = quad_transpose_of(threadIdx.x % 4);
    return walk;
}

/* Superslab s and its metadata, transposed. */
template <class S>
NVS_DEVICE void
load_next_a(uint32_t shared, uint32_t s, a_walk &walk, a_share<2> &a, uint32_t (&meta)[SLABS])
{
    const uint32_t half = s / 2, slot = half % S::SLOTS;
    if (s % 4 == 0) {
        mbarrier_wait(shared + S::SCALES_ARE_THERE, s / 4 & 1);
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                walk.words[r][i] = ld_shared_u32((walk.first.scale ^ i << 4) + r * NVS_A_SCALE_BOX);
    }
    if (s % 2 == 0)
        mbarrier_wait(shared + S::A_IS_THERE + 8 * slot, half / S::SLOTS & 1);
    const uint32_t vals = (walk.first.vals ^ s % 2 * 64) + slot * S::SLOT_BYTES;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        load_a_row<S::VALS_BYTES>(vals, r, a);
        decode_scales(walk.words[r][0], a.scale[r]);
#pragma unroll
        for (int i = 0; i < 3; ++i)
            walk.words[r][i] = walk.words[r][i + 1];
    }
#pragma unroll
    for (int i = 0; i < SLABS; ++i)
        meta[i] = quad_metadata(word_of(a.meta[0], i), word_of(a.meta[1], i), walk.transpose);
    keep_order();
}

NVS_DEVICE void
decode_pair(const a_share<2> &a, int first, pair &step)
{
#pragma unroll
    for (int i = 0; i < 2; ++i)
        decode_a(a, first + i, step[i]);
}

/* Slabs i and i + 1 of a superslab whose f16 tile is `tile`. */
template <class S>
NVS_DEVICE void
issue_pair(const pair &step, const uint32_t (&meta)[SLABS], int i, uint64_t tile,
           float (&sum)[S::BN / 2])
{
    multiply_pair<S::BN>(step[0], step[1], i, tile + i * (S::BN * 128 >> 4), meta[i], meta[i + 1],
                         sum);
}

/* Superslab s, whose first two slabs and metadata are ready; then the same of the next, while its
 * MMAs run. */
template <class S>
NVS_DEVICE void
multiply_and_prepare(uint32_t shared, uint32_t s, uint32_t superslabs, a_walk &walk, a_share<2> &a,
                     uint32_t (&transposed)[SLABS], pair &first, float (&sum)[S::BN / 2])
{
    /* By a shuffle, so that it is made in uniform registers. */
    const uint64_t tile = swizzle128_descriptor(
        __shfl_sync(~0u, shared + s % 2 * S::TILE_BYTES, 0));
    uint32_t meta[SLABS]; /* not what the next superslab's comes to while MMAs read this one's */
#pragma unroll
    for (int i = 0; i < SLABS; ++i)
        meta[i] = swap_index_bits(transposed[i]);
    pair second;
    mbarrier_wait(shared + S::TILE_IS_THERE + 8 * (s % 2), s / 2 & 1);
    issue_pair<S>(first, meta, 0, tile, sum);
    decode_pair(a, 2, second);
    issue_pair<S>(second, meta, 2, tile, sum);
    if (s + 1 < superslabs) {
        load_next_a<S>(shared, s + 1, walk, a, transposed);
        wgmma_wait<1>();
        decode_pair(a, 0, first);
    }
    wgmma_wait<0>();
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(shared + S::TILE_IS_READ + 8 * (s % 2));
}

template <class S>
NVS_DEVICE void
multiply_all(uint32_t shared, uint32_t superslabs, uint32_t row, float (&sum)[S::BN / 2])
{
    if (superslabs == 0)
        return;
    a_walk walk = start_a_walk<S>(shared, row);
    a_share<2> a;
    uint32_t transposed[SLABS];
    pair first;
    load_next_a<S>(shared, 0, walk, a, transposed);
    decode_pair(a, 0, first);
#pragma unroll 1
    for (uint32_t s = 0; s < superslabs; ++s)
        multiply_and_prepare<S>(shared, s, superslabs, walk, a, transposed, first, sum);
}

/* By the first multiplier's warp: the mbarriers, and the first boxes of A, which take long to issue.
 */
template <class S>
NVS_DEVICE void
start_a(const nvs_a_maps &maps, const share &block)
{
    const bool issues = threadIdx.x % 32 == 0;
    if (issues) {
#pragma unroll
        for (int i = 0; i < S::SLOTS; ++i)
            mbarrier_init(block.shared + S::A_IS_THERE + 8 * i, 1);
        mbarrier_init(block.shared + S::SCALES_ARE_THERE, 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            mbarrier_init(block.shared + S::TILE_IS_THERE + 8 * i, PART_THREADS / 32);
            mbarrier_init(block.shared + S::TILE_IS_READ + 8 * i, S::MULTIPLIERS / 32);
        }
        mbarrier_init(block.shared + S::EXCHANGE, 1);
        fence_mbarrier_init_cluster();
        if (S::BLOCKS > 1)
            mbarrier_arrive_expect_tx(block.shared + S::EXCHANGE, S::EXCHANGE_BYTES);
    }
    __syncwarp();
    bar_arrive(DECODERS_START, PART_THREADS + 32);
    if (issues) {
        fetch_a_scales<S>(maps, block, 0);
#pragma unroll 1
        for (int i = 0; i < S::SLOTS; ++i)
            fetch_a<S>(maps, block, i);
    }
    __syncwarp();
}

/* What a thread stores: all of its sums, or half of them with those of the other block's. The other
 * block's f16 tiles are read once its threads have come here. */
template <class S>
NVS_DEVICE void
finish_sums(const share &block, const float (&sum)[S::BN / 2], float4 (&own)[S::OWN])
{
    float4 all[S::VECTORS];
#pragma unroll
    for (int v = 0; v < S::VECTORS; ++v)
        all[v] = vector_of<S>(sum, v);
    if constexpr (S::BLOCKS == 1)
        memcpy(own, all, sizeof(own));
    else {
        bar_sync(DECODERS_END, S::THREADS);
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
        /* It counts all threads, of which the first are decoders. */
        exchange_halves<S>(block.shared - PART_THREADS * 16, block.shared + S::EXCHANGE, block.rank,
                           all, own);
    }
}

template <class S>
NVS_DEVICE void
gemm(const nvs_gemm_args &args, const nvs_a_maps &maps)
{
    const share block = place_share<S>(args);
    if (threadIdx.x < PART_THREADS) {
        const b_place at = place_b();
        b_stream<S> stream = start_stream<S>(load_b_args(args), block, at);
#pragma unroll
        for (int i = 0; i < S::B_SLOTS; ++i)
            copy_next_b(block, stream);
        if (S::ROW_TILES == 4)
            setmaxnreg_dec<DECODER_REGISTERS>();
        decode_all_b<S>(maps, block, stream, at);
        if (S::BLOCKS > 1)
            bar_arrive(DECODERS_END, S::THREADS);
        return;
    }
    if (threadIdx.x / 32 == PART_THREADS / 32)
        start_a<S>(maps, block);
    bar_sync(MULTIPLIERS_START, S::MULTIPLIERS);
    if (S::ROW_TILES == 4)
        setmaxnreg_inc<MULTIPLIER_REGISTERS>();
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = (threadIdx.x - PART_THREADS) / 32 * 16 + tile_row<2>(lane / 4);
    float sum[S::BN / 2] = {};
    multiply_all<S>(block.shared, block.superslabs, row, sum);
    const store_place store = place_store<S>(
        args, block.row0 + row, block.column0 + store_shape<S>::RUN * (4 * block.rank + lane % 4));
    float4 own[S::OWN];
    finish_sums<S>(block, sum, own);
    store_own<S>(args, store, own);
}

#define KERNEL(NAME, ROW_TILES, SHARED, ...)                                                       \
    static_assert(shape<ROW_TILES, __VA_ARGS__>::END == SHARED, "gemm_args.h");                    \
    extern "C" __global__ void __launch_bounds__(shape<ROW_TILES, __VA_ARGS__>::THREADS, 1)        \
        NAME(const __grid_constant__ nvs_gemm_args args, const __grid_constant__ nvs_a_maps maps)  \
    {                                                                                              \
        gemm<shape<ROW_TILES, __VA_ARGS__>>(args, maps);                                           \
    }

KERNEL(nvs_gemm_sm90_m128n64_ring, 2, NVS_SM90_M128N64_RING_SHARED, 2, 3, 3)
KERNEL(nvs_gemm_sm90_m192n64_ring, 3, NVS_SM90_M192N64_RING_SHARED, 2, 2, 3)
KERNEL(nvs_gemm_sm90_m256n64_ring, 4, NVS_SM90_M256N64_RING_SHARED, 2, 2, 2)
KERNEL(nvs_gemm_sm90_m256n64_solo, 4, NVS_SM90_M256N64_RING_SHARED, 1, 2, 2)
