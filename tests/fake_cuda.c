/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 for machines without a GPU: two devices whose memory is the host's. It logs calls,
 * fails on request, keeps the rules of contexts and of stream capture that src/device.c and
 * src/launch.c must obey, and runs every kernel as the plain loops of SPEC. tests/test_driver.py
 * compiles it and puts it on LD_LIBRARY_PATH; the functions fake_*() are for ctypes.
 */
#include "driver.h"
#include "nvfp4.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))

enum {
    DEVICES = 2,
    NOT_INITIALIZED = 3,
    INVALID_VALUE = 1,
    INVALID_CONTEXT = 201,
    CAPTURE_UNSUPPORTED = 900,
};

struct CUctx_st {
    int device;
};
struct CUstream_st {
    int device;
    int capturing;
};
struct CUkern_st {
    char symbol[64];
    int loaded;
};

static struct CUctx_st contexts[DEVICES] = {{0}, {1}};
static _Thread_local CUcontext stack[8];
static _Thread_local int depth;
static _Thread_local int capture_mode;
static int initialized, captures;
static char calls[1 << 16];
static char failing_call[64];
static int failing_status;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of calls and failing_call */
static char held_call[64]; /* waits until it is held no more; set before threads start */
static atomic_int held;    /* 0 nobody waits, 1 held, 2 somebody waits, 3 let go, 4 gave up */

API int fake_allocations, fake_events;
API unsigned fake_launch[10]; /* device, grid, block, shared bytes, cluster */
API void *fake_launch_stream;
API char fake_launch_symbol[64];
API int fake_launch_has_maps;
API struct nvs_a_maps fake_launch_maps;

API const char *
fake_calls(void)
{
    return calls;
}

API void
fake_clear(void)
{
    calls[0] = '\0';
}

API void
fake_fail(const char *call, int status)
{
    snprintf(failing_call, sizeof(failing_call), "%s", call);
    failing_status = status;
}

API void
fake_hold(const char *call)
{
    snprintf(held_call, sizeof(held_call), "%s", call);
    atomic_store(&held, 1);
}

API int
fake_held(void)
{
    return atomic_load(&held);
}

API void
fake_let_go(void)
{
    int waiting = 2;
    atomic_compare_exchange_strong(&held, &waiting, 3);
}

/* At most ten seconds: whoever should let go may be waiting for a lock that our caller has. */
static void
wait_until_let_go(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    atomic_store(&held, 2);
    for (int i = 0; i < 10000 && atomic_load(&held) == 2; i++) {
        nanosleep(&pause, NULL);
    }
    int waiting = 2;
    atomic_compare_exchange_strong(&held, &waiting, 4);
}

API void *
fake_stream(int device)
{
    struct CUstream_st *stream = calloc(1, sizeof(*stream));
    stream->device = device;
    return stream;
}

API void
fake_capture(CUstream stream, int capturing)
{
    captures += capturing - stream->capturing;
    stream->capturing = capturing;
}

API void
fake_set_device(int device)
{
    depth = device >= 0;
    stack[0] = device >= 0 ? &contexts[device] : NULL;
}

API int
fake_current_device(void)
{
    return depth ? stack[depth - 1]->device : -1;
}

API int
fake_depth(void)
{
    return depth;
}

static int
enter(const char *call)
{
    int status = 0;
    pthread_mutex_lock(&lock);
    strncat(calls, call, sizeof(calls) - strlen(calls) - 2);
    strcat(calls, " ");
    if (!initialized && strcmp(call, "cuInit") != 0) {
        status = NOT_INITIALIZED;
    }
    else if (strcmp(call, failing_call) == 0) {
        failing_call[0] = '\0';
        status = failing_status;
    }
    pthread_mutex_unlock(&lock);
    if (atomic_load(&held) == 1 && strcmp(call, held_call) == 0) {
        wait_until_let_go();
    }
    return status;
}

/* What a capture forbids to threads that did not relax. */
static int
enter_unsafe(const char *call)
{
    int status = enter(call);
    bool forbidden = captures > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return status ? status : (forbidden ? CAPTURE_UNSUPPORTED : 0);
}

