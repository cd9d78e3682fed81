/* SPDX-License-Identifier: Apache-2.0
 *
 * The NVFP4 byte formats: the one owner of bit order, valid in C11 and in CUDA C++.
 *
 *   E2M1  4 bits, sign in bit 3, magnitudes 0 .5 1 1.5 2 3 4 6 for codes 0..7; two to a byte,
 *         the low nibble first.
 *   UE4M3 one byte, bit 7 ignored, the low 7 bits as OCP E4M3FN; 0x7F is NaN. One scale serves
 *         NVS_BLOCK logical columns.
 *   meta  one byte per group of NVS_GROUP columns; bits 0-1 and 2-3 are the columns of the first
 *         and the second kept value, bits 4-7 are ignored.
 */
#ifndef NVS_NVFP4_H
#define NVS_NVFP4_H

#include <stdint.h>

enum {
    NVS_GROUP = 4,  /* columns that share two kept values */
    NVS_BLOCK = 16, /* columns that share one scale */
    NVS_GROUPS_PER_BLOCK = 4,
    NVS_SCALE_NAN = 0x7F,
};

#ifdef __CUDACC__
#define NVS_INLINE static __device__ __forceinline__
#else
#define NVS_INLINE static inline
#endif

/* The value of an E2M1 code in half units: -12..12. */
NVS_INLINE int
nvs_e2m1_halves(unsigned code)
{
    unsigned exponent = (code >> 1) & 3u;
    unsigned mantissa = code & 1u;
    int magnitude = (int)(exponent ? (2u + mantissa) << (exponent - 1u) : mantissa);
    return code & 8u ? -magnitude : magnitude;
}

/* The value of a UE4M3 byte in units of 2^-9: 0..229376. Ask nvs_ue4m3_is_nan() first. */
NVS_INLINE int32_t
nvs_ue4m3_ulps(unsigned byte)
{
    unsigned exponent = (byte >> 3) & 15u;
    unsigned mantissa = byte & 7u;
    return (int32_t)(exponent ? (8u + mantissa) << (exponent - 1u) : mantissa);
}

NVS_INLINE int
nvs_ue4m3_is_nan(unsigned byte)
{
    return (byte & 0x7Fu) == NVS_SCALE_NAN;
}

/* Column inside its group of the first (slot 0) or the second (slot 1) kept value. */
NVS_INLINE unsigned
nvs_meta_position(unsigned meta, int slot)
{
    return (meta >> (2 * slot)) & 3u;
}

#endif
