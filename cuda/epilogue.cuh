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

/* Reads it now, once for a kernel that stores again and again. */
NVS_DEVICE void
settle_alpha(nvs_gemm_args &args)
{
    args.alpha = load_alpha(args);
    args.alpha_ptr = nullptr;
}

/* What C[row, column] is before its one rounding. Unscaling first is exact and cannot overflow,
 * so alpha sees the sum that SPEC speaks of. */
NVS_DEVICE float
scaled(float sum, float alpha)
{
    return sum * DECODE_UNSCALE * alpha;
}

/* C's element `at`, counted from its first. bf16 stands first: it is the usual case. */
NVS_DEVICE void
store_value(const nvs_gemm_args &args, int64_t at, float value)
{
    if (__builtin_expect(args.out_dtype == NVS_OUT_BF16, 1))
        static_cast<__nv_bfloat16 *>(args.out)[at] = __float2bfloat16_rn(value);
    else if (args.out_dtype == NVS_OUT_FP16)
        static_cast<__half *>(args.out)[at] = __float2half_rn(value);
    else
        static_cast<float *>(args.out)[at] = value;
}

/* Stores C[row, column] if it exists. */
NVS_DEVICE void
store_element(const nvs_gemm_args &args, uint32_t row, uint32_t column, float sum)
{
    if (row < (uint32_t)args.m && column < (uint32_t)args.n)
        store_value(args, row * args.out_stride_m + column * args.out_stride_n,
                    scaled(sum, load_alpha(args)));
}

NVS_DEVICE uint32_t
out_element_bytes(const nvs_gemm_args &args)
{
    return args.out_dtype == NVS_OUT_FP32 ? 4 : 2;
}

/* True if every RUN columns from a multiple of RUN on are whole aligned vectors of up to 16 bytes. */
template <int RUN>
NVS_DEVICE bool
runs_are_vectors(const nvs_gemm_args &args)
{
    const uint32_t size = out_element_bytes(args), vector = min(16u, RUN * size);
    const uint32_t places = (uint32_t)(uintptr_t)args.out | (uint32_t)args.out_stride_m * size;
    return args.out_stride_n == 1 && (places & (vector - 1)) == 0 &&
           ((uint32_t)args.n & (RUN - 1)) == 0;
}

/* True if C is column-major and every pair of rows that starts at an even one is an aligned word. */
NVS_DEVICE bool
row_pairs_are_words(const nvs_gemm_args &args)
{
    return args.out_dtype != NVS_OUT_FP32 && args.out_stride_m == 1 &&
           (((uint32_t)(uintptr_t)args.out & 3) | ((uint32_t)args.out_stride_n & 1) |
            ((uint32_t)args.m & 1)) == 0;
}

/* Two neighbours of a bf16 or fp16 C. */
NVS_DEVICE uint32_t
scaled_word(float first, float second, float alpha, bool is_fp16)
{
    uint32_t word;
    if (is_fp16) {
        const __half2 pair = __floats2half2_rn(scaled(first, alpha), scaled(second, alpha));
        memcpy(&word, &pair, 4);
    }
    else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(scaled(first, alpha),
                                                          scaled(second, alpha));
        memcpy(&word, &pair, 4);
    }
    return word;
}

/* WORDS neighbouring words at a multiple of as many bytes, up to 16. */
template <int WORDS>
NVS_DEVICE void
store_words(uint8_t *at, const uint32_t (&words)[WORDS])
{
    constexpr int VECTOR = WORDS < 4 ? WORDS : 4;
    static_assert(WORDS % VECTOR == 0 && VECTOR != 3, "whole vectors");
#pragma unroll
    for (int i = 0; i < WORDS; i += VECTOR) {
        if (VECTOR == 4)
            *reinterpret_cast<uint4 *>(at + 4 * i) = make_uint4(
                words[i], words[i + 1 % VECTOR], words[i + 2 % VECTOR], words[i + 3 % VECTOR]);
        else if (VECTOR == 2)
            *reinterpret_cast<uint2 *>(at + 4 * i) = make_uint2(words[i], words[i + 1 % VECTOR]);
        else
            *reinterpret_cast<uint32_t *>(at + 4 * i) = words[i];
    }
}

/* A run of a row of a bf16 or fp16 C, where runs_are_vectors(). */
template <int RUN>
NVS_DEVICE void
store_run(uint8_t *at, const float (&run)[RUN], float alpha, bool is_fp16)
{
    uint32_t words[RUN / 2];
#pragma unroll
    for (int i = 0; i < RUN / 2; ++i)
        words[i] = scaled_word(run[2 * i], run[2 * i + 1], alpha, is_fp16);
    store_words(at, words);
}

/* The same of an fp32 C. */
template <int RUN>
NVS_DEVICE void
store_run_fp32(uint8_t *at, const float (&run)[RUN], float alpha)
{
    uint32_t words[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i)
        words[i] = __float_as_uint(scaled(run[i], alpha));
    store_words(at, words);
}