#define ENTER(call)                                                                                \
    do {                                                                                           \
        int status_ = enter(call);                                                                 \
        if (status_)                                                                               \
            return status_;                                                                        \
    } while (0)
#define ENTER_UNSAFE(call)                                                                         \
    do {                                                                                           \
        int status_ = enter_unsafe(call);                                                          \
        if (status_)                                                                               \
            return status_;                                                                        \
    } while (0)

static int
fake_GetErrorName(int error, const char **name)
{
    static char text[32];
    snprintf(text, sizeof(text), "FAKE_ERROR_%d", error);
    *name = text;
    return 0;
}

static int
fake_GetErrorString(int error, const char **text)
{
    *text = error == CAPTURE_UNSUPPORTED ? "not while capturing" : "as the test asked";
    return 0;
}

static int
fake_Init(unsigned flags)
{
    const char *status = getenv("FAKE_INIT_STATUS");
    ENTER("cuInit");
    if (flags != 0 || status != NULL) {
        return status ? atoi(status) : INVALID_VALUE;
    }
    initialized = 1;
    return 0;
}

static int
fake_DriverGetVersion(int *version)
{
    ENTER("cuDriverGetVersion");
    *version = 13010;
    return 0;
}

static int
fake_DeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount");
    *count = DEVICES;
    return 0;
}

static int
fake_DeviceGet(int *device, int ordinal)
{
    ENTER("cuDeviceGet");
    *device = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? 0 : INVALID_VALUE;
}

static int
fake_DeviceGetName(char *name, int size, int device)
{
    ENTER("cuDeviceGetName");
    snprintf(name, (size_t)size, "fake %d", device);
    return 0;
}

static int
fake_DeviceGetAttribute(int *value, int attribute, int device)
{
    const char *text = getenv("FAKE_CC");
    int cc = text ? atoi(text) : 90;
    ENTER("cuDeviceGetAttribute");
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = cc / 10;
        return 0;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = cc % 10;
        return 0;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 7 + device;
        return 0;
    }
    return INVALID_VALUE;
}

static int
fake_DevicePrimaryCtxRetain(CUcontext *context, int device)
{
    ENTER_UNSAFE("cuDevicePrimaryCtxRetain");
    *context = &contexts[device];
    return 0;
}

static int
fake_CtxGetCurrent(CUcontext *context)
{
    ENTER("cuCtxGetCurrent");
    *context = depth ? stack[depth - 1] : NULL;
    return 0;
}

static int
fake_CtxPushCurrent(CUcontext context)
{
    ENTER("cuCtxPushCurrent");
    stack[depth++] = context;
    return 0;
}

static int
fake_CtxPopCurrent(CUcontext *context)
{
    ENTER("cuCtxPopCurrent");
    if (depth == 0) {
        return INVALID_CONTEXT;
    }
    *context = stack[--depth];
    return 0;
}

static int
fake_CtxGetDevice(int *device)
{
    ENTER("cuCtxGetDevice");
    *device = depth ? stack[depth - 1]->device : -1;
    return depth ? 0 : INVALID_CONTEXT;
}

static int
fake_CtxSynchronize(void)
{
    ENTER("cuCtxSynchronize");
    return captures ? CAPTURE_UNSUPPORTED : 0;
}

static int
is_default(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static int
fake_StreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER("cuStreamGetCtx");
    *context = is_default(stream) ? stack[depth - 1] : &contexts[stream->device];
    return 0;
}

static int
fake_StreamIsCapturing(CUstream stream, int *status)
{
    ENTER("cuStreamIsCapturing");
    *status = is_default(stream) ? 0 : stream->capturing;
    return 0;
}

static int
fake_StreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    ENTER("cuStreamWaitEvent");
    fake_launch_stream = stream;
    return event != NULL && flags == 0 ? 0 : INVALID_VALUE;
}

static int
fake_ThreadExchangeStreamCaptureMode(int *mode)
{
    int old = capture_mode;
    ENTER("cuThreadExchangeStreamCaptureMode");
    capture_mode = *mode;
    *mode = old;
    return 0;
}

static int
fake_EventCreate(CUevent *event, unsigned flags)
{
    ENTER("cuEventCreate");
    *event = malloc(1);
    fake_events++;
    return flags == CU_EVENT_DISABLE_TIMING ? 0 : INVALID_VALUE;
}

