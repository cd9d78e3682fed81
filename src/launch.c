/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels on a device: loaded at their first launch there, then launched with nothing in between.
 *
 * The first launch may be inside a stream capture. So loading runs with the thread's capture mode
 * relaxed and goes all the way (cuFuncLoad): a lazily loaded kernel would load at its launch. A
 * CUkernel is launched in the context of its stream, or in the current one for the default
 * streams, which is why the device's primary context is made current around it.
 */
#define _POSIX_C_SOURCE 200809L

#include "device.h"

#include "driver.h"
#include "tensor_maps.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    PORTABLE_CLUSTER = 8, /* blocks per cluster that every GPU with clusters takes */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary *libraries; /* one per image, NULL until it is loaded; touched under the lock */

static int
load_library(const struct nvs_driver *driver, const struct nvs_image *image, CUlibrary *library,
             struct nvs_fault *fault)
{
    if (libraries == NULL) {
        libraries = calloc((size_t)nvs_image_count, sizeof(*libraries));
        if (libraries == NULL) {
            snprintf(fault->text, sizeof(fault->text), "out of memory");
            return -1;
        }
    }
    CUlibrary *slot = &libraries[image - nvs_images];
    if (*slot == NULL) {
        CUresult status = driver->LibraryLoadData(slot, image->data, NULL, NULL, 0, NULL, NULL, 0);
        if (status != CUDA_SUCCESS) {
            *slot = NULL;
            return nvs_driver_fault(fault, "cuLibraryLoadData", status);
        }
    }
    *library = *slot;
    return 0;
}

/* What the kernel asks for beyond the defaults, and its code, onto the device. */
static int
prepare(const struct nvs_driver *driver, const struct nvs_device *device,
        const struct nvs_kernel *row, CUkernel kernel, struct nvs_fault *fault)
{
    CUdevice handle = 0;
    CUfunction function = NULL;
    CUresult status = driver->DeviceGet(&handle, device->id);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuDeviceGet", status);
    }
    if (row->shared_bytes > 0) {
        status = driver->KernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                            row->shared_bytes, kernel, handle);
        if (status != CUDA_SUCCESS) {
            return nvs_driver_fault(fault, "cuKernelSetAttribute(shared size)", status);
        }
    }
    if (row->cluster > PORTABLE_CLUSTER) {
        status = driver->KernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1,
                                            kernel, handle);
        if (status != CUDA_SUCCESS) {
            return nvs_driver_fault(fault, "cuKernelSetAttribute(cluster size)", status);
        }
    }
    status = driver->KernelGetFunction(&function, kernel);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuKernelGetFunction", status);
    }
    status = driver->FuncLoad ? driver->FuncLoad(function) : CUDA_SUCCESS;
    return status == CUDA_SUCCESS ? 0 : nvs_driver_fault(fault, "cuFuncLoad", status);
}

/* Under the lock, with the device's context current. */
static int
load_kernel(const struct nvs_driver *driver, const struct nvs_device *device,
            const struct nvs_kernel *row, CUkernel *kernel, struct nvs_fault *fault)
{
    const struct nvs_image *image = nvs_find_image(row->image);
    CUlibrary library = NULL;
    if (image == NULL || !nvs_image_covers(image, device->cc)) {
        snprintf(fault->text, sizeof(fault->text),
                 "no kernel \"%s\" for compute capability %d.%d in this build: it has %s",
                 row->name, device->cc / 10, device->cc % 10,
                 image ? image->archs : nvs_build_info);
        return -1;
    }
    if (load_library(driver, image, &library, fault) < 0) {
        return -1;
    }
    CUresult status = driver->LibraryGetKernel(kernel, library, row->symbol);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuLibraryGetKernel", status);
    }
    return prepare(driver, device, row, *kernel, fault);
}

static int
find_kernel(const struct nvs_driver *driver, const struct nvs_device *device,
            const struct nvs_kernel *row, _Atomic(void *) *slot, CUkernel *kernel,
            struct nvs_fault *fault)
{
    *kernel = atomic_load_explicit(slot, memory_order_acquire);
    if (*kernel != NULL) {
        return 0;
    }
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int result = nvs_driver_exchange_mode(driver, &mode, fault);
    if (result < 0) {
        return result;
    }
    pthread_mutex_lock(&lock);
    *kernel = atomic_load_explicit(slot, memory_order_relaxed);
    if (*kernel == NULL) {
        result = load_kernel(driver, device, row, kernel, fault);
        if (result == 0) {
            atomic_store_explicit(slot, *kernel, memory_order_release);
        }
    }
    pthread_mutex_unlock(&lock);
    struct nvs_fault ignored;
    int back = nvs_driver_exchange_mode(driver, &mode, result == 0 ? fault : &ignored);
    return result < 0 ? result : back;
}

