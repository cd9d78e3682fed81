/* SPDX-License-Identifier: Apache-2.0
 *
 * One wrapper per instruction, named after it. Nothing here knows the operation; layouts and
 * protocols are described where the wrappers are used.
 */
#pragma once

#include <stdint.h>

#define NVS_DEVICE static __device__ __forceinline__

/* Byte permute: nibble i of `selector` picks byte i of the result from {hi, lo}. */
NVS_DEVICE uint32_t
prmt(uint32_t lo, uint32_t hi, uint32_t selector)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(lo), "r"(hi), "r"(selector));
    return d;
}

/* (a & mask) | (b & ~mask), one LOP3. */
NVS_DEVICE uint32_t
lop3_select(uint32_t a, uint32_t b, uint32_t mask)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}

/* A left shift on the multiplier, which runs beside the pipe that LOP3 and PRMT share. Opaque, so
 * that the compiler does not fold it into another mask. */
NVS_DEVICE uint32_t
shl_by_mul(uint32_t x, uint32_t power_of_two)
{
    uint32_t d;
    asm volatile("mul.lo.u32 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(power_of_two));
    return d;
}

NVS_DEVICE uint32_t
mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* The low or the high half of an f16x2, twice; ptxas folds it into the HMUL2 that reads it. */
NVS_DEVICE uint32_t
broadcast_half(uint32_t x, int high)
{
    uint32_t d;
    if (high)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(x));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(x));
    return d;
}

/* Two E4M3 bytes (the low 16 bits) to f16x2, exact; 0x7F is NaN. */
NVS_DEVICE uint32_t
cvt_f16x2_e4m3x2(uint32_t two_bytes)
{
    uint32_t d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}"
        : "=r"(d)
        : "r"(two_bytes));
    return d;
}

/* Read-only loads; zeros, and nothing is read, where `inside` is false. */
NVS_DEVICE uint4
ld_global_nc_v4(const void *address, bool inside)
{
    uint4 v;
    asm volatile("{.reg .pred inside; setp.ne.u32 inside, %5, 0;\n"
                 "mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
                 "@inside ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(address), "r"((uint32_t)inside));
    return v;
}

NVS_DEVICE uint32_t
ld_global_nc_u32(const void *address, bool inside)
{
    uint32_t v;
    asm volatile("{.reg .pred inside; setp.ne.u32 inside, %2, 0;\n"
                 "mov.u32 %0, 0;\n"
                 "@inside ld.global.nc.u32 %0, [%1];}"
                 : "=&r"(v)
                 : "l"(address), "r"((uint32_t)inside));
    return v;
}

NVS_DEVICE uint32_t
shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

NVS_DEVICE void
st_shared_u32(uint32_t address, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

NVS_DEVICE void
st_shared_v2(uint32_t address, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}

NVS_DEVICE void
st_shared_v4(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z),
                 "r"(w)
                 : "memory");
}

NVS_DEVICE void
st_shared_v4(uint32_t address, float x, float y, float z, float w)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x), "f"(y), "f"(z),
                 "f"(w)
                 : "memory");
}

NVS_DEVICE void
st_shared_v2(uint32_t address, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

NVS_DEVICE uint32_t
ld_shared_u16(uint32_t address)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
    return v;
}

NVS_DEVICE uint2
ld_shared_v2(uint32_t address)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}

NVS_DEVICE float
ld_shared_f32(uint32_t address)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

NVS_DEVICE float4
ld_shared_v4f(uint32_t address)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

/* Sparse warp MMA, A m16 x k32 of which 16 columns are stored, f32 += f16 x f16. Lane pair
 * SELECTOR (0: lanes 0 and 1 of each quad, 1: lanes 2 and 3) supplies the metadata. */
template <int SELECTOR>
NVS_DEVICE void
mma_sp_m16n8k32(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                const uint32_t (&b)[4], uint32_t meta)
{
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, "
                 "%13;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
                   "r"(meta), "n"(SELECTOR));
}

