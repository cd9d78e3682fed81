/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel table: plain data, no CUDA call, testable without a GPU. nvs_select() returns the
 * first row that fits a problem, so rows stand most specific first; rows that stand together and
 * have wave_ns are one entry, of which the cheapest counts, and a row with one_wave, persistent or
 * pays_mk is passed over elsewhere. What a row can run and what it is chosen for are two questions: kernel=
 * asks the first alone.
 */
#ifndef NVS_DISPATCH_H
#define NVS_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum nvs_device_kind {
    NVS_KIND_CPU,
    NVS_KIND_CUDA,
};

/* What a kernel asks of the operands beyond SPEC; a row's `needs` is a union of these. A row that
 * needs nothing takes any address, of out and alpha too. */
enum nvs_needs {
    NVS_NEEDS_ALIGNED_16 = 1,  /* addresses and row strides of a_vals, a_meta, b_fp4: 16 bytes;
                                  of a_scale, b_scale: 4 bytes; strides below 2^31 */
    NVS_NEEDS_ALIGNED_OUT = 2, /* out at a multiple of its element's size, alpha_ptr of 4 bytes */
    NVS_NEEDS_ALIGNED_SCALES = 4, /* a_scale, b_scale and their strides at 16 bytes as well */
    NVS_NEEDS_ALL = 7,
};

struct nvs_kernel {
    const char *name;   /* what kernel= and plan() say */
    const char *symbol; /* extern "C" __global__ name in the image; NULL for the CPU path */
    const char *image;  /* the nvs_images[] entry that holds it; NULL for the CPU path */
    enum nvs_device_kind kind;
    int cc_min, cc_max;                 /* compute capability * 10, inclusive */
    int64_t m_min, m_max, n_min, n_max; /* inclusive */
    int64_t k_max;                      /* inclusive */
    int k_multiple;
    unsigned needs;
    int tile_m, tile_n; /* rows and columns of C that one cluster (or block) computes */
    int threads;
    int cluster;      /* blocks that share one tile, along the grid's x; 1: no cluster */
    bool one_wave;    /* it beats the rows below it on an H200 where its tiles are one wave of
                         blocks; nvs_select() passes it over where they are more */
    bool persistent;  /* blocks walk the tiles, so the grid is no larger than the GPU;
                         nvs_select() passes the row over where there is nowhere to walk to */
    int wave_ns;      /* above 0: the time that one more wave of its blocks takes at k = 2048 on an
                         H200; it weighs the row against its neighbours that have one too */
    int64_t pays_mk;  /* above 0: the m * k from which it beats the rows below it on an H200;
                         nvs_select() passes it over where there is less */
    int shared_bytes; /* dynamic shared memory */
    int a_box_rows;   /* above 0: A comes by TMA, this many rows in a box, and the kernel takes a
                         struct nvs_a_maps (gemm_args.h) as well; such a row needs NVS_NEEDS_ALL,
                         and k = 0 does not fit it */
    const char *when; /* one phrase: what this row is for, and where it was run */
};

struct nvs_problem {
    enum nvs_device_kind kind;
    int cc;       /* compute capability * 10; 0 for the CPU */
    int sm_count; /* of the GPU; 0 if there is none in sight: then a grid takes all tiles, and
                     a wave is as large as on an H200 */
    int64_t m, n, k;
    unsigned aligned; /* enum nvs_needs: what the operands satisfy */
    bool built;       /* only rows whose image is in this build, with code for cc, fit */
};

extern const struct nvs_kernel nvs_kernels[];
extern const int nvs_kernel_count;

/* The named row, or NULL. */
const struct nvs_kernel *nvs_find_kernel(const char *name);

/* NULL if the row can run the problem, else a phrase that says what does not fit; it is valid
 * until the thread asks again. */
const char *nvs_misfit(const struct nvs_kernel *kernel, const struct nvs_problem *problem);

/* NULL if nvs_select() takes the row unless one above it is taken, else a phrase as nvs_misfit()
 * has it; also where the row could run the problem but a neighbour is expected to be faster. */
const char *nvs_reason_against(const struct nvs_kernel *kernel, const struct nvs_problem *problem);

/* The first row that fits and is worth it (one_wave, persistent, pays_mk), or NULL. If it has
 * wave_ns, the one of least waves * wave_ns of the rows that fit, have wave_ns and follow it
 * without a row that has none; of equals the first. */
const struct nvs_kernel *nvs_select(const struct nvs_problem *problem);

/* Into text: the compute capability, and what is against each row of the problem's kind; for a
 * problem that nvs_select() found nothing for. */
void nvs_explain_no_kernel(const struct nvs_problem *problem, char *text, size_t size);

/* Columns of tiles times blocks per cluster along x, rows of tiles along y and z as NVS_GRID_Y in
 * gemm_args.h says; of a persistent row all along x, a block per tile or one per SM, whichever
 * is less. Only for a problem that the row fits. */
struct nvs_grid {
    unsigned x, y, z;
};
struct nvs_grid nvs_grid(const struct nvs_kernel *kernel, const struct nvs_problem *problem);

#endif
