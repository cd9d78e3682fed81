/* SPDX-License-Identifier: Apache-2.0
 *
 * One imported tensor: what stays of DLPack once tensor.c has read it. Import has two steps, since
 * a producer must be told the consumer's stream, and the stream depends on the first tensor's
 * device: nvs_tensor_open() learns the device, nvs_tensor_import() gets the data.
 */
#ifndef NVS_TENSOR_H
#define NVS_TENSOR_H

#include "dlpack_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NVS_MAX_NDIM = 8,
    NVS_TEXT_SIZE = 256, /* room for a shape or a list of strides in words */
};

/* Who made an object: decides whose current stream counts and what a result is. */
enum nvs_framework {
    NVS_FRAMEWORK_OTHER,
    NVS_FRAMEWORK_TORCH,
    NVS_FRAMEWORK_CUPY,
    NVS_FRAMEWORK_JAX,
    NVS_FRAMEWORK_NUMPY,
};

struct nvs_type_info {
    const DLPackExchangeAPI *api; /* NULL: the type has none of major version 1 */
    enum nvs_framework framework;
    bool is_cupy_array; /* may be read by attributes (cupy_array.c) */
};

/* What nvs_tensor_release() has to give back. */
enum nvs_hold {
    NVS_HOLD_NOTHING,
    NVS_HOLD_LEGACY,    /* DLManagedTensor */
    NVS_HOLD_VERSIONED, /* DLManagedTensorVersioned */
    NVS_HOLD_BUFFER,    /* Py_buffer in memory of ours */
};

struct nvs_tensor {
    uint8_t *data;   /* the first element; NULL is legal for an empty tensor */
    DLDevice device; /* kDLCPU (id 0) or kDLCUDA: pinned and managed memory already mapped */
    DLDataType dtype;
    int ndim;
    uint64_t flags; /* DLPACK_FLAG_* */
    struct nvs_type_info info;
    bool imported;
    enum nvs_hold hold;
    void *held;
    int64_t shape[NVS_MAX_NDIM]; /* elements; from here on only where `imported` */
    int64_t strides[NVS_MAX_NDIM];
};

static inline bool
nvs_same_device(DLDevice one, DLDevice other)
{
    return one.device_type == other.device_type && one.device_id == other.device_id;
}

static inline bool
nvs_tensor_is_empty(const struct nvs_tensor *tensor)
{
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0) {
            return true;
        }
    }
    return false;
}

/* layout.c: reads a DLTensor into a tensor (-1 with an exception set); and how errors put tensors
 * into words. `name` is the argument's. */
int nvs_tensor_read(const DLTensor *source, uint64_t flags, const char *name,
                    struct nvs_tensor *tensor);
int nvs_tensor_set_device(DLDevice device, const char *name, struct nvs_tensor *tensor);
void nvs_shape_text(const int64_t *extents, int count, char text[NVS_TEXT_SIZE]);
void nvs_dtype_text(DLDataType dtype, char text[NVS_TEXT_SIZE]);
void nvs_device_text(DLDevice device, char text[NVS_TEXT_SIZE]);

#endif
