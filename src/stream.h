/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose stream a call works on, and who has to wait for whom. Ints are 0, or -1 with an exception.
 */
#ifndef NVS_STREAM_H
#define NVS_STREAM_H

#include "tensor.h"

#define PY_SSIZE_T_CLEAN
#include <Python.h>

struct nvs_call;
struct nvs_state;

struct nvs_stream {
    void *handle;
    bool given;                   /* by stream=; else it is `owner`'s current stream */
    enum nvs_framework owner;     /* OTHER: nobody's, the legacy default stream */
    DLDevice device;              /* of a_vals */
    const DLPackExchangeAPI *api; /* of a_vals' type, or NULL */
};

/* Ours for a call whose a_vals is `first`. */
int nvs_resolve_stream(struct nvs_state *state, PyObject *argument, const struct nvs_tensor *first,
                       struct nvs_stream *stream);

/* Whether one that was given is of the right device. */
int nvs_check_stream(const struct nvs_call *call);

/* Whether ours is the current one of the tensor's framework. */
bool nvs_is_own_stream(const struct nvs_stream *stream, const struct nvs_tensor *tensor);

/* What an exchange API with current_work_stream() says; `name` is of an argument, for messages. */
int nvs_work_stream(const DLPackExchangeAPI *api, int device_id, const char *name, void **handle);

/* Whether ours is neither given nor the current one of the API's framework, so that it has to wait
 * for that; false where the API does not tell. */
int nvs_works_elsewhere(const struct nvs_stream *stream, const DLPackExchangeAPI *api,
                        const char *name, bool *elsewhere);

#endif
