/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of operand rows from global to shared memory, 128 bytes of a row (whole lines) per group
 * of neighbouring lanes. What lies past the last row or past the end of a row is filled with zeros
 * and never read.
 */
#pragma once

#include "ptx.cuh"

/* The bytes [first, first + CHUNKS * CHUNK) of rows row0 .. row0 + ROWS - 1 to rows of PITCH
 * bytes. A row ends at byte `end`, a multiple of CHUNK away from `first` if less; the rows end at
 * `rows`. Addresses and ld are multiples of CHUNK (16 or 4 bytes), ld is below 2^32. Threads 0 to
 * THREADS - 1 take part, this one is `thread`; they begin at row `turn` modulo ROWS. */
template <int THREADS, int ROWS, int CHUNKS, int PITCH, int CHUNK>
NVS_DEVICE void
copy_rows(uint32_t shared, const uint8_t *base, uint32_t ld, uint32_t row0, uint32_t rows,
          uint32_t first, uint32_t end, uint32_t thread = threadIdx.x, uint32_t turn = 0)
{
    constexpr int STEP = THREADS / CHUNKS; /* rows at a time */
    static_assert(STEP * CHUNKS == THREADS, "a chunk keeps its column");
    static_assert((ROWS & (ROWS - 1)) == 0 && (STEP & (STEP - 1)) == 0, "turns are by XOR");
    turn &= ROWS - 1;
    const uint32_t chunk = thread % CHUNKS, row = thread / CHUNKS ^ (turn & (STEP - 1));
    const uint32_t byte = first + chunk * CHUNK;
    const uint32_t to = shared + row * PITCH + chunk * CHUNK;
    const uint8_t *from = base + (uint64_t)(row0 + row) * ld + byte;
    const int left = byte < end ? (int)(rows - row0 - row) : 0;
#pragma unroll
    for (int j = 0; j < (ROWS + STEP - 1) / STEP; ++j) {
        if (ROWS % STEP && row + j * STEP >= ROWS)
            break;
        const uint32_t next = (j * STEP) ^ (turn & ~(STEP - 1));
        if (CHUNK == 16)
            cp_async_16(to + next * PITCH, from + next * (uint64_t)ld, left > (int)next);
        else
            cp_async_4(to + next * PITCH, from + next * (uint64_t)ld, left > (int)next);
    }
}

/* The same by all threads of a block for any address, any ld and any `end`: byte by byte, and done
 * when it returns. */
template <int THREADS, int ROWS, int BYTES, int PITCH>
NVS_DEVICE void
copy_rows_bytewise(uint32_t shared, const uint8_t *base, int64_t ld, uint32_t row0, uint32_t rows,
                   uint32_t first, uint32_t end)
{
    constexpr int WORDS = BYTES / 4; /* of a row */
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < ROWS * WORDS; i += THREADS) {
        const uint32_t row = i / WORDS, byte = first + i % WORDS * 4;
        const uint8_t *from = base + (int64_t)(row0 + row) * ld + byte;
        uint32_t word = 0;
#pragma unroll
        for (uint32_t b = 0; b < 4; ++b)
            if (row0 + row < rows && byte + b < end)
                word |= (uint32_t)__ldg(from + b) << (8 * b);
        st_shared_u32(shared + row * PITCH + i % WORDS * 4, word);
    }
}
