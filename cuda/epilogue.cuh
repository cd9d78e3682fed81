/* SPDX-License-Identifier: Apache-2.0
 *
 * From the fp32 accumulator to one element of C: unscale, alpha, one rounding, store.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "decode.cuh"
#include "gemm_args.h"

/* The arguments by way of registers. Read in place, each new line of the constant bank stops the
 * warp for a hundred cycles, one line after the other; loads that are indexed by a register (which
 * is zero) are all under way at once. */
NVS_DEVICE nvs_gemm_args
load_args(const nvs_gemm_args &args)
{
    const nvs_gemm_args x = (&args)[opaque_zero()];
    asm volatile("" ::"l"(x.b_fp4), "l"(x.b_scale), "l"(x.a_vals), "l"(x.a_meta), "l"(x.a_scale));
    asm volatile("" ::"r"((uint32_t)x.b_fp4_ld), "r"((uint32_t)x.b_scale_ld),
                 "r"((uint32_t)x.a_vals_ld), "r"((uint32_t)x.a_meta_ld),
                 "r"((uint32_t)x.a_scale_ld));
    asm volatile("" ::"r"((uint32_t)x.k), "r"((uint32_t)x.m), "r"((uint32_t)x.n), "l"(x.out),
                 "l"(x.out_stride_m), "l"(x.out_stride_n), "l"(x.alpha_ptr), "f"(x.alpha),
                 "r"(x.out_dtype));
    return x;
}

/* The same for what the loads of B need, and nothing else. */
NVS_DEVICE nvs_gemm_args
load_b_args(const nvs_gemm_args &args)
{
    const nvs_gemm_args x = (&args)[opaque_zero()];
    asm volatile("" ::"l"(x.b_fp4), "l"(x.b_scale), "r"((uint32_t)x.b_fp4_ld),
                 "r"((uint32_t)x.b_scale_ld), "r"((uint32_t)x.k), "r"((uint32_t)x.n));
    return x;
}

/* Rows of tiles stand along y and z, so that there may be more than 65535. See nvs_grid(). */
NVS_DEVICE uint32_t
row_of_tiles(void)
{
    return blockIdx.z * NVS_GRID_Y + blockIdx.y;
}

NVS_DEVICE float
load_alpha(const nvs_gemm_args &args)
{
    return args.alpha_ptr ? *args.alpha_ptr : args.alpha;
}

/* What C[row, column] is before its one rounding. Unscaling first is exact and cannot overflow,
 * so alpha sees the sum that SPEC speaks of. */
NVS_DEVICE float
scaled(float sum, float alpha)
{
    return sum * DECODE_UNSCALE * alpha;
}

/* Stores C[row, column] if it exists. bf16 stands first: it is the usual case. */
NVS_DEVICE void
store_element(const nvs_gemm_args &args, uint32_t row, uint32_t column, float sum)
{
    if (row >= (uint32_t)args.m || column >= (uint32_t)args.n)
        return;
    const float value = scaled(sum, load_alpha(args));
    const int64_t at = row * args.out_stride_m + column * args.out_stride_n;
    if (__builtin_expect(args.out_dtype == NVS_OUT_BF16, 1))
        static_cast<__nv_bfloat16 *>(args.out)[at] = __float2bfloat16_rn(value);
    else if (args.out_dtype == NVS_OUT_FP16)
        static_cast<__half *>(args.out)[at] = __float2half_rn(value);
    else
        static_cast<float *>(args.out)[at] = value;
}

/* True if every RUN columns from a multiple of RUN on are one aligned store. */
template <int RUN>
NVS_DEVICE bool
runs_are_vectors(const nvs_gemm_args &args)
{
    return args.out_dtype == NVS_OUT_BF16 && args.out_stride_n == 1 &&
           (((uint32_t)(uintptr_t)args.out / 2 | (uint32_t)args.out_stride_m | (uint32_t)args.n) &
            (RUN - 1)) == 0 &&
           ((uint32_t)(uintptr_t)args.out & 1) == 0;
}

/* True if C is column-major and every pair of rows that starts at an even one is one aligned
 * store. */
NVS_DEVICE bool
row_pairs_are_words(const nvs_gemm_args &args)
{
    return args.out_dtype == NVS_OUT_BF16 && args.out_stride_m == 1 &&
           (((uint32_t)(uintptr_t)args.out & 3) | ((uint32_t)args.out_stride_n & 1) |
            ((uint32_t)args.m & 1)) == 0;
}

NVS_DEVICE uint32_t
scaled_word(float first, float second, float alpha)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(scaled(first, alpha), scaled(second, alpha));
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* A pair of neighbours of C, where row_pairs_are_words(). */
NVS_DEVICE void
store_word(__nv_bfloat16 *at, float first, float second, float alpha)
{
    *reinterpret_cast<uint32_t *>(at) = scaled_word(first, second, alpha);
}

/* A run of a row of C, where runs_are_vectors(). */
template <int RUN>
NVS_DEVICE void
store_run(__nv_bfloat16 *at, const float (&run)[RUN], float alpha)
{
    static_assert(RUN == 2 || RUN == 4 || RUN == 8, "one store");
    uint32_t words[RUN / 2];
#pragma unroll
    for (int i = 0; i < RUN / 2; ++i)
        words[i] = scaled_word(run[2 * i], run[2 * i + 1], alpha);
    if (RUN == 8)
        *reinterpret_cast<uint4 *>(at) = make_uint4(words[0], words[1], words[2 % (RUN / 2)],
                                                    words[3 % (RUN / 2)]);
    else if (RUN == 4)
        *reinterpret_cast<uint2 *>(at) = make_uint2(words[0], words[1 % (RUN / 2)]);
    else
        *reinterpret_cast<uint32_t *>(at) = words[0];
}
