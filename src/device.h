/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA devices and the kernel images of this build. No Python here: the functions may run without
 * the GIL, return 0 or -1, and say in words in a struct nvs_fault what went wrong.
 */
#ifndef NVS_DEVICE_H
#define NVS_DEVICE_H

#include "dispatch.h"
#include "gemm_args.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The images, one per file of cuda/, in a table that setup.py generates. */
struct nvs_image {
    const char *name; /* file name without suffix: "gemm_naive" */
    const void *data; /* a fatbin; NULL if it was not built */
    size_t size;
    const char *archs; /* what it holds, as nvcc writes it: "sm_80 sm_90a compute_80" */
};

extern const struct nvs_image nvs_images[];
extern const int nvs_image_count;
extern const char nvs_build_info[]; /* "nvcc 13.0.88", or why there are no kernels */

/* The image of that name that holds any code, or NULL. */
const struct nvs_image *nvs_find_image(const char *name);

/* Whether the image holds code that runs on a compute capability (times 10). */
bool nvs_image_covers(const struct nvs_image *image, int cc);

struct nvs_fault {
    char text[2048];
};

/* One GPU, opened at its first use and then kept for the life of the process. */
struct nvs_device {
    int id; /* the driver's ordinal, which is also DLPack's device_id */
    int cc; /* compute capability * 10 */
    int sm_count;
    char name[128];
    void *context;            /* the primary context, retained */
    _Atomic(void *) *kernels; /* CUkernel of each row of nvs_kernels[], NULL until loaded */
};

/* Driver version (13000 for 13.0) and number of devices. Fails where there is no driver. */
int nvs_device_count(int *driver_version, int *count, struct nvs_fault *fault);

/* The device of that ordinal; *device stays valid. */
int nvs_device_open(int id, struct nvs_device **device, struct nvs_fault *fault);

/* Make the device's primary context current around calls that need it. *entered: there is
 * something for nvs_device_leave() to undo. */
int nvs_device_enter(const struct nvs_device *device, bool *entered, struct nvs_fault *fault);
int nvs_device_leave(bool entered, struct nvs_fault *fault);

/* The ordinal of the device that a stream belongs to. The handle must be one: the driver does not
 * tell a wrong address from a stream. */
int nvs_device_of_stream(const struct nvs_device *device, void *stream, int *id,
                         struct nvs_fault *fault);

/* nvs_select(): a row that was launched on the device before is known to be in this build. */
const struct nvs_kernel *
nvs_device_select(const struct nvs_device *device, const struct nvs_problem *problem);

/* Queue one kernel. Loads it first if this is its first launch on the device; safe while a stream
 * is capturing. The current context is afterwards what it was. */
int
nvs_device_launch(struct nvs_device *device, const struct nvs_kernel *kernel, struct nvs_grid grid,
                  void *stream, const struct nvs_gemm_args *args, struct nvs_fault *fault);

/* Nanoseconds of a clock that only goes forward. */
int64_t nvs_now(void);

/* nvs_device_launch(), and how long cuLaunchKernelEx alone took: what the bench holds calls against. */
int nvs_device_time_launch(struct nvs_device *device, const struct nvs_kernel *kernel,
                           struct nvs_grid grid, void *stream, const struct nvs_gemm_args *args,
                           int64_t *nanoseconds, struct nvs_fault *fault);

/* The same as nvs_device_launch() for a kernel that is no row of nvs_kernels[]: `slot`, NULL at
 * first, keeps its CUkernel for the device; `args` is its only parameter, and it
 * has no a_box_rows. */
int nvs_device_launch_other(const struct nvs_device *device, const struct nvs_kernel *kernel,
                            _Atomic(void *) *slot, struct nvs_grid grid, void *stream,
                            const void *args, struct nvs_fault *fault);

/* Memory for a result that no framework allocates, with an event to order its readers. */
struct nvs_device_memory {
    void *data;
    void *event;
};

/* Refuses a capturing stream: the memory would belong to the graph. */
int nvs_memory_new(const struct nvs_device *device, size_t size, void *stream,
                   struct nvs_device_memory *memory, struct nvs_fault *fault);

/* What is queued on the stream by now comes before what nvs_memory_wait() lets come after. */
int nvs_memory_record(const struct nvs_device *device, const struct nvs_device_memory *memory,
                      void *stream, struct nvs_fault *fault);
int nvs_memory_wait(const struct nvs_device *device, const struct nvs_device_memory *memory,
                    void *stream, struct nvs_fault *fault);

/* Waits for the device, since readers on any stream may still be at work. Where it cannot (the
 * device is capturing, the process was forked) the memory is left allocated. */
void nvs_memory_free(const struct nvs_device *device, const struct nvs_device_memory *memory);

#endif
