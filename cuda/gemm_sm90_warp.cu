/* SPDX-License-Identifier: Apache-2.0
 *
 * Few rows, or few columns: a block computes 8 * ROW_GROUPS rows x 8 * N_TILES columns of C. Its
 * threads copy a stage of K, 2048 columns or more, to shared memory, then each of its 8 warps decodes
 * an eighth of them straight into MMA fragments (warp_part.cuh); the warps meet again only to add
 * their sums. What does not fit into a tile is other blocks'.
 */
#include "decode.cuh"
#include "epilogue.cuh"
#include "gemm_args.h"
#include "ptx.cuh"
#include "warp_part.cuh"
#include "warp_stage.cuh"

/* Where a thread leaves its sums and finds all warps' of its elements of C, and those elements.
 * Neighbouring threads have neighbours in C. With one stage it is found while the operands are still
 * on their way. */
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
    asm volatile("" : "+r"(place.own)::"memory"); /* now: see settle() */
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

/* The warp's sums to shared memory, for all threads. */
template <class S>
NVS_DEVICE void
leave_sums(const store_place<S> &place, const float (&sum)[S::M_TILES][S::N_TILES][4])
{
#pragma unroll
    for (int r = 0; r < S::ROW_GROUPS; ++r)
#pragma unroll
        for (int n = 0; n < S::N_TILES; ++n)
            st_shared_v2(place.own + 8 * r * S::SUM_ROW + 32 * n, sum[r / 2][n][2 * (r % 2)],
                         sum[r / 2][n][2 * (r % 2) + 1]);
    __syncthreads();
}

/* Of element i of this thread, in warp order. */
template <class S>
NVS_DEVICE float
add_warps(const store_place<S> &place, int i)
{
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w)
        total += ld_shared_f32(place.from[i] + w * S::WARP_SUMS);
    return total;
}

/* Adds the warps' sums and stores the tile. */
template <class S>
NVS_DEVICE void
reduce_and_store(const nvs_gemm_args &args, const store_place<S> &place,
                 const float (&sum)[S::M_TILES][S::N_TILES][4])
{
    leave_sums<S>(place, sum);
#pragma unroll
    for (int i = 0; i < place.ELEMENTS; ++i)
        if (place.exists[i])
            store_value(args, place.at[i], scaled(add_warps<S>(place, i), load_alpha(args)));
}

/* Where two blocks that share K exchange sums: an mbarrier, then what comes from the other one. */
template <class S>
struct exchange {
    static constexpr int OWN = store_place<S>::ELEMENTS / 2; /* of a thread */
    static_assert(S::ROWS * S::BLOCK_N == 2 * OWN * THREADS, "each stores half of the tile");
    static constexpr int RECEIVED = 128, BYTES = RECEIVED + OWN * THREADS * 4;
};

/* The other block may send once both have met. */
NVS_DEVICE void
announce_exchange(uint32_t at)
{
    if (threadIdx.x == 0) {
        mbarrier_init(at, 1);
        fence_mbarrier_init_cluster();
    }
    barrier_cluster_arrive_relaxed();
}

/* The first block stores the first half of each thread's elements. A sum of two is the same either
 * way round. */
template <class S>
NVS_DEVICE void
exchange_and_store(const nvs_gemm_args &args, const store_place<S> &place, uint32_t at,
                   const float (&sum)[S::M_TILES][S::N_TILES][4])
{
    using X = exchange<S>;
    const uint32_t rank = blockIdx.x % 2, received = at + X::RECEIVED + threadIdx.x * 4;
    if (threadIdx.x == 0) /* not right behind the init, which racecheck takes for a race */
        mbarrier_arrive_expect_tx(at, X::OWN * THREADS * 4);
    leave_sums<S>(place, sum);
    float total[place.ELEMENTS];
#pragma unroll
    for (int i = 0; i < place.ELEMENTS; ++i)
        total[i] = add_warps<S>(place, i);
    barrier_cluster_wait();
    const uint32_t there = mapa(received, rank ^ 1), signal = mapa(at, rank ^ 1);
#pragma unroll
    for (int i = 0; i < X::OWN; ++i)
        st_async_f32(there + i * THREADS * 4, signal, rank ? total[i] : total[i + X::OWN]);
    mbarrier_wait(at, 0);
#pragma unroll
    for (int i = 0; i < X::OWN; ++i) {
        const float own = rank ? total[i + X::OWN] : total[i];
        const float x = own + ld_shared_f32(received + i * THREADS * 4);
        if (rank ? place.exists[i + X::OWN] : place.exists[i])
            store_value(args, rank ? place.at[i + X::OWN] : place.at[i],
                        scaled(x, load_alpha(args)));
    }
}

