/* SPDX-License-Identifier: Apache-2.0
 *
 * Few rows of A and more columns of C than one wave of tiles has (few tokens, dense weights): what
 * gemm_sm90_stream.cu is for few columns, with the operands' parts exchanged. B is read once, as fast
 * as memory gives it: one block per SM walks tiles of 16 columns. Each of its 8 warps copies its own
 * slabs of B through a ring of its own in shared memory, several ahead and across tiles.
 *
 * Up to a length of K a warp keeps its slabs of A decoded in registers. The warps of a team share K;
 * where K has few slabs there are two teams, which take turns at the tiles. No warp waits for all
 * others of its team: a tile's sums wait in shared memory until one warp, each in its turn, adds them
 * in warp order some tiles later. A longer K has groups of tiles: two slabs of A come through the ring
 * and are multiplied by those of the group's tiles, whose sums wait in registers.
 */
#include "columns_slab.cuh"
#include "epilogue.cuh"
#include "gemm_args.h"

/* SLABS of K for each warp of a TEAM; the team's tile i is added LAG tiles later. Byte offsets in
 * shared memory: the table, before it A, or the rings if A is too long for that, and behind it the
 * rest. Dynamic shared memory starts 1 KB into the block's own on compute capability 9.0, so the table
 * stands at 64 KB. */
template <int ROW_GROUPS_, int SLABS_, int TEAMS_>
struct shape {
    static constexpr int ROW_GROUPS = ROW_GROUPS_, SLABS = SLABS_, TEAMS = TEAMS_;
    static constexpr int TEAM = WARPS / TEAMS, BUFFERS = 4 / ROW_GROUPS, LAG = BUFFERS / 2;
    using lines = a_lines<ROW_GROUPS, SLABS * TEAM>;
    static constexpr int TABLE = TABLE_BYTES - 1024, BEHIND = TABLE + TABLE_BYTES;
    static constexpr bool LONG_A = lines::BYTES > TABLE;
    static constexpr int DEPTH = LONG_A ? 3 : 4; /* of a ring */
    static constexpr int WARP_RING = DEPTH * SLOT, ALL_RINGS = WARPS * WARP_RING;
    static constexpr int A = LONG_A ? BEHIND : 0, RINGS = LONG_A ? 0 : BEHIND;
    static_assert((LONG_A ? ALL_RINGS : lines::BYTES) <= TABLE, "fits before the table");
    static constexpr int SUMS = BEHIND + (LONG_A ? lines::BYTES : ALL_RINGS);
    static constexpr int TILE_SUMS = ROW_GROUPS * 512; /* of a warp */
    static constexpr int BUFFER = WARPS * TILE_SUMS;   /* of a tile of each team */
    static constexpr int MBARRIERS = SUMS + BUFFERS * BUFFER;
    static_assert(2 * 8 * BUFFERS * TEAMS <= 128, "mbarriers");
    static_assert(MBARRIERS + 128 == NVS_SM90_COLUMNS_SHARED, "gemm_args.h");
};

/* Of any number of slabs, for GROUP tiles at a time. */
template <int ROW_GROUPS_>
struct long_shape {
    static constexpr int ROW_GROUPS = ROW_GROUPS_, TEAM = WARPS, GROUP = 4;
    static constexpr int TABLE = TABLE_BYTES - 1024, RINGS = TABLE + TABLE_BYTES;
    static constexpr int DEPTH = 5, WARP_RING = DEPTH * SLOT;
    static constexpr int TILE_SUMS = ROW_GROUPS * 512, BUFFER = WARPS * TILE_SUMS;
    static_assert(GROUP * BUFFER <= TABLE, "sums fit before the table");
    static_assert(RINGS + WARPS * WARP_RING == NVS_SM90_COLUMNS_LONG_SHARED, "gemm_args.h");
};

/* A lane's sums of row group r: two neighbours of each n8 tile. */
template <int ROW_GROUPS>
NVS_DEVICE void
store_sums(uint32_t to, const float (&sum)[N_TILES][4])
{
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; ++r)
        st_shared_v4(to + r * 512, sum[0][2 * r], sum[0][2 * r + 1], sum[1][2 * r],
                     sum[1][2 * r + 1]);
}