/* A barrier among `threads` threads that name the same id (1..15). */
NVS_DEVICE void
bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Zero, which no compiler knows: see load_args(). There are fewer than 2^16 threads in a block. */
NVS_DEVICE uint32_t
opaque_zero(void)
{
    uint32_t zero;
    asm("shr.u32 %0, %1, 16;" : "=r"(zero) : "r"(threadIdx.x));
    return zero;
}

/* A point that ptxas moves nothing across, for one instruction: a performance event that nobody
 * counts. Left to itself it puts loads behind the address arithmetic of later copies. */
NVS_DEVICE void
keep_order(void)
{
    asm volatile("pmevent 0;" ::: "memory");
}

/* Hands registers back, and takes them, by whole warpgroups; up to what all had at the launch. */
template <int REGISTERS>
NVS_DEVICE void
setmaxnreg_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
NVS_DEVICE void
setmaxnreg_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* ---- clusters ------------------------------------------------------------------------------- */

NVS_DEVICE void
barrier_cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

NVS_DEVICE void
barrier_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address in block `rank` of the cluster that corresponds to `address` here. */
NVS_DEVICE uint32_t
mapa(uint32_t address, uint32_t rank)
{
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

NVS_DEVICE void
mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

NVS_DEVICE void
fence_mbarrier_init_cluster(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

NVS_DEVICE void
mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

NVS_DEVICE void
mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

NVS_DEVICE void
mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* A remote store that reports its bytes to the remote mbarrier: data and signal in one. */
NVS_DEVICE void
st_async_f32(uint32_t address, uint32_t barrier, float x)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
        "f"(x), "r"(barrier)
        : "memory");
}

NVS_DEVICE void
st_async_v4(uint32_t address, uint32_t barrier, float4 v)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
                 : "memory");
}

/* ---- asynchronous copies from global to shared memory ---------------------------------------- */

/* 16 bytes past L1, or zeros where `inside` is false (then nothing is read). */
NVS_DEVICE void
cp_async_16(uint32_t shared, const void *global, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(inside ? 16 : 0)
                 : "memory");
}

/* cp_async_16() by threads that are `active`, without a branch. */
NVS_DEVICE void
cp_async_16_if(bool active, uint32_t shared, const void *global, bool inside)
{
    asm volatile("{.reg .pred active; setp.ne.u32 active, %3, 0;\n"
                 "@active cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(shared),
                 "l"(global), "r"(inside ? 16 : 0), "r"((uint32_t)active)
                 : "memory");
}

/* cp_async_16() where the copies that take the rest of the 128-byte line are another warp's. */
NVS_DEVICE void
cp_async_16_of_line(uint32_t shared, const void *global, bool inside)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(global), "r"(inside ? 16 : 0)
                 : "memory");
}

NVS_DEVICE void
cp_async_4(uint32_t shared, const void *global, bool inside)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
                 "r"(inside ? 4 : 0)
                 : "memory");
}

NVS_DEVICE void
cp_async_commit_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `pending` groups are under way: 0 to 5, a compile-time constant after
 * unrolling. */
NVS_DEVICE void
cp_async_wait_group(int pending)
{
    if (pending == 0)
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (pending == 1)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (pending == 2)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (pending == 3)
        asm volatile("cp.async.wait_group 3;" ::: "memory");
    else if (pending == 4)
        asm volatile("cp.async.wait_group 4;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 5;" ::: "memory");
}

NVS_DEVICE uint4
ld_shared_v4(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

NVS_DEVICE uint32_t
ld_shared_u32(uint32_t address)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

/* Word i of a vector; i is a compile-time constant after unrolling. */
NVS_DEVICE uint32_t
word_of(const uint2 &v, int i)
{
    return i == 0 ? v.x : v.y;
}

NVS_DEVICE uint32_t
word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Arrives at the barrier without waiting: what this thread wrote before is there for those that
 * bar_sync() lets go. `threads` counts both kinds. */
NVS_DEVICE void
bar_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* A box of a two-dimensional tensor from column, row on, by one thread; its bytes are reported to
 * the barrier. What lies outside the tensor arrives as zeros. */
NVS_DEVICE void
tma_load(uint32_t shared, const void *map, uint32_t column, uint32_t row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}
