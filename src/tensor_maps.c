/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes the tensor maps of A, between the choice of a kernel and its launch: where a matrix of
 * bytes lies, and which box of it one TMA load brings.
 *
 * They are made anew for every launch. The driver takes 71 ns for each on an H200's host, so that
 * a cache, with a lock and a key of addresses and strides, would gain little.
 */
#include "tensor_maps.h"

struct matrix {
    const uint8_t *data;
    int64_t columns; /* bytes */
    int64_t ld;      /* bytes from one row to the next */
    unsigned box_columns;
    int swizzle;
    struct nvs_tensor_map *map;
};

static int
encode(const struct nvs_driver *driver, const struct matrix *matrix, int64_t rows, int box_rows,
       struct nvs_fault *fault)
{
    const uint64_t dims[] = {(uint64_t)matrix->columns, (uint64_t)rows};
    const uint64_t strides[] = {(uint64_t)matrix->ld};
    const unsigned box[] = {matrix->box_columns, (unsigned)box_rows};
    const unsigned steps[] = {1, 1};
    CUresult status = driver->TensorMapEncodeTiled(
        matrix->map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)matrix->data, dims, strides, box,
        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, matrix->swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return status == CUDA_SUCCESS ? 0 : nvs_driver_fault(fault, "cuTensorMapEncodeTiled", status);
}

int
nvs_encode_a_maps(const struct nvs_driver *driver, const struct nvs_gemm_args *args, int box_rows,
                  struct nvs_a_maps *maps, struct nvs_fault *fault)
{
    const struct matrix matrices[] = {
        {args->a_vals, args->k / 4, args->a_vals_ld, NVS_A_BOX, CU_TENSOR_MAP_SWIZZLE_128B,
         &maps->vals},
        {args->a_meta, args->k / 4, args->a_meta_ld, NVS_A_BOX, CU_TENSOR_MAP_SWIZZLE_128B,
         &maps->meta},
        {args->a_scale, args->k / 16, args->a_scale_ld, NVS_A_SCALE_BOX, CU_TENSOR_MAP_SWIZZLE_64B,
         &maps->scale},
    };
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        if (encode(driver, &matrices[i], args->m, box_rows, fault) < 0) {
            return -1;
        }
    }
    return 0;
}
