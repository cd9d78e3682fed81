/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether two strided regions share a byte. Exact: views that interleave in one buffer are legal
 * as long as no byte is in both.
 *
 * A region is the union of the runs [start + i * step, + width), 0 <= i < count, and its runs are
 * disjoint. Callers keep regions within 2^57 bytes, so nothing here overflows.
 */
#include "overlap.h"

static int64_t
last_byte(const struct nvs_region *region)
{
    return (region->count - 1) * region->step + region->width - 1;
}

static int64_t
floor_divide(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return quotient - (a % b < 0);
}

/* Is there an i with 0 <= i < count and [i * step, + width) meeting [start, + length)? That is
 * start - width < i * step < start + length. */
static bool
any_run_meets(int64_t start, int64_t length, int64_t first, int64_t count, int64_t step,
              int64_t width)
{
    int64_t low = floor_divide(start - width, step) + 1;
    int64_t high = floor_divide(start + length - 1, step);
    low = low < first ? first : low;
    high = high > first + count - 1 ? first + count - 1 : high;
    return low <= high;
}

bool
nvs_regions_overlap(struct nvs_region one, struct nvs_region other)
{
    if (one.count == 0 || other.count == 0 || one.width == 0 || other.width == 0) {
        return false;
    }
    /* All positions from here on are relative to the start of `other`. */
    int64_t start = (int64_t)(one.start - other.start);
    if (one.start > other.start ? (uint64_t)start > (uint64_t)last_byte(&other)
                                : other.start - one.start > (uint64_t)last_byte(&one)) {
        return false;
    }
    one.step = one.count == 1 ? one.width : one.step;
    other.step = other.count == 1 ? other.width : other.step;
    if (one.step == other.step) {
        /* Only the distance i - j of two runs counts: one run against all distances. */
        return any_run_meets(start, one.width, 1 - one.count, one.count + other.count - 1,
                             other.step, other.width);
    }
    if (one.count > other.count) {
        struct nvs_region swapped = one;
        one = other;
        other = swapped;
        start = -start;
    }
    for (int64_t i = 0; i < one.count; i++) {
        if (any_run_meets(start + i * one.step, one.width, 0, other.count, other.step,
                          other.width)) {
            return true;
        }
    }
    return false;
}
