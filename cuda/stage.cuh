/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of operand rows from global to shared memory, neighbouring bytes of a row by neighbouring
 * lanes, whole lines of 128 bytes where a row's share is that long. What lies past the last row or
 * past the end of a row is filled with zeros and never read.
 */
#pragma once

#include "ptx.cuh"

/* XORed with a byte's place in row `row`, so that neighbouring rows have the same piece of UNIT
 * bytes in different banks; a row is whole lines, or a line whole rows. Padding would do so too, but
 * lay most lines of an operand across two of shared memory: two requests to L2 each, which it
 * answers SM by SM; those for whole lines it answers for several SMs together if they come at the
 * same time. */
template <int PITCH, int UNIT>
NVS_DEVICE constexpr uint32_t
swizzle(uint32_t row)
{
    constexpr int SPAN = PITCH < 128 ? PITCH : 128;
    static_assert(PITCH % SPAN == 0 && 128 % SPAN == 0, "lines of rows or rows of lines");
    return row / (128 / SPAN) * UNIT % SPAN;
}

/* The bytes [first, first + CHUNKS * CHUNK) of rows row0 .. row0 + ROWS - 1 to the bytes from `at` on
 * of rows of PITCH bytes, swizzled by UNIT. A row ends at byte `end`, a multiple of CHUNK away from
 * `first` if less; the rows end at `rows`. Addresses, `at` and ld are multiples of CHUNK (16 or 4
 * bytes), ld is below 2^32. Threads 0 to THREADS - 1 take part, this one is `thread`. */
template <int THREADS, int ROWS, int CHUNKS, int PITCH, int UNIT, int CHUNK>
NVS_DEVICE void
copy_rows(uint32_t shared, uint32_t at, const uint8_t *base, uint32_t ld, uint32_t row0,
          uint32_t rows, uint32_t first, uint32_t end, uint32_t thread = threadIdx.x)
{
    constexpr int STEP = THREADS / CHUNKS; /* rows at a time */
    static_assert(STEP * CHUNKS == THREADS, "a chunk keeps its column");
    static_assert(UNIT % CHUNK == 0, "a chunk stays whole");
    static_assert(STEP >= ROWS || (swizzle<PITCH, UNIT>(STEP) == 0 && STEP * PITCH % 128 == 0),
                  "a thread's rows are swizzled alike");
    const uint32_t chunk = thread % CHUNKS, row = thread / CHUNKS;
    const uint32_t byte = first + chunk * CHUNK;
    const uint32_t to = shared + row * PITCH + ((at + chunk * CHUNK) ^ swizzle<PITCH, UNIT>(row));
    const uint8_t *from = base + (uint64_t)(row0 + row) * ld + byte;
    const int left = byte < end ? (int)(rows - row0 - row) : 0;
#pragma unroll
    for (int j = 0; j < ROWS; j += STEP) {
        if (ROWS % STEP && row + j >= ROWS)
            break;
        if (CHUNK == 16)
            cp_async_16(to + j * PITCH, from + j * (uint64_t)ld, left > j);
        else
            cp_async_4(to + j * PITCH, from + j * (uint64_t)ld, left > j);
    }
}

/* The same by all threads of a block for any address, any ld and any `end`: byte by byte, and done
 * when it returns. */
template <int THREADS, int ROWS, int BYTES, int PITCH, int UNIT>
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
        st_shared_u32(shared + row * PITCH + (i % WORDS * 4 ^ swizzle<PITCH, UNIT>(row)), word);
    }
}
