/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a row of the kernel table (kernels.c), and what is against the others. No CUDA
 * call and no Python here.
 */
#include "dispatch.h"

#include "device.h"
#include "gemm_args.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

enum { /* of every compute capability since 3.0 */
    MAX_GRID_X = INT_MAX,
    MAX_GRID_Z = 65535,
};

enum {
    SM_COUNT_UNSEEN = 132, /* of an H200 SXM: for a plan without a device */
};

static int64_t
divide_up(int64_t extent, int64_t part)
{
    return extent / part + (extent % part != 0);
}

struct nvs_grid
nvs_grid(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    int64_t rows = divide_up(problem->m, kernel->tile_m);
    int64_t columns = divide_up(problem->n, kernel->tile_n);
    if (kernel->persistent) {
        int64_t tiles = rows * columns;
        bool is_large = problem->sm_count > 0 && tiles > problem->sm_count;
        return (struct nvs_grid){(unsigned)(is_large ? problem->sm_count : tiles), 1, 1};
    }
    return (struct nvs_grid){
        .x = (unsigned)(columns * kernel->cluster),
        .y = (unsigned)(rows < NVS_GRID_Y ? rows : NVS_GRID_Y),
        .z = (unsigned)divide_up(rows, NVS_GRID_Y),
    };
}

static bool
has_too_many_tiles(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    return problem->n > (int64_t)(MAX_GRID_X / kernel->cluster) * kernel->tile_n ||
           problem->m > (int64_t)NVS_GRID_Y * MAX_GRID_Z * kernel->tile_m;
}

/* One block per multiprocessor, whole clusters of them at a time. */
static int64_t
count_waves(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    int sm_count = problem->sm_count > 0 ? problem->sm_count : SM_COUNT_UNSEEN;
    int64_t tiles = divide_up(problem->m, kernel->tile_m) * divide_up(problem->n, kernel->tile_n);
    int resident = sm_count / kernel->cluster;
    return divide_up(tiles, resident > 0 ? resident : 1);
}

/* A double, as the largest grids on the smallest GPUs would overflow an int64_t. */
static double
expected_ns(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    return (double)count_waves(kernel, problem) * kernel->wave_ns;
}

/* NULL, or why a row that fits a problem is passed over without looking at the others. */
static const char *
why_not_worth_it(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    if (kernel->one_wave && count_waves(kernel, problem) > 1) {
        return "it is expected to be faster where its tiles are one wave of blocks";
    }
    if (kernel->persistent && count_waves(kernel, problem) <= 1) {
        return "it is expected to be faster where its tiles are more than a wave of blocks";
    }
    if ((double)problem->m * (double)problem->k < (double)kernel->pays_mk) {
        return "it is expected to be faster where there is more of A";
    }
    return NULL;
}

/* Why a row cannot run a problem. */
enum misfit {
    FITS,
    OTHER_KIND,
    OTHER_CC,
    OTHER_M,
    OTHER_N,
    LONG_K,
    OTHER_K,
    NO_K,
    UNALIGNED,
    UNALIGNED_OUT,
    UNALIGNED_SCALES,
    TOO_MANY_TILES,
    NOT_BUILT,
    NOT_BUILT_FOR_CC,
};

static enum misfit
find_misfit(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    if (kernel->kind != problem->kind) {
        return OTHER_KIND;
    }
    if (problem->m < kernel->m_min || problem->m > kernel->m_max) {
        return OTHER_M;
    }
    if (problem->n < kernel->n_min || problem->n > kernel->n_max) {
        return OTHER_N;
    }
    if (problem->k > kernel->k_max) {
        return LONG_K;
    }
    if (problem->k % kernel->k_multiple != 0) {
        return OTHER_K;
    }
    if (problem->k == 0 && kernel->a_box_rows > 0) { /* there is no tensor map of nothing */
        return NO_K;
    }
    if (kernel->kind == NVS_KIND_CPU) {
        return FITS;
    }
    if (problem->cc < kernel->cc_min || problem->cc > kernel->cc_max) {
        return OTHER_CC;
    }
    unsigned missing = kernel->needs & ~problem->aligned;
    if (missing & NVS_NEEDS_ALIGNED_16) {
        return UNALIGNED;
    }
    if (missing & NVS_NEEDS_ALIGNED_OUT) {
        return UNALIGNED_OUT;
    }
    if (missing & NVS_NEEDS_ALIGNED_SCALES) {
        return UNALIGNED_SCALES;
    }
    if (has_too_many_tiles(kernel, problem)) {
        return TOO_MANY_TILES;
    }
    if (problem->built) {
        const struct nvs_image *image = nvs_find_image(kernel->image);
        if (image == NULL) {
            return NOT_BUILT;
        }
        if (!nvs_image_covers(image, problem->cc)) {
            return NOT_BUILT_FOR_CC;
        }
    }
    return FITS;
}

static const char *
range_text(char *text, size_t size, char letter, int64_t min, int64_t max, int64_t got)
{
    if (max == INT64_MAX) {
        snprintf(text, size, "it takes %c from %" PRId64 " on, got %" PRId64, letter, min, got);
    }
    else {
        snprintf(text, size, "it takes %c from %" PRId64 " to %" PRId64 ", got %" PRId64, letter,
                 min, max, got);
    }
    return text;
}

