/* SPDX-License-Identifier: Apache-2.0
 *
 * alpha times an exact integer sum, rounded once. The product is formed in 128-bit integers and
 * brought to a double by rounding to odd (bits that do not fit set the last bit), which keeps all
 * that a later rounding to 51 bits or fewer can ask. Then one addition rounds it to the output
 * type, subnormal results included. Assumes the default rounding mode, as all of NumPy does.
 */
#include "cpu_round.h"

#include "gemm_args.h"

#include <float.h>
#include <math.h>
#include <string.h>

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

struct format {
    int precision;    /* bits of the significand, the hidden one included */
    int min_exponent; /* of the smallest normal number */
    double max;
};

static const struct format formats[] = {
    [NVS_OUT_BF16] = {8, -126, 0x1.FEp127},
    [NVS_OUT_FP16] = {11, -14, 65504.0},
    [NVS_OUT_FP32] = {24, -126, FLT_MAX},
};

/* 2^exponent, for exponents of normal doubles. */
static double
power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int
exponent_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (int)(bits >> 52 & 0x7FF) - 1023;
}

struct nvs_alpha
nvs_split_alpha(float alpha)
{
    struct nvs_alpha split = {.value = alpha, .unit = 1.0};
    if (alpha != 0.0f && isfinite(alpha)) {
        int exponent = exponent_of(alpha) - (FLT_MANT_DIG - 1); /* a float is normal as a double */
        split.mantissa = (int64_t)(alpha * power_of_two(-exponent));
        split.unit = power_of_two(exponent + NVS_SUM_EXPONENT);
    }
    return split;
}

static int
bit_length(uint128 value)
{
    uint64_t top = (uint64_t)(value >> 64);
    uint64_t bottom = (uint64_t)value;
    return top ? 128 - __builtin_clzll(top) : bottom ? 64 - __builtin_clzll(bottom) : 0;
}

/* The integer to 53 bits, rounded to odd. */
static double
round_to_odd(int128 value)
{
    uint128 magnitude = value < 0 ? -(uint128)value : (uint128)value;
    int lost = bit_length(magnitude) - DBL_MANT_DIG;
    double result;
    if (lost <= 0) {
        result = (double)(uint64_t)magnitude;
    }
    else {
        uint128 kept = magnitude >> lost;
        result = (double)(uint64_t)(kept | (kept << lost != magnitude)) * power_of_two(lost);
    }
    return value < 0 ? -result : result;
}

/* alpha * sum as a double: exact, or rounded to odd. */
static double
scale_sum(struct nvs_alpha alpha, struct nvs_sum sum)
{
    int128 carry = (int128)1 << NVS_CARRY_BITS;
    int128 product;
    if (isnan(sum.low) || alpha.mantissa == 0) {
        return alpha.value * (sum.high * (double)carry + sum.low);
    }
    product = ((int64_t)sum.high * carry + (int64_t)sum.low) * alpha.mantissa;
    return product == 0 ? copysign(0.0, alpha.value) : round_to_odd(product) * alpha.unit;
}

/* To nearest even in the format. In the binade of `shift` a double has no bits below the format's
 * last one, so the addition rounds just there, and the subtraction is exact. */
static double
round_to_nearest(double value, const struct format *format)
{
    int exponent = exponent_of(value);
    double shift, rounded;
    if (!isfinite(value)) {
        return value;
    }
    if (exponent < format->min_exponent) {
        exponent = format->min_exponent;
    }
    shift = 1.5 * power_of_two(exponent + DBL_MANT_DIG - format->precision);
    rounded = (value + shift) - shift;
    if (fabs(rounded) > format->max) {
        rounded = INFINITY;
    }
    return copysign(rounded, value); /* a negative result may have become +0 */
}

/* The bits of a value that is a binary16 number, an infinity or NaN. */
static uint16_t
half_bits(double value)
{
    double magnitude = fabs(value);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value)) {
        return 0x7E00;
    }
    if (isinf(value)) {
        return sign | 0x7C00;
    }
    if (magnitude < 0x1p-14) {
        return sign | (uint16_t)(magnitude * 0x1p24); /* subnormals count units of 2^-24 */
    }
    /* The exponent field and the top 10 bits of the significand, exponent bias 15 for 1023. */
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    return sign | (uint16_t)((bits >> 42) - ((1023 - 15) << 10));
}

void
nvs_store_rounded(void *out, int64_t index, int32_t dtype, struct nvs_alpha alpha,
                  struct nvs_sum sum)
{
    double value = round_to_nearest(scale_sum(alpha, sum), &formats[dtype]);
    float single = isnan(value) ? NAN : (float)value; /* one NaN, whatever the machine's sign */
    uint32_t bits;
    uint16_t bits16;
    memcpy(&bits, &single, sizeof bits);
    switch (dtype) {
    case NVS_OUT_FP32:
        memcpy((char *)out + index * 4, &bits, 4);
        return;
    case NVS_OUT_FP16:
        bits16 = half_bits(value);
        break;
    default:
        bits16 = (uint16_t)(bits >> 16);
        break;
    }
    memcpy((char *)out + index * 2, &bits16, 2);
}