static int
fake_EventRecord(CUevent event, CUstream stream)
{
    ENTER("cuEventRecord");
    (void)stream;
    return event != NULL ? 0 : INVALID_VALUE;
}

static int
fake_EventDestroy(CUevent event)
{
    ENTER("cuEventDestroy");
    free(event);
    fake_events--;
    return 0;
}

static int
fake_MemAllocAsync(CUdeviceptr *memory, size_t size, CUstream stream)
{
    ENTER("cuMemAllocAsync");
    (void)stream;
    *memory = (CUdeviceptr)(uintptr_t)malloc(size);
    fake_allocations++;
    return 0;
}

static int
fake_MemFree(CUdeviceptr memory)
{
    ENTER_UNSAFE("cuMemFree");
    free((void *)(uintptr_t)memory);
    fake_allocations--;
    return 0;
}

static int
fake_LibraryLoadData(CUlibrary *library, const void *code, int *a, void **b, unsigned c, int *d,
                     void **e, unsigned f)
{
    ENTER_UNSAFE("cuLibraryLoadData");
    *library = (CUlibrary)code;
    return code != NULL && !a && !b && !c && !d && !e && !f ? 0 : INVALID_VALUE;
}

static int
fake_LibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    ENTER("cuLibraryGetKernel");
    *kernel = calloc(1, sizeof(**kernel));
    snprintf((*kernel)->symbol, sizeof((*kernel)->symbol), "%s", name);
    return library != NULL ? 0 : INVALID_VALUE;
}

static int
fake_KernelGetFunction(CUfunction *function, CUkernel kernel)
{
    ENTER_UNSAFE("cuKernelGetFunction");
    *function = (CUfunction)(void *)kernel;
    return depth ? 0 : INVALID_CONTEXT;
}

static int
fake_KernelSetAttribute(int attribute, int value, CUkernel kernel, int device)
{
    ENTER_UNSAFE("cuKernelSetAttribute");
    (void)attribute, (void)device;
    return kernel != NULL && value > 0 ? 0 : INVALID_VALUE;
}

static int
fake_FuncLoad(CUfunction function)
{
    ENTER_UNSAFE("cuFuncLoad");
    ((CUkernel)(void *)function)->loaded = 1;
    return 0;
}

static double
scale(uint8_t byte)
{
    return nvs_ue4m3_is_nan(byte) ? NAN : nvs_ue4m3_ulps(byte) / 512.0;
}

static double
element(const struct nvs_gemm_args *args, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t group = 0; group < args->k / NVS_GROUP; group++) {
        uint8_t vals = args->a_vals[i * args->a_vals_ld + group];
        uint8_t meta = args->a_meta[i * args->a_meta_ld + group];
        double factor = scale(args->a_scale[i * args->a_scale_ld + group / 4]) *
                        scale(args->b_scale[j * args->b_scale_ld + group / 4]);
        for (int slot = 0; slot < 2; slot++) {
            int64_t column = NVS_GROUP * group + nvs_meta_position(meta, slot);
            uint8_t pair = args->b_fp4[j * args->b_fp4_ld + column / 2];
            sum += factor * nvs_e2m1_halves((vals >> (4 * slot)) & 15u) *
                   nvs_e2m1_halves((pair >> (4 * (column % 2))) & 15u) / 4;
        }
    }
    return sum * (args->alpha_ptr ? *args->alpha_ptr : args->alpha);
}

/* Only float32 results: the tests of numbers are elsewhere. */
static int
run(const struct nvs_gemm_args *args)
{
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n && args->out_dtype == NVS_OUT_FP32; j++) {
            int64_t at = i * args->out_stride_m + j * args->out_stride_n;
            ((float *)args->out)[at] = (float)element(args, i, j);
        }
    }
    return 0;
}