static const char *
cc_text(char *text, size_t size, const struct nvs_kernel *kernel, int cc)
{
    bool too_old = cc < kernel->cc_min;
    int bound = too_old ? kernel->cc_min : kernel->cc_max;
    snprintf(text, size, "it needs compute capability %d.%d or %s, the GPU has %d.%d", bound / 10,
             bound % 10, too_old ? "newer" : "older", cc / 10, cc % 10);
    return text;
}

const char *
nvs_misfit(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    static _Thread_local char text[512];
    switch (find_misfit(kernel, problem)) {
    case FITS:
        return NULL;
    case OTHER_KIND:
        return kernel->kind == NVS_KIND_CPU ? "it runs on the CPU, the operands are on a GPU"
                                            : "it runs on a GPU, the operands are on the CPU";
    case OTHER_CC:
        return cc_text(text, sizeof(text), kernel, problem->cc);
    case OTHER_M:
        return range_text(text, sizeof(text), 'm', kernel->m_min, kernel->m_max, problem->m);
    case OTHER_N:
        return range_text(text, sizeof(text), 'n', kernel->n_min, kernel->n_max, problem->n);
    case LONG_K:
        snprintf(text, sizeof(text), "it takes k up to %" PRId64 ", got %" PRId64, kernel->k_max,
                 problem->k);
        return text;
    case OTHER_K:
        snprintf(text, sizeof(text), "it takes k in multiples of %d, got %" PRId64,
                 kernel->k_multiple, problem->k);
        return text;
    case NO_K:
        snprintf(text, sizeof(text), "it takes k from %d on, got 0", kernel->k_multiple);
        return text;
    case UNALIGNED:
        return "it needs addresses and row strides of a_vals, a_meta, b_fp4 in multiples of 16 "
               "bytes, of a_scale, b_scale in multiples of 4, and strides below 2^31";
    case UNALIGNED_OUT:
        return "it needs out at a multiple of its element's size, and alpha of 4 bytes";
    case UNALIGNED_SCALES:
        return "it needs addresses and row strides of a_scale, b_scale in multiples of 16 bytes";
    case TOO_MANY_TILES:
        return "the result has more tiles than a grid takes (2^31 - 1 along n, 2^31 along m)";
    case NOT_BUILT:
        snprintf(text, sizeof(text), "it is not in this build (%s)", nvs_build_info);
        return text;
    case NOT_BUILT_FOR_CC:
        snprintf(text, sizeof(text), "it was built for %s, the GPU has compute capability %d.%d",
                 nvs_find_image(kernel->image)->archs, problem->cc / 10, problem->cc % 10);
        return text;
    }
    return "it does not fit";
}

/* nvs_select() without the rows before `first`. */
static const struct nvs_kernel *
select_from(const struct nvs_kernel *first, const struct nvs_problem *problem)
{
    const struct nvs_kernel *best = NULL;
    double best_ns = 0;
    for (const struct nvs_kernel *row = first; row < nvs_kernels + nvs_kernel_count; row++) {
        if (row->wave_ns == 0 && best != NULL) {
            return best;
        }
        if (find_misfit(row, problem) != FITS || why_not_worth_it(row, problem) != NULL) {
            continue;
        }
        if (row->wave_ns == 0) {
            return row;
        }
        double ns = expected_ns(row, problem);
        if (best == NULL || ns < best_ns) {
            best = row;
            best_ns = ns;
        }
    }
    return best;
}

const char *
nvs_reason_against(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    static _Thread_local char text[256];
    const char *reason = nvs_misfit(kernel, problem);
    if (reason == NULL) {
        reason = why_not_worth_it(kernel, problem);
    }
    if (reason != NULL || kernel->wave_ns == 0) {
        return reason;
    }
    const struct nvs_kernel *first = kernel;
    while (first > nvs_kernels && first[-1].wave_ns > 0) {
        first--;
    }
    const struct nvs_kernel *best = select_from(first, problem);
    if (expected_ns(best, problem) >= expected_ns(kernel, problem)) {
        return NULL;
    }
    int64_t waves = count_waves(kernel, problem);
    snprintf(text, sizeof(text),
             "its %" PRId64 " wave%s of %d ns (at k = 2048) %s expected to take longer than the "
             "%" PRId64 " of %d ns of %s",
             waves, waves == 1 ? "" : "s", kernel->wave_ns, waves == 1 ? "is" : "are",
             count_waves(best, problem), best->wave_ns, best->name);
    return text;
}

const struct nvs_kernel *
nvs_select(const struct nvs_problem *problem)
{
    return select_from(nvs_kernels, problem);
}

void
nvs_explain_no_kernel(const struct nvs_problem *problem, char *text, size_t size)
{
    int used = snprintf(text, size, "no kernel for this problem on compute capability %d.%d",
                        problem->cc / 10, problem->cc % 10);
    const char *separator = ": ";
    /* From the last row, the least specific one: what does not go into the text is of least use. */
    for (int i = nvs_kernel_count; i-- > 0 && used >= 0 && (size_t)used < size;) {
        if (nvs_kernels[i].kind == problem->kind) {
            used += snprintf(text + used, size - (size_t)used, "%s%s: %s", separator,
                             nvs_kernels[i].name, nvs_misfit(&nvs_kernels[i], problem));
            separator = "; ";
        }
    }
}