/* True if two neighbours of a row of C from an even column on are an aligned word. */
NVS_DEVICE bool
pairs_are_words(const nvs_gemm_args &args)
{
    return args.out_dtype != NVS_OUT_FP32 && runs_are_vectors<2>(args);
}

/* Two neighbours of a row of C. */
NVS_DEVICE void
store_pair(const nvs_gemm_args &args, bool as_word, uint32_t row, uint32_t column, float first,
           float second)
{
    if (!as_word) {
        store_element(args, row, column, first);
        store_element(args, row, column + 1, second);
    }
    else if (row < (uint32_t)args.m && column < (uint32_t)args.n) {
        const float pair[2] = {first, second};
        store_run(static_cast<uint8_t *>(args.out) + 2 * (row * args.out_stride_m + column), pair,
                  args.alpha, args.out_dtype == NVS_OUT_FP16);
    }
}

/* By one warp: adds a tile's sums of its team in warp order and stores the tile. sums: those of the
 * first warp's lane. */
template <class S>
NVS_DEVICE void
reduce_and_store(const nvs_gemm_args &args, bool as_words, uint32_t sums, uint32_t tile)
{
    const uint32_t g = threadIdx.x % 32 / 4, column = tile * TILE_N + threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r) {
        float4 total = {};
#pragma unroll
        for (int w = 0; w < S::TEAM; ++w) {
            const float4 v = ld_shared_v4f(sums + w * S::TILE_SUMS + r * 512);
            total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
        }
        store_pair(args, as_words, 8 * r + g, column, total.x, total.y);
        store_pair(args, as_words, 8 * r + g, column + 8, total.z, total.w);
    }
}

/* A warp's ring: `slot` is the oldest, `last` the one before, which is free. */
struct ring {
    uint32_t first, slot, last;
};

template <class S>
NVS_DEVICE ring
start_ring(uint32_t shared)
{
    const uint32_t first = shared + S::RINGS + threadIdx.x / 32 * S::WARP_RING;
    return {first, first, first + S::WARP_RING - SLOT};
}

/* Waits for the oldest copy, copies the next one and returns the slot of the first. */
template <class S, class COPY>
NVS_DEVICE uint32_t
take_slot(ring &at, const COPY &copy_next)
{
    cp_async_wait_group(S::DEPTH - 2);
    __syncwarp();
    copy_next(at.last);
    at.last = at.slot;
    at.slot = at.slot + SLOT == at.first + S::WARP_RING ? at.first : at.slot + SLOT;
    return at.last;
}

