/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the CPU path, started and joined by every call that is large enough: nothing is left
 * running between calls, so fork() needs no care. Plain pthreads; on a system without a CPU
 * affinity mask, the number of online CPUs counts.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif

#include "cpu_threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static int environment_threads; /* 0: not set */

static int
clamp_threads(long threads)
{
    return threads < 1 ? 1 : threads > NVS_MAX_THREADS ? NVS_MAX_THREADS : (int)threads;
}

/* Once only: getenv() must not meet a setenv() in another thread more often than it has to. */
static void
read_environment(void)
{
    const char *text = getenv("NVFP4SPARSE_NUM_THREADS");
    if (text != NULL) {
        char *end;
        long threads = strtol(text, &end, 10);
        if (end != text && *end == '\0' && threads > 0) {
            environment_threads = clamp_threads(threads);
        }
    }
}

static long
usable_cpus(void)
{
#ifdef CPU_COUNT
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
        return CPU_COUNT(&mask);
    }
#endif
    return sysconf(_SC_NPROCESSORS_ONLN);
}

int
nvs_cpu_threads(void)
{
    pthread_once(&environment_once, read_environment);
    return environment_threads ? environment_threads : clamp_threads(usable_cpus());
}

struct loop {
    void (*task)(void *, int, int64_t);
    void *context;
    int64_t tasks;
    _Atomic int64_t next;
};

struct worker {
    struct loop *loop;
    int number;
    pthread_t thread;
};

static void *
run_worker(void *argument)
{
    struct worker *worker = argument;
    struct loop *loop = worker->loop;
    int64_t index;
    while ((index = atomic_fetch_add(&loop->next, 1)) < loop->tasks) {
        loop->task(loop->context, worker->number, index);
    }
    return NULL;
}

void
nvs_parallel(int threads, int64_t tasks, void (*task)(void *, int, int64_t), void *context)
{
    struct loop loop = {.task = task, .context = context, .tasks = tasks};
    struct worker workers[NVS_MAX_THREADS];
    int started = 1;

    threads = clamp_threads(threads);
    workers[0] = (struct worker){.loop = &loop};
    for (; started < threads; started++) {
        struct worker *worker = &workers[started];
        *worker = (struct worker){.loop = &loop, .number = started};
        if (pthread_create(&worker->thread, NULL, run_worker, worker) != 0) {
            break;
        }
    }
    run_worker(&workers[0]);
    for (int i = 1; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}
