/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline: one thread per element of C, on any GPU, for any shape, stride and address. It
 * says in CUDA what SPEC says in words, and the other kernels are judged against it.
 *
 * The products of one block of 16 columns are integers in units of 1/4, their sum is at most 1152;
 * the product of two scales has 8 significant bits. Both are exact in fp32, as is their product
 * (19 bits), so that all rounding is one fused multiply-add per block, alpha, and the conversion.
 * A NaN scale makes its product NaN, whatever the values are.
 */
#include "gemm_args.h"
#include "nvfp4.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static constexpr int TILE = 16; /* rows and columns of C per block of TILE * TILE threads */

/* Four bytes of an operand, the lowest address in the low byte. */
static __device__ __forceinline__ uint32_t
load_word(const uint8_t *at, bool aligned)
{
    if (aligned) {
        return *reinterpret_cast<const uint32_t *>(at);
    }
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static __device__ __forceinline__ float
scale_value(uint8_t byte)
{
    return nvs_ue4m3_is_nan(byte) ? __int_as_float(0x7FC00000)
                                  : (float)nvs_ue4m3_ulps(byte) * 0x1p-9f;
}

/* The products of one block, in quarters. b holds its 16 codes, column 0 in the low nibble. */
static __device__ __forceinline__ int
dot_block(uint32_t vals, uint32_t meta, uint64_t b)
{
    int sum = 0;
#pragma unroll
    for (int group = 0; group < NVS_GROUPS_PER_BLOCK; group++) {
        const uint32_t columns = (uint32_t)(b >> (16 * group)) & 0xFFFFu;
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            const unsigned position = nvs_meta_position(meta >> (8 * group), slot);
            sum += nvs_e2m1_halves((vals >> (8 * group + 4 * slot)) & 15u) *
                   nvs_e2m1_halves((columns >> (4 * position)) & 15u);
        }
    }
    return sum;
}

/* Stores the low `bytes` of bits where no type that wide may be stored. */
static __device__ __forceinline__ void
store_bytes(uint8_t *at, uint32_t bits, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        at[i] = (uint8_t)(bits >> (8 * i));
    }
}

static __device__ __forceinline__ void
store(const nvs_gemm_args &args, int64_t row, int64_t column, float value)
{
    const int64_t element = row * args.out_stride_m + column * args.out_stride_n;
    if (args.out_dtype == NVS_OUT_FP32) {
        uint8_t *at = static_cast<uint8_t *>(args.out) + 4 * element;
        if ((uintptr_t)at % 4 == 0) {
            *reinterpret_cast<float *>(at) = value;
        }
        else {
            store_bytes(at, __float_as_uint(value), 4);
        }
        return;
    }
    const uint16_t bits = args.out_dtype == NVS_OUT_FP16
                              ? __half_as_ushort(__float2half_rn(value))
                              : __bfloat16_as_ushort(__float2bfloat16_rn(value));
    uint8_t *at = static_cast<uint8_t *>(args.out) + 2 * element;
    if ((uintptr_t)at % 2 == 0) {
        *reinterpret_cast<uint16_t *>(at) = bits;
    }
    else {
        store_bytes(at, bits, 2);
    }
}

static __device__ __forceinline__ float
load_alpha(const nvs_gemm_args &args)
{
    if (args.alpha_ptr == nullptr) {
        return args.alpha;
    }
    const uint8_t *at = reinterpret_cast<const uint8_t *>(args.alpha_ptr);
    return __uint_as_float(load_word(at, (uintptr_t)at % 4 == 0));
}

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    nvs_gemm_naive(const __grid_constant__ nvs_gemm_args args)
{
    const int64_t row_of_tiles = (int64_t)blockIdx.z * NVS_GRID_Y + blockIdx.y;
    const int64_t row = row_of_tiles * TILE + threadIdx.x / TILE;
    const int64_t column = (int64_t)blockIdx.x * TILE + threadIdx.x % TILE;
    if (row >= args.m || column >= args.n) {
        return;
    }
    const uint8_t *vals = args.a_vals + row * args.a_vals_ld;
    const uint8_t *meta = args.a_meta + row * args.a_meta_ld;
    const uint8_t *a_scale = args.a_scale + row * args.a_scale_ld;
    const uint8_t *b = args.b_fp4 + column * args.b_fp4_ld;
    const uint8_t *b_scale = args.b_scale + column * args.b_scale_ld;
    const bool aligned = ((uintptr_t)vals | (uintptr_t)meta | (uintptr_t)b) % 4 == 0;

    float sum = 0.0f;
    for (int64_t block = 0; block < args.k / NVS_BLOCK; block++) {
        const uint64_t codes = load_word(b + 8 * block, aligned) |
                               (uint64_t)load_word(b + 8 * block + 4, aligned) << 32;
        const int dot = dot_block(load_word(vals + 4 * block, aligned),
                                  load_word(meta + 4 * block, aligned), codes);
        const float scale = scale_value(a_scale[block]) * scale_value(b_scale[block]);
        sum = fmaf((float)dot, 0.25f * scale, sum);
    }
    store(args, row, column, sum * load_alpha(args));
}
