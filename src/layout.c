/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a DLTensor, which came from outside and may say anything, into a struct nvs_tensor: after
 * this no extent is negative, nothing overflows when offsets are computed, and every element has
 * an address. Also puts shapes, types and devices into words for error messages.
 */
#include "nvfp4sparse.h"

#include <inttypes.h>
#include <stdio.h>

/* Extents and bytes up to here: as much as 64-bit processors address today. Products with the
 * small factors of SPEC (2, 4, 16, element sizes) then stay within 63 bits. */
static const int64_t LIMIT = (int64_t)1 << 57;

void
nvs_shape_text(const int64_t *extents, int count, char text[NVS_TEXT_SIZE])
{
    size_t used = 1;
    snprintf(text, NVS_TEXT_SIZE, "(");
    for (int i = 0; i < count; i++) {
        const char *separator = i + 1 < count ? ", " : (count == 1 ? "," : "");
        used += (size_t)snprintf(text + used, NVS_TEXT_SIZE - used, "%" PRId64 "%s", extents[i],
                                 separator);
    }
    snprintf(text + used, NVS_TEXT_SIZE - used, ")");
}

void
nvs_dtype_text(DLDataType dtype, char text[NVS_TEXT_SIZE])
{
    static const struct {
        DLDataType dtype;
        const char *name;
    } known[] = {
        {{kDLBool, 8, 1}, "bool"},
        {{kDLBfloat, 16, 1}, "bfloat16"},
        {{kDLFloat8_e4m3fn, 8, 1}, "float8_e4m3fn"},
        {{kDLFloat8_e5m2, 8, 1}, "float8_e5m2"},
        {{kDLFloat4_e2m1fn, 4, 1}, "float4_e2m1fn"},
        {{kDLFloat4_e2m1fn, 4, 2}, "float4_e2m1fn_x2"},
    };
    static const char *const families[] = {
        [kDLInt] = "int", [kDLUInt] = "uint", [kDLFloat] = "float", [kDLComplex] = "complex"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (dtype.code == known[i].dtype.code && dtype.bits == known[i].dtype.bits &&
            dtype.lanes == known[i].dtype.lanes) {
            snprintf(text, NVS_TEXT_SIZE, "%s", known[i].name);
            return;
        }
    }
    if (dtype.code < sizeof(families) / sizeof(families[0]) && families[dtype.code] != NULL &&
        dtype.lanes == 1) {
        snprintf(text, NVS_TEXT_SIZE, "%s%d", families[dtype.code], dtype.bits);
        return;
    }
    snprintf(text, NVS_TEXT_SIZE, "DLPack type (code %d, bits %d, lanes %d)", dtype.code,
             dtype.bits, dtype.lanes);
}

void
nvs_device_text(DLDevice device, char text[NVS_TEXT_SIZE])
{
    if (device.device_type == kDLCPU) {
        snprintf(text, NVS_TEXT_SIZE, "cpu");
    }
    else {
        snprintf(text, NVS_TEXT_SIZE, "cuda:%" PRId32, device.device_id);
    }
}

int
nvs_tensor_set_device(DLDevice device, const char *name, struct nvs_tensor *tensor)
{
    switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
        tensor->device = (DLDevice){kDLCPU, 0};
        return 0;
    case kDLCUDA:
    case kDLCUDAManaged:
        tensor->device = (DLDevice){kDLCUDA, device.device_id};
        return 0;
    default:
        PyErr_Format(PyExc_ValueError,
                     "sparse_gemm: %s must be in host memory or on a CUDA device, got DLPack "
                     "device type %d (id %d): copy it to one of these",
                     name, (int)device.device_type, (int)device.device_id);
        return -1;
    }
}

static int
broken(const char *name, const char *what)
{
    PyErr_Format(PyExc_BufferError, "sparse_gemm: %s comes from a broken DLPack producer: %s", name,
                 what);
    return -1;
}

static int
too_large(const char *name)
{
    PyErr_Format(PyExc_ValueError,
                 "sparse_gemm: %s must lie within 2^57 bytes, but its shape and strides reach "
                 "further",
                 name);
    return -1;
}

/* Copies shape and strides. Strides that the producer left out are those of a row-major tensor. */
static int
read_extents(const DLTensor *source, const char *name, struct nvs_tensor *tensor)
{
    if (source->ndim < 0) {
        return broken(name, "a negative number of dimensions");
    }
    if (source->ndim > NVS_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "sparse_gemm: %s must have at most %d dimensions, got %d",
                     name, (int)NVS_MAX_NDIM, (int)source->ndim);
        return -1;
    }
    if (source->ndim > 0 && source->shape == NULL) {
        return broken(name, "no shape");
    }
    tensor->ndim = source->ndim;
    int64_t row_major = 1;
    for (int i = source->ndim - 1; i >= 0; i--) {
        int64_t extent = source->shape[i];
        if (extent < 0) {
            return broken(name, "a negative extent");
        }
        if (extent > LIMIT) {
            return too_large(name);
        }
        tensor->shape[i] = extent;
        if (source->strides != NULL) {
            tensor->strides[i] = source->strides[i];
            continue;
        }
        tensor->strides[i] = row_major;
        if (__builtin_mul_overflow(row_major, extent, &row_major)) {
            return too_large(name);
        }
    }
    return 0;
}

/* Whether first and last byte of a tensor that is not empty lie less than LIMIT apart. A size of
 * less than a byte counts as one: this is a limit, not a measure. */
static bool
is_within_limit(const struct nvs_tensor *tensor)
{
    int64_t bytes = ((int64_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
    int64_t span = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t reach = 0;
        if (tensor->shape[i] < 2) {
            continue;
        }
        int64_t step = tensor->strides[i];
        if (step < -LIMIT || step > LIMIT ||
            __builtin_mul_overflow(tensor->shape[i] - 1, step < 0 ? -step : step, &reach) ||
            __builtin_add_overflow(span, reach, &span)) {
            return false;
        }
    }
    return !__builtin_mul_overflow(span, bytes, &span) && span < LIMIT;
}

int
nvs_tensor_read(const DLTensor *source, uint64_t flags, const char *name, struct nvs_tensor *tensor)
{
    tensor->flags = flags;
    tensor->dtype = source->dtype;
    if (nvs_tensor_set_device(source->device, name, tensor) < 0 ||
        read_extents(source, name, tensor) < 0) {
        return -1;
    }
    uintptr_t address = (uintptr_t)source->data;
    if (!nvs_tensor_is_empty(tensor)) {
        if (source->data == NULL) {
            return broken(name, "elements, but no data");
        }
        if (!is_within_limit(tensor)) {
            return too_large(name);
        }
        if (__builtin_add_overflow(address, source->byte_offset, &address)) {
            return broken(name, "a byte offset beyond the address space");
        }
    }
    tensor->data = (uint8_t *)address;
    tensor->imported = true;
    return 0;
}
