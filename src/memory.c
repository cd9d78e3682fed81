/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory for results that no framework allocates. It comes from the stream's pool, so that
 * taking it waits for nothing, and is given back only when the device is idle: whoever read it did
 * so on streams that we do not know.
 */
#include "driver.h"

#include <stdio.h>

static int
allocate(const struct nvs_driver *driver, size_t size, CUstream stream,
         struct nvs_device_memory *memory, struct nvs_fault *fault)
{
    CUdeviceptr data = 0;
    CUevent event = NULL;
    int capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult status = driver->StreamIsCapturing(stream, &capturing);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuStreamIsCapturing", status);
    }
    if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) {
        snprintf(fault->text, sizeof(fault->text),
                 "a result cannot be allocated while the stream is capturing: pass out=");
        return -1;
    }
    status = driver->EventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (status != CUDA_SUCCESS) {
        return nvs_driver_fault(fault, "cuEventCreate", status);
    }
    status = driver->MemAllocAsync(&data, size, stream);
    if (status != CUDA_SUCCESS) {
        driver->EventDestroy(event);
        return nvs_driver_fault(fault, "cuMemAllocAsync", status);
    }
    memory->data = (void *)(uintptr_t)data;
    memory->event = event;
    return 0;
}

/* These enter the device's context, since a default stream is that of the current one. */

int
nvs_memory_new(const struct nvs_device *device, size_t size, void *stream,
               struct nvs_device_memory *memory, struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    bool entered = false;
    if (driver == NULL || nvs_device_enter(device, &entered, fault) < 0) {
        return -1;
    }
    int result = allocate(driver, size, stream, memory, fault);
    struct nvs_fault ignored;
    nvs_device_leave(entered, &ignored);
    return result;
}

int
nvs_memory_record(const struct nvs_device *device, const struct nvs_device_memory *memory,
                  void *stream, struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    bool entered = false;
    if (driver == NULL || nvs_device_enter(device, &entered, fault) < 0) {
        return -1;
    }
    CUresult status = driver->EventRecord(memory->event, stream);
    int result = status == CUDA_SUCCESS ? 0 : nvs_driver_fault(fault, "cuEventRecord", status);
    struct nvs_fault ignored;
    nvs_device_leave(entered, &ignored);
    return result;
}

int
nvs_memory_wait(const struct nvs_device *device, const struct nvs_device_memory *memory,
                void *stream, struct nvs_fault *fault)
{
    const struct nvs_driver *driver = nvs_driver_open(fault);
    bool entered = false;
    if (driver == NULL || nvs_device_enter(device, &entered, fault) < 0) {
        return -1;
    }
    CUresult status = driver->StreamWaitEvent(stream, memory->event, 0);
    int result = status == CUDA_SUCCESS ? 0 : nvs_driver_fault(fault, "cuStreamWaitEvent", status);
    struct nvs_fault ignored;
    nvs_device_leave(entered, &ignored);
    return result;
}

void
nvs_memory_free(const struct nvs_device *device, const struct nvs_device_memory *memory)
{
    struct nvs_fault ignored;
    const struct nvs_driver *driver = nvs_driver_open(&ignored);
    bool entered = false;
    if (driver == NULL || nvs_device_enter(device, &entered, &ignored) < 0) {
        return;
    }
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->ThreadExchangeStreamCaptureMode(&mode);
    if (driver->CtxSynchronize() == CUDA_SUCCESS) {
        driver->MemFree((CUdeviceptr)(uintptr_t)memory->data);
        driver->EventDestroy(memory->event);
    }
    driver->ThreadExchangeStreamCaptureMode(&mode);
    nvs_device_leave(entered, &ignored);
}
