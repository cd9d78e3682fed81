/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the DLPack 1.3 ABI that we use, declared from its specification. Names follow the
 * standard's. "Legacy" is the tensor without a version, which every producer before 1.0 (and JAX
 * today) hands out.
 */
#ifndef NVS_DLPACK_ABI_H
#define NVS_DLPACK_ABI_H

#include <stdint.h>

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3

#define DLPACK_CAPSULE "dltensor"
#define DLPACK_CAPSULE_USED "used_dltensor"
#define DLPACK_CAPSULE_VERSIONED "dltensor_versioned"
#define DLPACK_CAPSULE_VERSIONED_USED "used_dltensor_versioned"
#define DLPACK_EXCHANGE_API_ATTRIBUTE "__dlpack_c_exchange_api__"
#define DLPACK_EXCHANGE_API_CAPSULE "dlpack_exchange_api"

enum {
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3, /* pinned host memory */
    kDLCUDAManaged = 13,
};

enum {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLComplex = 5,
    kDLBool = 6,
    kDLFloat8_e4m3fn = 10,
    kDLFloat8_e5m2 = 12,
    kDLFloat4_e2m1fn = 17,
};

enum {
    DLPACK_FLAG_READ_ONLY = 1,
    DLPACK_FLAG_IS_COPIED = 2,
    DLPACK_FLAG_SUBBYTE_PADDED = 4, /* one sub-byte value per byte, not packed */
};

typedef struct {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL (before 1.2): row-major without gaps */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
} DLManagedTensor;

typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

/* Of another major version only the fields up to `flags` may be touched. */
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self); /* may be NULL */
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* The C exchange API, found on a tensor's type. Functions return 0, or -1 with a Python exception
 * set; "no sync": the caller works on current_work_stream(). */
typedef struct DLPackExchangeAPI {
    DLPackVersion version;
    struct DLPackExchangeAPI *prev_api; /* the same for an older major version, or NULL */
    int (*managed_tensor_allocator)(DLTensor *prototype, DLManagedTensorVersioned **out,
                                    void *error_ctx,
                                    void (*SetError)(void *error_ctx, const char *kind,
                                                     const char *message));
    int (*managed_tensor_from_py_object_no_sync)(void *py_object, DLManagedTensorVersioned **out);
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *tensor, void **out);
    int (*dltensor_from_py_object_no_sync)(void *py_object, DLTensor *out); /* may be NULL */
    int (*current_work_stream)(int device_type, int32_t device_id, void **out_stream);
} DLPackExchangeAPI;

_Static_assert(sizeof(DLTensor) == 48 || sizeof(void *) != 8, "DLTensor");
_Static_assert(sizeof(DLManagedTensor) == 64 || sizeof(void *) != 8, "DLManagedTensor");
_Static_assert(sizeof(DLManagedTensorVersioned) == 80 || sizeof(void *) != 8, "versioned");
_Static_assert(sizeof(DLPackExchangeAPI) == 56 || sizeof(void *) != 8, "DLPackExchangeAPI");

#endif
