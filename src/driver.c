/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens libcuda.so.1 once per process. Each function is asked for at the version whose signature
 * driver.h declares, in its legacy-stream form: there a NULL stream means what it means to the
 * frameworks.
 */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

typedef CUresult
get_proc_address(const char *symbol, void **function, int version, uint64_t flags, int *status);

struct symbol {
    const char *name;
    int version; /* of the CUDA release that gave the function this signature */
    size_t slot;
    bool optional;
};

#define SYMBOL(name, version)                                                                      \
    {                                                                                              \
        "cu" #name, version, offsetof(struct nvs_driver, name), false                              \
    }
#define OPTIONAL(name, version)                                                                    \
    {                                                                                              \
        "cu" #name, version, offsetof(struct nvs_driver, name), true                               \
    }

static const struct symbol symbols[] = {
    SYMBOL(GetErrorName, 6000),
    SYMBOL(GetErrorString, 6000),
    SYMBOL(Init, 2000),
    SYMBOL(DriverGetVersion, 2020),
    SYMBOL(DeviceGetCount, 2000),
    SYMBOL(DeviceGet, 2000),
    SYMBOL(DeviceGetName, 2000),
    SYMBOL(DeviceGetAttribute, 2000),
    SYMBOL(DevicePrimaryCtxRetain, 7000),
    SYMBOL(CtxGetCurrent, 4000),
    SYMBOL(CtxPushCurrent, 4000),
    SYMBOL(CtxPopCurrent, 4000),
    SYMBOL(CtxGetDevice, 2000),
    SYMBOL(CtxSynchronize, 2000),
    SYMBOL(StreamGetCtx, 9020),
    SYMBOL(StreamIsCapturing, 10000),
    SYMBOL(StreamWaitEvent, 3020),
    SYMBOL(ThreadExchangeStreamCaptureMode, 10010),
    SYMBOL(EventCreate, 2000),
    SYMBOL(EventRecord, 2000),
    SYMBOL(EventDestroy, 4000),
    SYMBOL(MemAllocAsync, 11020),
    SYMBOL(MemFree, 3020),
    SYMBOL(LibraryLoadData, 12000),
    SYMBOL(LibraryGetKernel, 12000),
    SYMBOL(KernelGetFunction, 12000),
    SYMBOL(KernelSetAttribute, 12000),
    OPTIONAL(FuncLoad, 12040),
    SYMBOL(LaunchKernelEx, 11060),
    SYMBOL(TensorMapEncodeTiled, 12000),
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nvs_driver driver;
static struct nvs_fault failure; /* why the driver cannot be used; empty: it can */
static atomic_bool forked;

static void
after_fork_in_child(void)
{
    atomic_store(&forked, true);
}

int
nvs_driver_fault(struct nvs_fault *fault, const char *call, CUresult status)
{
    const char *name = NULL;
    const char *text = NULL;
    if (driver.GetErrorName == NULL || driver.GetErrorName(status, &name) != CUDA_SUCCESS) {
        name = NULL;
    }
    if (driver.GetErrorString == NULL || driver.GetErrorString(status, &text) != CUDA_SUCCESS) {
        text = NULL;
    }
    snprintf(fault->text, sizeof(fault->text), "%s failed: %s (%s, status %d)", call,
             name ? name : "unknown error", text ? text : "no description", status);
    return -1;
}

static int
find_symbols(get_proc_address *find)
{
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        const struct symbol *symbol = &symbols[i];
        void *function = NULL;
        int status = 0;
        CUresult result = find(symbol->name, &function, symbol->version,
                               CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
        if (result != CUDA_SUCCESS || function == NULL) {
            if (symbol->optional) {
                continue;
            }
            snprintf(failure.text, sizeof(failure.text),
                     "the CUDA driver lacks %s (version %d): a driver for CUDA 12.0 or newer "
                     "is needed",
                     symbol->name, symbol->version);
            return -1;
        }
        *(void **)((char *)&driver + symbol->slot) = function;
    }
    return 0;
}

static void
open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(failure.text, sizeof(failure.text), "no CUDA driver: %s", dlerror());
        return;
    }
    get_proc_address *find = NULL;
    *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
    if (find == NULL) {
        snprintf(failure.text, sizeof(failure.text),
                 "the CUDA driver is older than 12.0: cuGetProcAddress_v2 is missing");
        return;
    }
    if (find_symbols(find) < 0) {
        return;
    }
    CUresult status = driver.Init(0);
    if (status != CUDA_SUCCESS) {
        struct nvs_fault fault = {""};
        nvs_driver_fault(&fault, "cuInit", status);
        snprintf(failure.text, sizeof(failure.text), "no CUDA driver that works: %.400s",
                 fault.text);
        return;
    }
    if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0) {
        snprintf(failure.text, sizeof(failure.text), "pthread_atfork failed: out of memory");
    }
}

const struct nvs_driver *
nvs_driver_open(struct nvs_fault *fault)
{
    pthread_once(&once, open_driver);
    if (failure.text[0] != '\0') {
        *fault = failure;
        return NULL;
    }
    if (atomic_load_explicit(&forked, memory_order_relaxed)) {
        snprintf(fault->text, sizeof(fault->text),
                 "CUDA was in use before fork(), and cannot be used in the child: start processes "
                 "with the \"spawn\" method");
        return NULL;
    }
    return &driver;
}

int
nvs_driver_exchange_mode(const struct nvs_driver *opened, int *mode, struct nvs_fault *fault)
{
    CUresult status = opened->ThreadExchangeStreamCaptureMode(mode);
    return status == CUDA_SUCCESS
               ? 0
               : nvs_driver_fault(fault, "cuThreadExchangeStreamCaptureMode", status);
}