/* A constant that ptxas would else find again wherever it is used. */
NVS_DEVICE uint32_t
kept(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Of the mbarriers of a team, those of its tile i: its sums are there; they have been added. */
template <class S>
NVS_DEVICE uint32_t
full(uint32_t barriers, uint32_t i)
{
    return barriers + i % S::BUFFERS * 16;
}

template <class S>
NVS_DEVICE uint32_t
empty(uint32_t barriers, uint32_t i)
{
    return full<S>(barriers, i) + 8;
}

template <class S>
NVS_DEVICE void
gemm(const nvs_gemm_args &parameters)
{
    constexpr int ROW_GROUPS = S::ROW_GROUPS, TEAM = S::TEAM;
    nvs_gemm_args args = load_args(parameters);
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    const uint32_t shared = shared_address(dynamic_shared);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t team = warp / TEAM, member = warp % TEAM;
    const uint32_t slabs = (uint32_t)args.k / SLAB_K;
    const uint32_t tiles = ((uint32_t)args.n + TILE_N - 1) / TILE_N;
    const uint32_t first_tile = blockIdx.x + team * gridDim.x, step = kept(S::TEAMS * gridDim.x);
    copy_a<S>(args, shared);
    cp_async_commit_group();

    uint32_t my_slabs = 0;
#pragma unroll
    for (int j = 0; j < S::SLABS; ++j)
        my_slabs += member + j * TEAM < slabs;
    ring at = start_ring<S>(shared);
    const copy_place copies = place_copies(args);
    uint32_t ahead_tile = my_slabs > 0 ? first_tile : tiles, ahead_slab = member;
    const auto copy_next = [&](uint32_t slot) {
        if (ahead_tile < tiles) {
            copy_b(args, copies, ahead_tile, ahead_slab, slot);
            if ((ahead_slab += TEAM) >= slabs)
                ahead_slab = member, ahead_tile += step;
        }
        cp_async_commit_group();
    };
#pragma unroll 1
    for (int i = 0; i < S::DEPTH - 1; ++i)
        copy_next(at.first + i * SLOT);

    write_table_entry(shared + S::TABLE, threadIdx.x);
    if (threadIdx.x < 2 * S::BUFFERS * S::TEAMS)
        mbarrier_init(shared + S::MBARRIERS + threadIdx.x * 8, 32 * (threadIdx.x % 2 ? 1 : TEAM));
    const uint32_t barriers = shared + S::MBARRIERS + team * (S::BUFFERS * 16);
    const uint32_t sums = shared + S::SUMS + team * (TEAM * S::TILE_SUMS) + lane * 16;
    const b_place place = place_b(shared + S::TABLE);
    settle_alpha(args);
    const bool as_words = pairs_are_words(args);
    const uint32_t my_tiles = kept(first_tile < tiles ? (tiles - first_tile + step - 1) / step : 0);
    cp_async_wait_group(S::DEPTH - 1);
    __syncthreads();
    a_slab<ROW_GROUPS> a[S::SLABS];
#pragma unroll
    for (int j = 0; j < S::SLABS; ++j)
        if (j < my_slabs)
            decode_a<S>(shared, member + j * TEAM, a[j]);

    uint32_t adds = member; /* the tile that this warp adds next */
    const auto add = [&] {
        mbarrier_wait(full<S>(barriers, adds), adds / S::BUFFERS & 1);
        reduce_and_store<S>(args, as_words, sums + adds % S::BUFFERS * S::BUFFER,
                            first_tile + adds * step);
        mbarrier_arrive(empty<S>(barriers, adds));
        adds += TEAM;
    };
#pragma unroll 1
    for (uint32_t i = 0; i < my_tiles; ++i) {
        float sum[N_TILES][4] = {};
#pragma unroll
        for (int j = 0; j < S::SLABS; ++j) {
            if (j >= my_slabs)
                break;
            const uint32_t slot = take_slot<S>(at, copy_next);
            multiply<ROW_GROUPS>(place, slot, a[j], sum);
        }
        mbarrier_wait(empty<S>(barriers, i), (i / S::BUFFERS & 1) ^ 1);
        store_sums<ROW_GROUPS>(sums + i % S::BUFFERS * S::BUFFER + member * S::TILE_SUMS, sum);
        mbarrier_arrive(full<S>(barriers, i));
        if (i == adds + S::LAG)
            add();
    }
    if (adds < my_tiles)
        add();
}

/* Where a warp copies from next: of a group of tiles its pairs of slabs, of each first A, a slot per
 * row group, then the tiles' slabs. */
struct long_walk {
    uint32_t group, pair, i;
};

template <class S>
NVS_DEVICE void
copy_next_of_group(const nvs_gemm_args &args, const copy_place &copies, uint32_t tiles,
                   uint32_t step, long_walk &at, uint32_t slot)
{
    const uint32_t slabs = (uint32_t)args.k / SLAB_K, slab = at.pair * LINE_SLABS;
    const uint32_t odd = slab + 1 == slabs; /* the pair's second one does not exist */
    static_assert(LINE_SLABS == 2, "pairs");
    if (at.group < tiles && slab < slabs) {
        const uint32_t b = at.i - S::ROW_GROUPS, tile = at.group + (b >> (1 - odd)) * step;
        if (at.i < S::ROW_GROUPS)
            copy_a_pair(args, at.i, at.pair, slot);
        else
            copy_b(args, copies, tile, slab + (odd ? 0 : b % 2), slot);
        ++at.i;
        const uint32_t next = at.i - S::ROW_GROUPS, t = next >> (1 - odd);
        if (at.i > S::ROW_GROUPS && (t == S::GROUP || at.group + t * step >= tiles)) {
            at.i = 0;
            at.pair += WARPS;
            if (at.pair * LINE_SLABS >= slabs)
                at.pair = threadIdx.x / 32, at.group += S::GROUP * step;
        }
    }
    cp_async_commit_group();
}

template <class S>
NVS_DEVICE void
gemm_long(const nvs_gemm_args &parameters)
{
    constexpr int ROW_GROUPS = S::ROW_GROUPS, GROUP = S::GROUP;
    nvs_gemm_args args = load_args(parameters);
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    const uint32_t shared = shared_address(dynamic_shared);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t slabs = (uint32_t)args.k / SLAB_K, step = kept(gridDim.x);
    const uint32_t tiles = ((uint32_t)args.n + TILE_N - 1) / TILE_N;
    ring at = start_ring<S>(shared);
    const copy_place copies = place_copies(args);
    long_walk ahead = {blockIdx.x, warp, 0};
    const auto copy_next = [&](uint32_t slot) {
        copy_next_of_group<S>(args, copies, tiles, step, ahead, slot);
    };
#pragma unroll 1
    for (int i = 0; i < S::DEPTH - 1; ++i)
        copy_next(at.first + i * SLOT);
    write_table_entry(shared + S::TABLE, threadIdx.x);
    const b_place place = place_b(shared + S::TABLE);
    settle_alpha(args);
    const bool as_words = pairs_are_words(args);
    const uint32_t sums = shared + lane * 16;
    __syncthreads();
#pragma unroll 1
    for (uint32_t group = blockIdx.x; group < tiles; group += GROUP * step) {
        float sum[GROUP][N_TILES][4] = {};
#pragma unroll 1
        for (uint32_t slab = warp * LINE_SLABS; slab < slabs; slab += WARPS * LINE_SLABS) {
            a_slab<ROW_GROUPS> a[LINE_SLABS];
            uint4 meta[LINE_SLABS][ROW_GROUPS];
#pragma unroll
            for (int r = 0; r < ROW_GROUPS; ++r)
                decode_a_pair(take_slot<S>(at, copy_next), r, a, meta);
#pragma unroll
            for (int s = 0; s < LINE_SLABS; ++s)
                decode_metadata(meta[s], a[s]);
#pragma unroll
            for (int t = 0; t < GROUP; ++t) {
                if (group + t * step >= tiles)
                    break;
#pragma unroll
                for (int s = 0; s < LINE_SLABS; ++s) {
                    if (slab + s >= slabs)
                        break;
                    const uint32_t slot = take_slot<S>(at, copy_next);
                    multiply<ROW_GROUPS>(place, slot, a[s], sum[t]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < GROUP; ++t)
            store_sums<ROW_GROUPS>(sums + t * S::BUFFER + warp * S::TILE_SUMS, sum[t]);
        __syncthreads();
        if (warp < GROUP && group + warp * step < tiles)
            reduce_and_store<S>(args, as_words, sums + warp * S::BUFFER, group + warp * step);
        __syncthreads();
    }
}

/* The function stands last, for the comma in its name. */
#define KERNEL(NAME, ...)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        NAME(const __grid_constant__ nvs_gemm_args args)                                           \
    {                                                                                              \
        __VA_ARGS__(args);                                                                         \
    }

KERNEL(nvs_gemm_sm90_m8_stream_k2048, gemm<shape<1, 2, 2>>)
KERNEL(nvs_gemm_sm90_m8_stream_k4096, gemm<shape<1, 2, 1>>)
KERNEL(nvs_gemm_sm90_m8_stream_k8192, gemm<shape<1, 4, 1>>)
KERNEL(nvs_gemm_sm90_m8_stream, gemm_long<long_shape<1>>)
KERNEL(nvs_gemm_sm90_m16_stream_k2048, gemm<shape<2, 2, 2>>)
KERNEL(nvs_gemm_sm90_m16_stream_k4096, gemm<shape<2, 2, 1>>)
KERNEL(nvs_gemm_sm90_m16_stream_k8192, gemm<shape<2, 4, 1>>)
KERNEL(nvs_gemm_sm90_m16_stream, gemm_long<long_shape<2>>)