/* A map here is its arguments. */
static int
fake_TensorMapEncodeTiled(struct nvs_tensor_map *map, int type, unsigned rank, void *address,
                          const uint64_t *dims, const uint64_t *strides, const unsigned *box,
                          const unsigned *steps, int interleave, int swizzle, int l2_promotion,
                          int fill)
{
    ENTER("cuTensorMapEncodeTiled");
    if (rank != 2 || (uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0 || dims[0] == 0 ||
        dims[0] > 1ull << 32 || dims[1] == 0 || dims[1] > 1ull << 32 || strides[0] % 16 != 0 ||
        strides[0] >> 40 != 0 || box[0] == 0 || box[0] > 256 || box[0] % 16 != 0 || box[1] == 0 ||
        box[1] > 256) {
        return INVALID_VALUE;
    }
    const struct nvs_tensor_map arguments = {
        {(uintptr_t)address, dims[0], dims[1], strides[0], box[0], box[1], steps[0], steps[1],
         (uint64_t)type, (uint64_t)interleave, (uint64_t)swizzle, (uint64_t)l2_promotion,
         (uint64_t)fill},
    };
    *map = arguments;
    return depth ? 0 : INVALID_CONTEXT;
}

static int
fake_LaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    CUkernel kernel = (CUkernel)(void *)function;
    CUstream stream = config->hStream;
    ENTER("cuLaunchKernelEx");
    if (extra != NULL || (is_default(stream) && depth == 0)) {
        return INVALID_CONTEXT;
    }
    if (!is_default(stream) && stream->capturing && !kernel->loaded) {
        return CAPTURE_UNSUPPORTED; /* lazy loading */
    }
    bool has_cluster = config->numAttrs == 1;
    const unsigned launch[10] = {
        (unsigned)(is_default(stream) ? stack[depth - 1]->device : stream->device),
        config->gridDimX,
        config->gridDimY,
        config->gridDimZ,
        config->blockDimX,
        config->blockDimY,
        config->blockDimZ,
        config->sharedMemBytes,
        has_cluster ? config->attrs[0].value.clusterDim.x : 1,
        has_cluster ? (unsigned)config->attrs[0].id : CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    };
    memcpy(fake_launch, launch, sizeof(launch));
    fake_launch_stream = stream;
    memcpy(fake_launch_symbol, kernel->symbol, sizeof(fake_launch_symbol));
    fake_launch_has_maps = params[1] != NULL;
    if (params[1] != NULL) {
        fake_launch_maps = *(const struct nvs_a_maps *)params[1];
    }
    return run(params[0]);
}

#define FUNCTION(name)                                                                             \
    {                                                                                              \
        "cu" #name, (void *)fake_##name                                                            \
    }

API int
cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        FUNCTION(GetErrorName),
        FUNCTION(GetErrorString),
        FUNCTION(Init),
        FUNCTION(DriverGetVersion),
        FUNCTION(DeviceGetCount),
        FUNCTION(DeviceGet),
        FUNCTION(DeviceGetName),
        FUNCTION(DeviceGetAttribute),
        FUNCTION(DevicePrimaryCtxRetain),
        FUNCTION(CtxGetCurrent),
        FUNCTION(CtxPushCurrent),
        FUNCTION(CtxPopCurrent),
        FUNCTION(CtxGetDevice),
        FUNCTION(CtxSynchronize),
        FUNCTION(StreamGetCtx),
        FUNCTION(StreamIsCapturing),
        FUNCTION(StreamWaitEvent),
        FUNCTION(ThreadExchangeStreamCaptureMode),
        FUNCTION(EventCreate),
        FUNCTION(EventRecord),
        FUNCTION(EventDestroy),
        FUNCTION(MemAllocAsync),
        FUNCTION(MemFree),
        FUNCTION(LibraryLoadData),
        FUNCTION(LibraryGetKernel),
        FUNCTION(KernelGetFunction),
        FUNCTION(KernelSetAttribute),
        FUNCTION(FuncLoad),
        FUNCTION(LaunchKernelEx),
        FUNCTION(TensorMapEncodeTiled),
    };
    const char *missing = getenv("FAKE_MISSING");
    *function = NULL;
    *status = 1; /* not found */
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strcmp(symbol, functions[i].name) == 0 && version >= 2000 && version <= 13000 &&
            flags == CU_GET_PROC_ADDRESS_LEGACY_STREAM && !(missing && !strcmp(missing, symbol))) {
            *function = functions[i].function;
            *status = 0;
        }
    }
    return 0;
}
