/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of the CPU path: alpha times an exact integer sum, rounded once to the output type.
 */
#ifndef NVS_CPU_ROUND_H
#define NVS_CPU_ROUND_H

#include <stdint.h>

/* All sums count units of 2^-20: an E2M1 half times a UE4M3 ulp, for A and for B. */
enum {
    NVS_SUM_EXPONENT = -20,
    NVS_CARRY_BITS = 32,
};

/* An exact sum: high * 2^NVS_CARRY_BITS + low units, both integers of magnitude at most 2^53; or
 * NaN, when low is. */
struct nvs_sum {
    double high;
    double low;
};

/* A float32 alpha taken apart: alpha * 2^NVS_SUM_EXPONENT = mantissa * unit. */
struct nvs_alpha {
    float value;
    int64_t mantissa; /* signed, below 2^24; 0 if alpha is 0, infinite or NaN */
    double unit;      /* a power of two */
};

struct nvs_alpha nvs_split_alpha(float alpha);

/* Writes alpha * sum to element `index` of out, rounded to nearest even in the given
 * enum nvs_out_dtype; overflow gives infinity. out needs no alignment. */
void nvs_store_rounded(void *out, int64_t index, int32_t dtype, struct nvs_alpha alpha,
                       struct nvs_sum sum);

#endif
