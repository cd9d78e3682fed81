/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks: where a result lives that no framework allocated, and the DLPack tensors that show it.
 */
#include "block.h"

#include <stdlib.h>

enum {
    HOST_ALIGNMENT = 64, /* what JAX takes without a copy */
};

static void
free_block(struct nvs_block *block)
{
    if (block->device == NULL) {
        free(block->memory.data);
    }
    else if (block->memory.data != NULL && Py_IsInitialized()) {
        /* This waits for the device, which may wait for a host function that needs the GIL. A
         * consumer may call from any thread, with the GIL or without. */
        PyGILState_STATE gil = PyGILState_Ensure();
        Py_BEGIN_ALLOW_THREADS nvs_memory_free(block->device, &block->memory);
        Py_END_ALLOW_THREADS PyGILState_Release(gil);
    }
    free(block);
}

void
nvs_block_let_go(struct nvs_block *block)
{
    if (atomic_fetch_sub(&block->holders, 1) == 1) {
        free_block(block);
    }
}

static int
allocate(const struct nvs_call *call, struct nvs_block *block, size_t size)
{
    if (size == 0) {
        return 0; /* DLPack: an empty tensor's data is NULL */
    }
    if (block->tensor.device.device_type == kDLCPU) {
        size = (size + HOST_ALIGNMENT - 1) & ~(size_t)(HOST_ALIGNMENT - 1);
        block->memory.data = aligned_alloc(HOST_ALIGNMENT, size);
        if (block->memory.data == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        return 0;
    }
    struct nvs_fault fault;
    block->device = call->device;
    if (nvs_memory_new(call->device, size, call->stream.handle, &block->memory, &fault) < 0) {
        return nvs_raise_fault(&fault);
    }
    return 0;
}

struct nvs_block *
nvs_block_new(const struct nvs_call *call)
{
    static const DLDataType dtypes[NVS_OUT_DTYPES] = {
        [NVS_OUT_BF16] = {kDLBfloat, 16, 1},
        [NVS_OUT_FP16] = {kDLFloat, 16, 1},
        [NVS_OUT_FP32] = {kDLFloat, 32, 1},
    };
    int64_t m = call->args.m;
    int64_t n = call->args.n;
    DLDataType dtype = dtypes[call->out_dtype < 0 ? NVS_OUT_BF16 : call->out_dtype];
    int64_t size = 0;
    if (__builtin_mul_overflow(m, n, &size) ||
        __builtin_mul_overflow(size, (int64_t)dtype.bits / 8, &size)) {
        PyErr_NoMemory();
        return NULL;
    }
    struct nvs_block *block = calloc(1, sizeof(*block));
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    atomic_init(&block->holders, 1);
    block->shape[0] = m;
    block->shape[1] = n;
    block->strides[0] = n;
    block->strides[1] = 1;
    block->tensor = (DLTensor){
        .device = call->tensors[NVS_A_VALS].device,
        .ndim = 2,
        .dtype = dtype,
        .shape = block->shape,
        .strides = block->strides,
    };
    if (allocate(call, block, (size_t)size) < 0) {
        nvs_block_let_go(block);
        return NULL;
    }
    block->tensor.data = block->memory.data;
    return block;
}

static void
delete_legacy(DLManagedTensor *managed)
{
    nvs_block_let_go(managed->manager_ctx);
    free(managed);
}

static void
delete_versioned(DLManagedTensorVersioned *managed)
{
    nvs_block_let_go(managed->manager_ctx);
    free(managed);
}

/* For capsules that nobody consumed. */
static void
destroy_legacy(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DLPACK_CAPSULE)) {
        delete_legacy(PyCapsule_GetPointer(capsule, DLPACK_CAPSULE));
    }
}

static void
destroy_versioned(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DLPACK_CAPSULE_VERSIONED)) {
        delete_versioned(PyCapsule_GetPointer(capsule, DLPACK_CAPSULE_VERSIONED));
    }
}

static PyObject *
export_legacy(struct nvs_block *block)
{
    DLManagedTensor *managed = calloc(1, sizeof(*managed));
    if (managed == NULL) {
        return PyErr_NoMemory();
    }
    managed->dl_tensor = block->tensor;
    managed->manager_ctx = block;
    managed->deleter = delete_legacy;
    atomic_fetch_add(&block->holders, 1);
    PyObject *capsule = PyCapsule_New(managed, DLPACK_CAPSULE, destroy_legacy);
    if (capsule == NULL) {
        delete_legacy(managed);
    }
    return capsule;
}

static PyObject *
export_versioned(struct nvs_block *block)
{
    DLManagedTensorVersioned *managed = calloc(1, sizeof(*managed));
    if (managed == NULL) {
        return PyErr_NoMemory();
    }
    managed->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed->dl_tensor = block->tensor;
    managed->manager_ctx = block;
    managed->deleter = delete_versioned;
    atomic_fetch_add(&block->holders, 1);
    PyObject *capsule = PyCapsule_New(managed, DLPACK_CAPSULE_VERSIONED, destroy_versioned);
    if (capsule == NULL) {
        delete_versioned(managed);
    }
    return capsule;
}

PyObject *
nvs_block_export(struct nvs_block *block, bool versioned)
{
    return versioned ? export_versioned(block) : export_legacy(block);
}
