/* SPDX-License-Identifier: Apache-2.0
 *
 * launch_floor(): queues the bench's read-once floor, cuda/read_once_floor.cu. It computes nothing
 * that anyone needs; it moves the bytes that a GEMM has to move, as fast as the GPU can.
 */
#include "floor.h"

#include "nvfp4sparse.h"

/* One symbol per count of loads that a thread has in flight, fewest first. */
static const struct {
    int loads;
    const char *symbol;
} variants[] = {
    {1, "nvs_read_once_1"},
    {2, "nvs_read_once_2"},
    {4, "nvs_read_once_4"},
    {8, "nvs_read_once_8"},
};

enum {
    VARIANTS = sizeof(variants) / sizeof(variants[0]),
};

/* CUkernels: a handle is good on every device, since the kernel has no attributes to set. */
static _Atomic(void *) kernels[VARIANTS];

/* Enough loads for one pass over the operands, or as many as there are. */
static int
choose_variant(int64_t words, int64_t blocks)
{
    int64_t threads = blocks * NVS_FLOOR_THREADS;
    int variant = 0;
    while (variant + 1 < VARIANTS && variants[variant].loads * threads < words) {
        variant++;
    }
    return variant;
}

/* The words of a contiguous uint8 vector; -1 with ValueError if it is not one we take. */
static int64_t
count_words(const struct nvs_tensor *tensor, const char *name)
{
    bool is_bytes = tensor->dtype.code == kDLUInt && tensor->dtype.bits == 8;
    int64_t bytes = tensor->ndim == 1 ? tensor->shape[0] : -1;
    if (!is_bytes || tensor->device.device_type != kDLCUDA || bytes < 0 ||
        bytes % NVS_FLOOR_WORD != 0 || bytes / NVS_FLOOR_WORD > NVS_FLOOR_MAX_WORDS ||
        (bytes > 1 && tensor->strides[0] != 1) || (uintptr_t)tensor->data % NVS_FLOOR_WORD != 0) {
        PyErr_Format(PyExc_ValueError,
                     "launch_floor: %s must be a contiguous uint8 vector on a GPU, its address and "
                     "length multiples of %d bytes, of at most %lld bytes",
                     name, NVS_FLOOR_WORD, (long long)NVS_FLOOR_MAX_WORDS * NVS_FLOOR_WORD);
        return -1;
    }
    return bytes / NVS_FLOOR_WORD;
}

static int
queue(const struct nvs_tensor tensors[2], const struct nvs_stream *stream, int blocks)
{
    int64_t operand_words = count_words(&tensors[0], "operands");
    int64_t out_words = operand_words < 0 ? -1 : count_words(&tensors[1], "out");
    struct nvs_device *device = NULL;
    struct nvs_fault fault;
    if (out_words < 0) {
        return -1;
    }
    if (!nvs_same_device(tensors[0].device, tensors[1].device)) {
        PyErr_SetString(PyExc_ValueError, "launch_floor: operands and out are on two devices");
        return -1;
    }
    const struct nvs_floor_args args = {
        .operands = tensors[0].data,
        .out = tensors[1].data,
        .operand_words = (uint32_t)operand_words,
        .out_words = (uint32_t)out_words,
    };
    int variant = choose_variant(operand_words, blocks);
    const struct nvs_grid grid = {(unsigned)blocks, 1, 1};
    const struct nvs_kernel kernel = {
        .name = "read-once floor",
        .symbol = variants[variant].symbol,
        .image = "read_once_floor",
        .kind = NVS_KIND_CUDA,
        .threads = NVS_FLOOR_THREADS,
        .cluster = 1,
    };
    if (nvs_device_open(tensors[0].device.device_id, &device, &fault) < 0 ||
        nvs_device_launch_other(device, &kernel, &kernels[variant], grid, stream->handle, &args,
                                &fault) < 0) {
        PyErr_Format(PyExc_RuntimeError, "launch_floor: %s", fault.text);
        return -1;
    }
    return 0;
}

PyObject *
nvs_launch_floor(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"operands", "out", "blocks", "stream", NULL};
    struct nvs_state *state = PyModule_GetState(module);
    PyObject *objects[2] = {NULL, NULL};
    PyObject *stream_argument = NULL;
    struct nvs_tensor tensors[2] = {{0}};
    struct nvs_stream stream = {0};
    PyObject *result = NULL;
    int blocks = 0;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$iO:launch_floor", names, &objects[0],
                                     &objects[1], &blocks, &stream_argument)) {
        return NULL;
    }
    if (stream_argument == Py_None) {
        stream_argument = NULL;
    }
    if (blocks < 1 || blocks > NVS_FLOOR_MAX_BLOCKS) {
        PyErr_Format(PyExc_ValueError, "launch_floor: blocks must be 1 to %d, got %d",
                     NVS_FLOOR_MAX_BLOCKS, blocks);
        return NULL;
    }
    if (nvs_tensor_open(state, objects[0], names[0], NULL, &tensors[0]) < 0 ||
        nvs_tensor_open(state, objects[1], names[1], NULL, &tensors[1]) < 0 ||
        nvs_resolve_stream(state, stream_argument, &tensors[0], &stream) < 0 ||
        nvs_tensor_import(state, objects[0], names[0], &stream, &tensors[0]) < 0 ||
        nvs_tensor_import(state, objects[1], names[1], &stream, &tensors[1]) < 0 ||
        queue(tensors, &stream, blocks) < 0) {
        goto done;
    }
    result = Py_NewRef(Py_None);
done:
    nvs_tensor_release(&tensors[1]);
    nvs_tensor_release(&tensors[0]);
    return result;
}
