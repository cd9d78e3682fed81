/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of ours that holds one result, counted: the Python object that stands for it (exporter.c)
 * and every tensor exported from it are holders, and the last one frees it.
 */
#ifndef NVS_BLOCK_H
#define NVS_BLOCK_H

#include "nvfp4sparse.h"

struct nvs_block {
    atomic_int holders;
    struct nvs_device *device;       /* NULL: host memory */
    struct nvs_device_memory memory; /* of the device; in host memory just its data */
    bool recorded;                   /* the event says when the result is there */
    DLTensor tensor;
    int64_t shape[2];
    int64_t strides[2];
};

/* A block for the call's result with one holder, or NULL with an exception. */
struct nvs_block *nvs_block_new(const struct nvs_call *call);
void nvs_block_let_go(struct nvs_block *block);

/* A new DLPack capsule, itself a holder. */
PyObject *nvs_block_export(struct nvs_block *block, bool versioned);

/* exporter.c: a block as a Python object. */
extern PyType_Spec nvs_exporter_spec;
PyObject *nvs_exporter_new(PyTypeObject *type, const struct nvs_call *call);
int nvs_exporter_record(PyObject *exporter, void *stream);

#endif
