/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver, opened at first use: the functions we call and the types they take, declared
 * here so that neither the CUDA headers nor a driver are needed to build or to import. Names,
 * values and layouts are the driver API's own (CUDA 12.0 and up).
 */
#ifndef NVS_DRIVER_H
#define NVS_DRIVER_H

#include "device.h"

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUlib_st *CUlibrary;
typedef unsigned long long CUdeviceptr;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,

    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,

    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,

    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,

    CU_EVENT_DISABLE_TIMING = 2,

    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,

    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_64B = 2,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0, /* zeros */
};

/* Handles that stand for the two default streams of the current context. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct {
    int id;
    char pad[8 - sizeof(int)];
    union {
        char pad[64];
        struct {
            unsigned x, y, z;
        } clusterDim;
    } value;
} CUlaunchAttribute;

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

_Static_assert(sizeof(CUlaunchAttribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(CUlaunchConfig) == 56 || sizeof(void *) != 8, "CUlaunchConfig");
_Static_assert(sizeof(struct nvs_tensor_map) == 128, "CUtensorMap");

struct nvs_driver {
    CUresult (*GetErrorName)(CUresult error, const char **name);
    CUresult (*GetErrorString)(CUresult error, const char **text);
    CUresult (*Init)(unsigned flags);
    CUresult (*DriverGetVersion)(int *version);
    CUresult (*DeviceGetCount)(int *count);
    CUresult (*DeviceGet)(CUdevice *device, int ordinal);
    CUresult (*DeviceGetName)(char *name, int size, CUdevice device);
    CUresult (*DeviceGetAttribute)(int *value, int attribute, CUdevice device);
    CUresult (*DevicePrimaryCtxRetain)(CUcontext *context, CUdevice device);
    CUresult (*CtxGetCurrent)(CUcontext *context);
    CUresult (*CtxPushCurrent)(CUcontext context);
    CUresult (*CtxPopCurrent)(CUcontext *context);
    CUresult (*CtxGetDevice)(CUdevice *device);
    CUresult (*CtxSynchronize)(void);
    CUresult (*StreamGetCtx)(CUstream stream, CUcontext *context);
    CUresult (*StreamIsCapturing)(CUstream stream, int *status);
    CUresult (*StreamWaitEvent)(CUstream stream, CUevent event, unsigned flags);
    CUresult (*ThreadExchangeStreamCaptureMode)(int *mode);
    CUresult (*EventCreate)(CUevent *event, unsigned flags);
    CUresult (*EventRecord)(CUevent event, CUstream stream);
    CUresult (*EventDestroy)(CUevent event);
    CUresult (*MemAllocAsync)(CUdeviceptr *memory, size_t size, CUstream stream);
    CUresult (*MemFree)(CUdeviceptr memory);
    CUresult (*LibraryLoadData)(CUlibrary *library, const void *code, int *jit_options,
                                void **jit_values, unsigned jit_count, int *options, void **values,
                                unsigned count);
    CUresult (*LibraryGetKernel)(CUkernel *kernel, CUlibrary library, const char *name);
    CUresult (*KernelGetFunction)(CUfunction *function, CUkernel kernel);
    CUresult (*KernelSetAttribute)(int attribute, int value, CUkernel kernel, CUdevice device);
    CUresult (*FuncLoad)(CUfunction function); /* NULL before driver 12.4 */
    CUresult (*LaunchKernelEx)(const CUlaunchConfig *config, CUfunction function, void **params,
                               void **extra);
    CUresult (*TensorMapEncodeTiled)(struct nvs_tensor_map *map, int type, unsigned rank,
                                     void *address, const uint64_t *dims, const uint64_t *strides,
                                     const unsigned *box, const unsigned *steps, int interleave,
                                     int swizzle, int l2_promotion, int fill);
};

/* The initialised driver, or NULL with the reason in fault. */
const struct nvs_driver *nvs_driver_open(struct nvs_fault *fault);

/* Sets the thread's capture mode to *mode, which becomes what it was: relaxed while something is
 * opened or loaded, for a stream may be capturing, and back afterwards. */
int nvs_driver_exchange_mode(const struct nvs_driver *driver, int *mode, struct nvs_fault *fault);

/* Fills fault with "cuX failed: CUDA_ERROR_Y (its text)" and returns -1. */
int nvs_driver_fault(struct nvs_fault *fault, const char *call, CUresult status);

#endif
