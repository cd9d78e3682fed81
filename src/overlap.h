/* SPDX-License-Identifier: Apache-2.0
 *
 * Two sets of equally long runs of bytes at equal distances, and whether they share a byte.
 */
#ifndef NVS_OVERLAP_H
#define NVS_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

struct nvs_region {
    uint64_t start;
    int64_t step;  /* from one run to the next; at least `width` where there are several */
    int64_t width; /* bytes in a run */
    int64_t count; /* runs */
};

bool nvs_regions_overlap(struct nvs_region one, struct nvs_region other);

#endif
