/* SPDX-License-Identifier: Apache-2.0
 *
 * What CuPy's arrays and its current stream say without DLPack. All but nvs_cupy_find() are for a
 * type, or a tensor of a type, of which it said yes. 0, or -1 with an exception set.
 */
#ifndef NVS_CUPY_ARRAY_H
#define NVS_CUPY_ARRAY_H

#include "nvfp4sparse.h"

/* Whether the type is cupy.ndarray, and on CUDA. */
int nvs_cupy_find(struct nvs_state *state, PyTypeObject *type, bool *is_cupy_array);

/* The handle of CuPy's current stream on a device: a new reference to an int, or NULL. */
PyObject *nvs_cupy_current_stream(const struct nvs_state *state, int device_id);

/* Device and address of an array; then the rest, if it has a dtype that sparse_gemm() takes and
 * strides of whole elements: else only __dlpack__() can tell, and tensor->imported stays false. */
int nvs_cupy_open(const struct nvs_state *state, PyObject *array, const char *name,
                  struct nvs_tensor *tensor);
int nvs_cupy_import(const struct nvs_state *state, PyObject *array, const char *name,
                    struct nvs_tensor *tensor);

#endif
