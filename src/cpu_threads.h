/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads for the CPU path: how many, and a parallel loop over numbered tasks. No Python.h.
 */
#ifndef NVS_CPU_THREADS_H
#define NVS_CPU_THREADS_H

#include <stdint.h>

enum {
    NVS_MAX_THREADS = 64,
};

/* The default number of threads: NVFP4SPARSE_NUM_THREADS if it holds a positive number (read once
 * per process, at the first call), else the CPUs this process may run on; at most
 * NVS_MAX_THREADS. */
int nvs_cpu_threads(void);

/* Runs task(context, worker, index) for every index in [0, tasks), on `threads` threads numbered
 * 0 .. threads - 1 by `worker`; worker 0 is the calling thread. Tasks are handed out one by one.
 * Threads that cannot be started are done without. Returns when all tasks have run. */
void nvs_parallel(int threads, int64_t tasks, void (*task)(void *, int, int64_t), void *context);

#endif
