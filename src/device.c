/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA devices: each is opened once, at its first use, and then read without a lock. Opening may
 * happen while a stream is being captured, so it runs with the thread's capture mode relaxed.
 */
#include "device.h"

#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_DEVICES = 64,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held to open a device */
static struct nvs_device devices[MAX_DEVICES];
static atomic_bool opened[MAX_DEVICES];

int
nvs_device_count(int *driver_version, int *count, struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    if (driver == NULL) {
        return -1;
    }
    CUresult status = driver->DriverGetVersion(driver_version);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuDriverGetVersion", status);
    }
    status = driver->DeviceGetCount(count);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuDeviceGetCount", status);
    }
    return 0;
}

/* Fills a device's facts and retains its primary context. */
static int
describe(const struct nvs_driver *driver, struct nvs_device *device, struct nvs_fault *fault)
{
    CUdevice handle = 0;
    int major = 0;
    int minor = 0;
    CUcontext context = NULL;
    CUresult status = driver->DeviceGet(&handle, device->id);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuDeviceGet", status);
    }
    status = driver->DeviceGetName(device->name, sizeof(device->name), handle);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuDeviceGetName", status);
    }
    const struct {
        int attribute;
        int *value;
    } facts[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->sm_count},
    };
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        status = driver->DeviceGetAttribute(facts[i].value, facts[i].attribute, handle);
        if (status != CUDA_SUCCESS) {
            return nvs_driver_fault(fault, "cuDeviceGetAttribute", status);
        }
    }
    device->cc = 10 * major + minor;
    if (device->kernels == NULL) {
        device->kernels = calloc((size_t)nvs_kernel_count, sizeof(*device->kernels));
        if (device->kernels == NULL) {
            snprintf(fault->text, sizeof(fault->text), "out of memory");
            return -1;
        }
    }
    status = driver->DevicePrimaryCtxRetain(&context, handle);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuDevicePrimaryCtxRetain", status);
    }
    device->context = context;
    return 0;
}

/* The first time for a device. The ordinal is one that the driver has. */
static int
open_first(const struct nvs_driver *driver, int id, struct nvs_fault *fault)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int result = 0;
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&opened[id], memory_order_relaxed)) {
        result = nvs_driver_exchange_mode(driver, &mode, fault);
        if (result == 0) {
            devices[id].id = id;
            result = describe(driver, &devices[id], fault);
            struct nvs_fault ignored;
            int back = nvs_driver_exchange_mode(driver, &mode, result == 0 ? fault : &ignored);
            result = result < 0 ? result : back;
        }
        atomic_store_explicit(&opened[id], result == 0, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int
nvs_device_open(int id, struct nvs_device **device, struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    int version = 0;
    int count = 0;
    if (driver == NULL) {
        return -1;
    }
    if (id >= 0 && id < MAX_DEVICES && atomic_load_explicit(&opened[id], memory_order_acquire)) {
        *device = &devices[id];
        return 0;
    }
    if (nvs_device_count(&version, &count, fault) < 0) {
        return -1;
    }
    if (id < 0 || id >= count || id >= MAX_DEVICES) {
        snprintf(fault->text, sizeof(fault->text),
                 "there is no CUDA device %d: the driver reports %d", id, count);
        return -1;
    }
    if (open_first(driver, id, fault) < 0) {
        return -1;
    }
    *device = &devices[id];
    return 0;
}

int
nvs_device_enter(const struct nvs_device *device, bool *entered, struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    CUcontext current = NULL;
    *entered = false;
    if (driver == NULL) {
        return -1;
    }
    CUresult status = driver->CtxGetCurrent(&current);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuCtxGetCurrent", status);
    }
    if (current != device->context) {
        status = driver->CtxPushCurrent(device->context);
        if (status != CUDA_SUCCESS) {
            return nvs_driver_fault(fault, "cuCtxPushCurrent", status);
        }
        *entered = true;
    }
    return 0;
}

int
nvs_device_leave(bool entered, struct nvs_fault *fault)
{
    if (!entered) {
        return 0;
    }
    const struct nvs_driver *driver = nvs_driver_open(fault);
    CUcontext popped = NULL;
    if (driver == NULL) {
        return -1;
    }
    CUresult status = driver->CtxPopCurrent(&popped);
    return status == CUDA_SUCCESS ? 0 : nvs_driver_fault(fault, "cuCtxPopCurrent", status);
}

int
nvs_device_of_stream(const struct nvs_device *device, void *stream, int *id,
                     struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    CUcontext context = NULL;
    CUcontext popped = NULL;
    *id = device->id;
    if (driver == NULL) {
        return -1;
    }
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return 0; /* names the default stream of whichever device works */
    }
    CUresult status = driver->StreamGetCtx(stream, &context);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuStreamGetCtx", status);
    }
    if (context == device->context) {
        return 0;
    }
    /* Another context may still be of this device: a green one, or one made by hand. */
    status = driver->CtxPushCurrent(context);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuCtxPushCurrent", status);
    }
    status = driver->CtxGetDevice(id);
    if (status != CUDA_SUCCESS) {
        nvs_driver_fault(fault, "cuCtxGetDevice", status);
    }
    CUresult left = driver->CtxPopCurrent(&popped);
    if (left != CUDA_SUCCESS && status == CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuCtxPopCurrent", left);
    }
    return status == CUDA_SUCCESS ? 0 : -1;
}
