/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensor maps of A, for kernels that load it by TMA.
 */
#ifndef NVS_TENSOR_MAPS_H
#define NVS_TENSOR_MAPS_H

#include "driver.h"

/* Fills maps as gemm_args.h says, with boxes of so many rows. A's addresses and row strides must be
 * multiples of 16 bytes, m and k above 0. */
int nvs_encode_a_maps(const struct nvs_driver *driver, const struct nvs_gemm_args *args,
                      int box_rows, struct nvs_a_maps *maps, struct nvs_fault *fault);

#endif
