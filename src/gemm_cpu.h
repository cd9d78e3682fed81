/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU path: C[m, n] = alpha * A[m, k] @ B[n, k]^T, the exact sum rounded once to the output
 * type. No Python.h; safe to call without the GIL and from several threads at once.
 */
#ifndef NVS_GEMM_CPU_H
#define NVS_GEMM_CPU_H

#include "gemm_args.h"

/* Runs the checked problem on at most `threads` threads, the caller's included, and returns when
 * C is written. threads <= 0: the default of nvs_cpu_threads() in cpu_threads.h. Small problems
 * stay on the calling thread. Returns 0, or -1 if memory ran out (C is then untouched). */
int nvs_gemm_cpu(const struct nvs_gemm_args *args, int threads);

#endif