/* Where STAGES stages stand: as many as fit before the table, the others behind the sums. */
template <class S, int STAGES>
struct ring {
    static constexpr int FIT = S::TABLE / S::BYTES;
    static constexpr int BEFORE = STAGES < FIT ? STAGES : FIT;
    static constexpr int BEHIND = S::SUMS + WARPS * S::WARP_SUMS;
    static constexpr int SHARED_BYTES = S::FITS ? BEHIND + (STAGES - BEFORE) * S::BYTES
                                                : S::META + S::META_BYTES;
    static_assert(S::FITS || STAGES == 1, "no room for two");

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

template <class S, int BLOCKS>
NVS_DEVICE block_place
place_block(void)
{
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    block_place at;
    at.row0 = row_of_tiles() * S::ROWS;
    at.column0 = blockIdx.x / BLOCKS * S::BLOCK_N;
    at.shared = shared_address(dynamic_shared);
    at.table = at.shared + S::TABLE;
    return at;
}

/* Leaves block `rank` of two its half, in whole lines; of 512 columns the second one has none. */
NVS_DEVICE void
take_half_of_k(nvs_gemm_args &args, uint32_t rank)
{
    const uint32_t k = (uint32_t)args.k, half = (k / 2 + 511) & ~511u, k0 = rank ? half : 0;
    args.a_vals += k0 / 4, args.a_meta += k0 / 4, args.a_scale += k0 / 16;
    args.b_fp4 += k0 / 2, args.b_scale += k0 / 16;
    args.k = rank ? k - half : half;
}

/* K in whole warps' shares, up to a stage; scales by aligned 16 bytes. The operand that all blocks
 * share is asked for first, and all scales, in whole lines; it is decoded while the other one is on
 * its way. That one is asked for after all else a thread can do by then: asking for both at once
 * took 3 to 7 % longer. A warp copies what it multiplies of it, line by line, and multiplies a line
 * when it is there; it waits for no other warp.
 *
 * Two BLOCKS of a cluster share K, a stage each.
 *
 * Straight-line code: a jump over instructions that are not there yet costs more than many
 * instructions. */
template <class S, int BLOCKS>
NVS_DEVICE void
gemm_one_stage(const nvs_gemm_args &parameters)
{
    nvs_gemm_args args = load_args(parameters);
    const block_place block = place_block<S, BLOCKS>();
    const uint32_t sums_of_blocks = block.shared + ring<S, 1>::SHARED_BYTES;
    if constexpr (BLOCKS == 2)
        take_half_of_k(args, blockIdx.x % 2);
    if constexpr (S::FEW_COLUMNS)
        copy_b_stage<S>(args, block.shared, block.column0, 0);
    else
        copy_a_stage<S>(args, block.shared, block.row0, 0);
    copy_scales<S, 16>(args, block.shared, block.row0, block.column0, 0);
    cp_async_commit_group();
    if constexpr (BLOCKS == 2)
        announce_exchange(sums_of_blocks);
    write_table_entry(block.table, threadIdx.x);
    const store_place<S> place = place_store<S>(args, block.shared + S::SUMS, block.row0,
                                                block.column0);
    lane_place at = place_lane<S>(block.shared, block.table);
    settle(at);
    const int rounds = count_own_rounds<S>((uint32_t)args.k);
    if constexpr (S::FEW_COLUMNS)
        copy_own_a<S>(args, block.shared, block.row0, rounds);
    else
        copy_own_b<S>(args, block.shared, block.column0, rounds);
    keep_order();
    float sum[S::M_TILES][S::N_TILES][4] = {};
    cp_async_wait_group(S::OWN_COPIES);
    __syncthreads();
    if constexpr (S::FEW_COLUMNS)
        multiply_when_a_lands<S>(at, rounds, sum);
    else
        multiply_when_b_lands<S>(at, rounds, sum);
    if constexpr (BLOCKS == 2)
        exchange_and_store<S>(args, place, sums_of_blocks, sum);
    else
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
    const block_place block = place_block<S, 1>();
    uint32_t ahead = 0, to = 0;
    const auto copy_next = [&] {
        if (ahead < (uint32_t)args.k) {
            if constexpr (SCALE_CHUNK > 0)
                copy_stage<S, SCALE_CHUNK>(args, block.shared + to, block.row0, block.column0,
                                           ahead);
            else
                copy_stage_bytewise<S>(args, block.shared + to, block.row0, block.column0, ahead);
        }
        ahead += S::STAGE_K;
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
    for (uint32_t k0 = 0; k0 < (uint32_t)args.k; k0 += S::STAGE_K) {
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
#define KERNEL(NAME, ROW_GROUPS, N_TILES, FEW, K, BYTES, SHARED, ...)                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        NAME(const __grid_constant__ nvs_gemm_args args)                                           \
    {                                                                                              \
        using S = shape<ROW_GROUPS, N_TILES, FEW, K>;                                              \
        static_assert((BYTES) == (SHARED), "gemm_args.h");                                         \
        __VA_ARGS__(args);                                                                         \
    }

#define ONE_STAGE(NAME, ROW_GROUPS, N_TILES, FEW, K, SHARED)                                       \
    KERNEL(NAME, ROW_GROUPS, N_TILES, FEW, K, (ring<S, 1>::SHARED_BYTES), SHARED,                  \
           gemm_one_stage<S, 1>)

/* K: of each block. */
#define TWO_BLOCKS(NAME, ROW_GROUPS, N_TILES, FEW, K, SHARED)                                      \
    KERNEL(NAME, ROW_GROUPS, N_TILES, FEW, K, (ring<S, 1>::SHARED_BYTES + exchange<S>::BYTES),     \
           SHARED, gemm_one_stage<S, 2>)

/* STAGES of 2048 columns. */
#define LONG_K(NAME, ROW_GROUPS, N_TILES, FEW, STAGES, CHUNK, SHARED)                              \
    KERNEL(NAME, ROW_GROUPS, N_TILES, FEW, 2048, (ring<S, STAGES>::SHARED_BYTES), SHARED,          \
           gemm_long<S, STAGES, CHUNK>)

ONE_STAGE(nvs_gemm_sm90_m8, 1, 2, false, 2048, NVS_SM90_M8_SHARED)
ONE_STAGE(nvs_gemm_sm90_m8_k8192, 1, 2, false, 8192, NVS_SM90_M8_K8192_SHARED)
LONG_K(nvs_gemm_sm90_m8_long, 1, 2, false, 4, 4, NVS_SM90_M8_LONG_SHARED)
ONE_STAGE(nvs_gemm_sm90_m8n32, 1, 4, false, 2048, NVS_SM90_M8N32_SHARED)
ONE_STAGE(nvs_gemm_sm90_m8n32_k4096, 1, 4, false, 4096, NVS_SM90_M8N32_K4096_SHARED)
ONE_STAGE(nvs_gemm_sm90_m16, 2, 2, false, 2048, NVS_SM90_M16_SHARED)
ONE_STAGE(nvs_gemm_sm90_m16_k8192, 2, 2, false, 8192, NVS_SM90_M16_K8192_SHARED)
ONE_STAGE(nvs_gemm_sm90_m16n32, 2, 4, false, 2048, NVS_SM90_M16N32_SHARED)
ONE_STAGE(nvs_gemm_sm90_m16n32_k4096, 2, 4, false, 4096, NVS_SM90_M16N32_K4096_SHARED)
LONG_K(nvs_gemm_sm90_m16_long, 2, 2, false, 3, 4, NVS_SM90_M16_LONG_SHARED)
LONG_K(nvs_gemm_sm90_m32_long, 4, 2, false, 2, 4, NVS_SM90_M32_LONG_SHARED)
LONG_K(nvs_gemm_sm90_m32_any, 4, 2, false, 2, 0, NVS_SM90_M32_LONG_SHARED)
ONE_STAGE(nvs_gemm_sm90_m16n8, 2, 1, true, 2048, NVS_SM90_M16N8_SHARED)
ONE_STAGE(nvs_gemm_sm90_m16n8_k8192, 2, 1, true, 8192, NVS_SM90_M16N8_K8192_SHARED)
LONG_K(nvs_gemm_sm90_m16n8_long, 2, 1, true, 4, 16, NVS_SM90_M16N8_LONG_SHARED)
ONE_STAGE(nvs_gemm_sm90_m16n16, 2, 2, true, 2048, NVS_SM90_M16_SHARED)
LONG_K(nvs_gemm_sm90_m16n16_long, 2, 2, true, 3, 16, NVS_SM90_M16_LONG_SHARED)
ONE_STAGE(nvs_gemm_sm90_m32n8, 4, 1, true, 2048, NVS_SM90_M32N8_SHARED)
ONE_STAGE(nvs_gemm_sm90_m32n8_k4096, 4, 1, true, 4096, NVS_SM90_M32N8_K4096_SHARED)
LONG_K(nvs_gemm_sm90_m32n8_long, 4, 1, true, 3, 16, NVS_SM90_M32N8_LONG_SHARED)
ONE_STAGE(nvs_gemm_sm90_m32n16, 4, 2, true, 2048, NVS_SM90_M32N16_SHARED)
ONE_STAGE(nvs_gemm_sm90_m32n16_k4096, 4, 2, true, 4096, NVS_SM90_M32N16_K4096_SHARED)
TWO_BLOCKS(nvs_gemm_sm90_m32n16_two_k4096, 4, 2, true, 2048, NVS_SM90_M32N16_TWO_K4096_SHARED)
TWO_BLOCKS(nvs_gemm_sm90_m32n16_two_k8192, 4, 2, true, 4096, NVS_SM90_M32N16_TWO_K8192_SHARED)
LONG_K(nvs_gemm_sm90_m32n16_long, 4, 2, true, 2, 16, NVS_SM90_M32_LONG_SHARED)
ONE_STAGE(nvs_gemm_sm90_m64n8, 8, 1, true, 2048, NVS_SM90_M64N8_SHARED)
ONE_STAGE(nvs_gemm_sm90_m64n16, 8, 2, true, 2048, NVS_SM90_M64N16_SHARED)