static int
launch(const struct nvs_driver *driver, CUkernel kernel, const struct nvs_kernel *row,
       struct nvs_grid grid, CUstream stream, void **parameters, struct nvs_fault *fault)
{
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    cluster.value.clusterDim.x = (unsigned)row->cluster;
    cluster.value.clusterDim.y = 1;
    cluster.value.clusterDim.z = 1;
    const CUlaunchConfig config = {
        .gridDimX = grid.x,
        .gridDimY = grid.y,
        .gridDimZ = grid.z,
        .blockDimX = (unsigned)row->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)row->shared_bytes,
        .hStream = stream,
        .attrs = &cluster,
        .numAttrs = row->cluster > 1,
    };
    /* A CUkernel may stand for a CUfunction here. */
    CUresult status = driver->LaunchKernelEx(&config, (CUfunction)(void *)kernel, parameters, NULL);
    return status == CUDA_SUCCESS ? 0 : nvs_driver_fault(fault, "cuLaunchKernelEx", status);
}

int64_t
nvs_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* args: of a row with a_box_rows, a struct nvs_gemm_args. nanoseconds: how long cuLaunchKernelEx
 * took, or NULL. */
static int
launch_on_device(const struct nvs_device *device, const struct nvs_kernel *kernel,
                 _Atomic(void *) *slot, struct nvs_grid grid, void *stream, const void *args,
                 int64_t *nanoseconds, struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    CUkernel handle = NULL;
    struct nvs_a_maps maps;
    void *parameters[] = {(void *)args, kernel->a_box_rows > 0 ? &maps : NULL};
    bool entered = false;
    if (driver == NULL || nvs_device_enter(device, &entered, fault) < 0) {
        return -1;
    }
    int result = find_kernel(driver, device, kernel, slot, &handle, fault);
    if (result == 0 && kernel->a_box_rows > 0) {
        result = nvs_encode_a_maps(driver, args, kernel->a_box_rows, &maps, fault);
    }
    if (result == 0) {
        int64_t begin = nanoseconds ? nvs_now() : 0;
        result = launch(driver, handle, kernel, grid, stream, parameters, fault);
        if (nanoseconds != NULL) {
            *nanoseconds = nvs_now() - begin;
        }
    }
    struct nvs_fault ignored;
    int left = nvs_device_leave(entered, result == 0 ? fault : &ignored);
    return result < 0 ? result : left;
}

const struct nvs_kernel *
nvs_device_select(const struct nvs_device *device, const struct nvs_problem *problem)
{
    struct nvs_problem in_any_build = *problem;
    in_any_build.built = false;
    const struct nvs_kernel *first = nvs_select(&in_any_build);
    bool is_loaded = first != NULL && atomic_load_explicit(&device->kernels[first - nvs_kernels],
                                                           memory_order_relaxed) != NULL;
    return is_loaded ? first : nvs_select(problem);
}

int
nvs_device_launch(struct nvs_device *device, const struct nvs_kernel *kernel, struct nvs_grid grid,
                  void *stream, const struct nvs_gemm_args *args, struct nvs_fault *fault)
{
    _Atomic(void *) *slot = &device->kernels[kernel - nvs_kernels];
    return launch_on_device(device, kernel, slot, grid, stream, args, NULL, fault);
}

int
nvs_device_time_launch(struct nvs_device *device, const struct nvs_kernel *kernel,
                       struct nvs_grid grid, void *stream, const struct nvs_gemm_args *args,
                       int64_t *nanoseconds, struct nvs_fault *fault)
{
    _Atomic(void *) *slot = &device->kernels[kernel - nvs_kernels];
    return launch_on_device(device, kernel, slot, grid, stream, args, nanoseconds, fault);
}

int
nvs_device_launch_other(const struct nvs_device *device, const struct nvs_kernel *kernel,
                        _Atomic(void *) *slot, struct nvs_grid grid, void *stream, const void *args,
                        struct nvs_fault *fault)
{
    return launch_on_device(device, kernel, slot, grid, stream, args, NULL, fault);
}
