/* SPDX-License-Identifier: Apache-2.0
 *
 * The read-once floor of `python -m nvfp4sparse bench`: no GEMM, only its unavoidable traffic.
 * Every thread issues 16-byte loads for its whole share of the operands before it uses any of
 * them, then the grid writes as many bytes as C has. No kernel that reads its operands from
 * memory once and writes C once can be expected to be faster; how near one comes is the figure
 * of merit where the problem is bound by memory.
 *
 * Launched by src/floor.c, one symbol per count of loads in flight. Runs on any GPU.
 */
#include "floor.h"

/* 16 bytes, or zeros where `inside` is false. volatile, or the compiler moves the load behind the
 * test that guards the store and a thread without a store reads nothing; predicated rather than
 * branched around, so that the loads of one thread stand back to back. */
static __device__ __forceinline__ uint4
load_once(const uint4 *address, bool inside)
{
    uint4 v;
    asm volatile("{\n"
                 ".reg .pred inside;\n"
                 "setp.ne.u32 inside, %5, 0;\n"
                 "mov.u32 %0, 0;\n"
                 "mov.u32 %1, 0;\n"
                 "mov.u32 %2, 0;\n"
                 "mov.u32 %3, 0;\n"
                 "@inside ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(address), "r"((unsigned)inside));
    return v;
}

/* out[j] = XOR of operands[i] over i = j modulo the grid's threads: what a test can verify. */
template <int LOADS>
static __device__ __forceinline__ void
read_once(const struct nvs_floor_args &args)
{
    const uint4 *operands = (const uint4 *)args.operands;
    uint4 *out = (uint4 *)args.out;
    const uint32_t threads = gridDim.x * NVS_FLOOR_THREADS;
    const uint32_t tid = blockIdx.x * NVS_FLOOR_THREADS + threadIdx.x;
    uint4 sum = make_uint4(0, 0, 0, 0);

    for (uint32_t first = tid; first < args.operand_words; first += LOADS * threads) {
        uint4 v[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            uint32_t word = first + i * threads;
            v[i] = load_once(operands + word, word < args.operand_words);
        }
        /* The last load is used first, or ptxas uses the first before the others are out. */
#pragma unroll
        for (int i = LOADS - 1; i >= 0; --i) {
            sum.x ^= v[i].x;
            sum.y ^= v[i].y;
            sum.z ^= v[i].z;
            sum.w ^= v[i].w;
        }
    }
#pragma unroll 1
    for (uint32_t word = tid; word < args.out_words; word += threads)
        out[word] = sum;
}

#define NVS_READ_ONCE(LOADS)                                                                       \
    extern "C" __global__ void __launch_bounds__(NVS_FLOOR_THREADS)                                \
        nvs_read_once_##LOADS(const struct nvs_floor_args args)                                    \
    {                                                                                              \
        read_once<LOADS>(args);                                                                    \
    }

NVS_READ_ONCE(1)
NVS_READ_ONCE(2)
NVS_READ_ONCE(4)
NVS_READ_ONCE(8)
