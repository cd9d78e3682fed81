/* SPDX-License-Identifier: Apache-2.0
 *
 * What src/floor.c hands to cuda/read_once_floor.cu, in a form that both compilers read.
 */
#ifndef NVS_FLOOR_H
#define NVS_FLOOR_H

#include <stdint.h>

enum {
    NVS_FLOOR_WORD = 16,     /* bytes of a load, and of a store */
    NVS_FLOOR_THREADS = 256, /* of a block */
    NVS_FLOOR_MAX_BLOCKS = 1 << 16,
    NVS_FLOOR_MAX_WORDS = 1 << 30, /* with 8 loads of the widest grid beyond: below 2^32 */
};

struct nvs_floor_args {
    const void *operands;   /* [operand_words] of NVS_FLOOR_WORD bytes, aligned to them */
    void *out;              /* [out_words] likewise */
    uint32_t operand_words; /* 32 bits make the address of each load one instruction */
    uint32_t out_words;
};

#endif
