/* SPDX-License-Identifier: Apache-2.0
 *
 * Hopper's sparse warpgroup MMA with A in registers: D[64, N] += A[64, 32 of which 16 stored] *
 * B[N, 32]^T, f16 operands, f32 sums, B in 128-byte-swizzled shared memory. The overload follows
 * from the length of D (N / 2 registers a thread). Layouts: PTX ISA, wgmma.mma_async.sp.
 */
#pragma once

#include "ptx.cuh"

NVS_DEVICE void
wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

NVS_DEVICE void
wgmma_commit_group(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most PENDING groups are under way. */
template <int PENDING>
NVS_DEVICE void
wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Makes this thread's ordinary writes to shared memory visible to wgmma; a barrier must follow. */
NVS_DEVICE void
fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Descriptor of a K-major f16 tile: rows of 128 bytes, 8-row atoms 1024 bytes apart and aligned to
 * that, 16-byte chunk c of row r at c ^ (r & 7). Adding 4 moves on by one k32 step. */
NVS_DEVICE uint64_t
swizzle128_descriptor(uint32_t address)
{
    const uint64_t leading = 1, stride = 1024 >> 4, swizzle_128 = 1;
    return (uint64_t)((address & 0x3FFFFu) >> 4) | leading << 16 | stride << 32 | swizzle_128 << 62;
}

template <int SELECTOR>
NVS_DEVICE void
wgmma_sp_k32(float (&d)[16], const uint32_t (&a)[4], uint64_t b, uint32_t meta)
{
    asm volatile("{.reg .pred accumulate; setp.eq.b32 accumulate, 0, 0;\n"
                 "wgmma.mma_async.sp.sync.aligned.m64n32k32.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, %21, %22, accumulate, 1, 1, 0;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(meta), "n"(SELECTOR));
}

template <int SELECTOR>
NVS_DEVICE void
wgmma_sp_k32(float (&d)[32], const uint32_t (&a)[4], uint64_t b, uint32_t meta)
{
    asm volatile("{.reg .pred accumulate; setp.eq.b32 accumulate, 0, 0;\n"
                 "wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, %37, %38, accumulate, 1, 1, 0;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(meta), "n"(SELECTOR));
}
