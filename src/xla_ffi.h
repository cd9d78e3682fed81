/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of XLA's foreign function interface that xla_call.c uses, version 0.x: its names are
 * ours, values and layouts are those of XLA's xla/ffi/api/c_api.h. Structs grow at their end only,
 * and say how large they are.
 */
#ifndef NVS_XLA_FFI_H
#define NVS_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

#define XLA_CAPSULE "xla._CUSTOM_CALL_TARGET"

enum {
    XLA_VERSION_MAJOR = 0,
    XLA_EXTENSION_METADATA = 1,
    XLA_STAGE_EXECUTE = 3,
    XLA_COMMAND_BUFFER_COMPATIBLE = 1,
    XLA_BUFFER = 1,
    XLA_ATTRIBUTE_SCALAR = 3,
    XLA_ATTRIBUTE_STRING = 4,
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_FAILED_PRECONDITION = 9,
    XLA_INTERNAL = 13,
};

enum xla_type {
    XLA_S8 = 2,
    XLA_U8 = 6,
    XLA_F16 = 10,
    XLA_F32 = 11,
    XLA_BF16 = 16,
    XLA_F8E4M3FN = 20,
};

struct xla_error;   /* opaque */
struct xla_context; /* opaque */

struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
};

struct xla_version {
    size_t struct_size;
    struct xla_extension *extensions;
    int major, minor;
};

struct xla_metadata {
    size_t struct_size;
    struct xla_version version;
    uint32_t traits;
};

struct xla_metadata_extension {
    struct xla_extension base;
    struct xla_metadata *metadata;
};

struct xla_error_args {
    size_t struct_size;
    struct xla_extension *extensions;
    const char *message;
    int code;
};

struct xla_stream_args {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_context *context;
    void *stream;
};

struct xla_ordinal_args {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_context *context;
    int32_t ordinal;
};

typedef void (*xla_unused)(void);

struct xla_api {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_version version;
    const void *internal;
    struct xla_error *(*error_create)(struct xla_error_args *args);
    xla_unused error_get_message, error_destroy, handler_register;
    struct xla_error *(*stream_get)(struct xla_stream_args *args);
    xla_unused type_register, context_get, state_set, state_get, memory_allocate, memory_free;
    xla_unused pool_schedule, pool_threads, future_create, future_available, future_error, run_id;
    struct xla_error *(*ordinal_get)(struct xla_ordinal_args *args);
};

struct xla_buffer {
    size_t struct_size;
    struct xla_extension *extensions;
    int type; /* enum xla_type */
    void *data;
    int64_t rank;
    const int64_t *dims; /* row-major, without gaps */
};

struct xla_buffers { /* arguments, or results */
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t size;
    const int *kinds;
    struct xla_buffer *const *buffers;
};

struct xla_text {
    const char *text; /* not terminated */
    size_t size;
};

struct xla_scalar {
    int type;
    const void *value;
};

struct xla_attributes {
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t size;
    const int *kinds;
    const struct xla_text *const *names;
    const void *const *values;
};

struct xla_frame {
    size_t struct_size;
    struct xla_extension *extensions;
    const struct xla_api *api;
    struct xla_context *context;
    int stage;
    struct xla_buffers arguments;
    struct xla_buffers results;
    struct xla_attributes attributes;
};

#endif
