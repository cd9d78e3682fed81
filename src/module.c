/* SPDX-License-Identifier: Apache-2.0
 *
 * The module nvfp4sparse._C: method table, state, initialisation. Importing it opens no driver.
 */
#include "nvfp4sparse.h"

#include "block.h"

#include <stdlib.h>

PyDoc_STRVAR(
    sparse_gemm_doc,
    "sparse_gemm($module, a_vals, a_meta, a_scale, b_fp4, b_scale, out=None, *, alpha=1.0, "
    "out_dtype=None, stream=None, kernel=None)\n"
    "--\n\n"
    "C[m, n] = alpha * A[m, k] @ B[n, k].T, A 2:4 sparse NVFP4, B dense NVFP4.\n"
    "\n"
    "A and B are made by compress() and quantize():\n"
    "sparse_gemm(*compress(a), *quantize(b)). Tensors of any framework that speaks DLPack\n"
    "are taken as they are, all on one device: host memory or one CUDA device.\n"
    "\n"
    "a_vals   (m, k/4)   int8, uint8 or float4_e2m1fn_x2: two kept values per 4 columns\n"
    "a_meta   (m, k/4)   int8 or uint8: their columns, bits 0-1 and 2-3\n"
    "a_scale  (m, k/16)  int8, uint8 or float8_e4m3fn: one scale per 16 columns\n"
    "b_fp4    (n, k/2)   int8, uint8 or float4_e2m1fn_x2: even column in the low nibble\n"
    "b_scale  (n, k/16)  int8, uint8 or float8_e4m3fn\n"
    "\n"
    "k is a multiple of 16; m, n and k may be 0. Inputs have stride 1 in their last\n"
    "dimension, and any row stride and address. Bit 7 of a scale is ignored, 0x7F is NaN.\n"
    "\n"
    "out: where to write, (m, n) of bfloat16, float16 or float32, row- or column-major, not\n"
    "overlapping an input; it is returned. None: a new array of the framework of a_vals,\n"
    "or, for a framework that this package does not know, an object that exports DLPack.\n"
    "alpha: a number, or a float32 tensor of one element on the same device, which is read\n"
    "when the kernel runs.\n"
    "out_dtype: \"bfloat16\" (default), \"float16\" or \"float32\", or a dtype of that name.\n"
    "stream: None for the current stream of the framework of a_vals (PyTorch, CuPy; XLA's\n"
    "own for calls of JAX arrays alone, which jax.jit may trace; else the legacy default\n"
    "stream), an int handle, or an object with __cuda_stream__. CUDA only. The call queues\n"
    "one kernel and does not wait: keep the tensors' memory until the stream has run it.\n"
    "Unless it is given, the stream waits for other frameworks' current ones.\n"
    "kernel: the name of a row of kernels(), instead of the choice that plan() explains.\n"
    "The environment variable NVFP4SPARSE_KERNEL, read at import, does the same for calls on\n"
    "the kind of device that its kernel runs on.\n"
    "\n"
    "The sum is accumulated in float32 (exactly on the CPU) and rounded once. Gradients are\n"
    "not recorded; PyTorch's tensors that require them are refused. Under torch.compile the\n"
    "call becomes an operator of torch.ops.nvfp4sparse.\n"
    "\n"
    "Raises TypeError (no tensor, wrong dtype), ValueError (shape, stride, device, overlap,\n"
    "option), BufferError (DLPack export failed) or RuntimeError (CUDA), before anything is\n"
    "written.");

PyDoc_STRVAR(
    kernels_doc,
    "kernels($module, /)\n--\n\n"
    "The kernel table, most specific row first: a list of dicts. A problem gets the first\n"
    "row that fits it. Rows that stand together and have \"wave_ns\" count as one: the\n"
    "row with the least waves of blocks times wave_ns, the nanoseconds that one more wave\n"
    "takes at k = 2048 on an H200. A row with \"one_wave\" counts where its tiles are one\n"
    "wave, a \"persistent\" one where they are more, a row with \"pays_mk\" from that m * k\n"
    "on.\n"
    "kernel= asks only whether a row fits.\n"
    "\n"
    "Of a row: name, symbol, image, kind; what it takes: cc_min, cc_max (compute capability\n"
    "times 10), m_min, m_max, n_min, n_max, k_max, k_multiple, needs (\"aligned_16\",\n"
    "\"aligned_out\", \"aligned_scales\"); how it is launched: tile_m, tile_n, threads, cluster,\n"
    "persistent, one_wave, wave_ns (0: none), pays_mk (0: always), shared_bytes,\n"
    "a_box_rows (0: no TMA); when: what it is for; built: whether this build has its code.");

PyDoc_STRVAR(
    plan_doc,
    "plan($module, m, n, k, device=None, *, cc=None, aligned=True)\n--\n\n"
    "What a call of that size would run: a dict with kernel (a name, or None), why (for\n"
    "each row before it: what does not fit, or which row should be faster) and pinned\n"
    "(by NVFP4SPARSE_KERNEL); with a kernel also kind (\"cpu\" or \"cuda\"), and on a GPU\n"
    "cc, grid, threads, cluster and shared_bytes.\n"
    "\n"
    "device: \"cpu\", \"cuda\", \"cuda:N\", an int, or None for the first GPU, else the CPU. cc: a\n"
    "compute capability times 10 (90) in place of a device; no GPU is needed then, rows\n"
    "count that this build lacks, and a wave is 132 blocks, as on an H200. aligned:\n"
    "whether rows and addresses are. ValueError (sizes, device, cc), RuntimeError (no\n"
    "such device).");

PyDoc_STRVAR(cuda_info_doc,
             "cuda_info($module, /)\n--\n\n"
             "The CUDA driver and its devices: a dict with available, reason (why not, or None),\n"
             "driver (\"13.0\") and devices (dicts with id, name, cc, sm_count; id and error for\n"
             "one that does not open).");

PyDoc_STRVAR(build_info_doc,
             "build_info($module, /)\n--\n\n"
             "How this module was built: a dict with cuda (nvcc's version, or why there are no\n"
             "kernels), images (name to architectures) and limited_api.");

PyDoc_STRVAR(
    launch_floor_doc,
    "launch_floor($module, operands, out, *, blocks, stream=None)\n--\n\n"
    "Queue a kernel of `blocks` blocks that reads `operands` once and writes `out`: what the\n"
    "bench compares kernels with. Both are uint8 vectors on a GPU, address and length\n"
    "multiples of 16. 16-byte word j of out becomes the XOR of the words i of operands with\n"
    "i = j modulo 256 * blocks. ValueError, RuntimeError.");

PyDoc_STRVAR(time_launches_doc,
             "time_launches($module, arguments, calls, in_calls=False, /)\n--\n\n"
             "Nanoseconds of cuLaunchKernelEx alone (on the CPU: of the product), one number for\n"
             "each of `calls` launches of what sparse_gemm(*arguments) launches. in_calls: with\n"
             "all that a call does before its launch, untimed, before each; else once. ValueError\n"
             "(more than six arguments, calls), else as sparse_gemm().");

PyDoc_STRVAR(time_preparation_doc,
             "time_preparation($module, arguments, calls, /)\n--\n\n"
             "Nanoseconds of all that sparse_gemm(*arguments) does before its launch, and of the\n"
             "release of its operands, `calls` times. Nothing is computed. Errors as of\n"
             "time_launches().");

PyDoc_STRVAR(xla_handlers_doc,
             "xla_handlers($module, /)\n--\n\n"
             "The XLA custom calls behind nvfp4sparse.jax: a dict of platform to capsule.");

static PyMethodDef methods[] = {
    {"sparse_gemm", (PyCFunction)(void (*)(void))nvs_sparse_gemm, METH_FASTCALL | METH_KEYWORDS,
     sparse_gemm_doc},
    {"kernels", nvs_kernels_list, METH_NOARGS, kernels_doc},
    {"plan", (PyCFunction)(void (*)(void))nvs_plan, METH_VARARGS | METH_KEYWORDS, plan_doc},
    {"cuda_info", nvs_cuda_info, METH_NOARGS, cuda_info_doc},
    {"build_info", nvs_build_dict, METH_NOARGS, build_info_doc},
    {"launch_floor", (PyCFunction)(void (*)(void))nvs_launch_floor, METH_VARARGS | METH_KEYWORDS,
     launch_floor_doc},
    {"time_launches", nvs_time_launches, METH_VARARGS, time_launches_doc},
    {"time_preparation", nvs_time_preparation, METH_VARARGS, time_preparation_doc},
    {"xla_handlers", nvs_xla_handlers, METH_NOARGS, xla_handlers_doc},
    {NULL, NULL, 0, NULL},
};

int
nvs_raise_fault(const struct nvs_fault *fault)
{
    PyErr_Format(PyExc_RuntimeError, "sparse_gemm: %s", fault->text);
    return -1;
}

/* NVFP4SPARSE_KERNEL is read once, here. A wrong name must not keep the module from importing, so
 * calls complain about it. */
static int
read_pin(struct nvs_state *state)
{
    const char *name = getenv("NVFP4SPARSE_KERNEL");
    if (name == NULL || name[0] == '\0') {
        return 0;
    }
    state->pinned = nvs_find_kernel(name);
    if (state->pinned == NULL) {
        state->bad_pin = PyUnicode_DecodeFSDefault(name);
        return state->bad_pin ? 0 : -1;
    }
    return 0;
}

static int
module_exec(PyObject *module)
{
    struct nvs_state *state = PyModule_GetState(module);
    /* The frameworks do not support sub-interpreters, and none of this is tested in one. */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError, "nvfp4sparse does not support sub-interpreters");
        return -1;
    }
    for (int i = 0; i < NVS_ARGUMENTS; i++) {
        state->names[i] = PyUnicode_InternFromString(nvs_argument_names[i]);
        if (state->names[i] == NULL) {
            return -1;
        }
    }
    state->requires_grad = PyUnicode_InternFromString("requires_grad");
    if (state->requires_grad == NULL) {
        return -1;
    }
    state->exporter_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &nvs_exporter_spec,
                                                                    NULL);
    if (state->exporter_type == NULL || PyModule_AddType(module, state->exporter_type) < 0) {
        return -1;
    }
    return read_pin(state);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct nvs_state *state = PyModule_GetState(module);
    Py_VISIT(state->exporter_type);
    Py_VISIT(atomic_load(&state->frameworks));
    Py_VISIT(atomic_load(&state->cupy_facts));
    for (int i = 0; i < NVS_OUT_DTYPES; i++) {
        Py_VISIT(atomic_load(&state->torch_keywords[i]));
    }
    for (int i = 0; i < NVS_KNOWN_TYPES; i++) {
        struct nvs_known_type *known = atomic_load(&state->types[i]);
        if (known != NULL) {
            Py_VISIT(known->type);
        }
    }
    return 0;
}

static int
module_clear(PyObject *module)
{
    struct nvs_state *state = PyModule_GetState(module);
    for (int i = 0; i < NVS_ARGUMENTS; i++) {
        Py_CLEAR(state->names[i]);
    }
    Py_CLEAR(state->requires_grad);
    Py_CLEAR(state->exporter_type);
    Py_CLEAR(state->bad_pin);
    Py_XDECREF(atomic_exchange(&state->frameworks, NULL));
    Py_XDECREF(atomic_exchange(&state->cupy_facts, NULL));
    for (int i = 0; i < NVS_OUT_DTYPES; i++) {
        Py_XDECREF(atomic_exchange(&state->torch_keywords[i], NULL));
    }
    for (int i = 0; i < NVS_KNOWN_TYPES; i++) {
        struct nvs_known_type *known = atomic_exchange(&state->types[i], NULL);
        if (known != NULL) {
            Py_DECREF((PyObject *)known->type);
            free(known);
        }
    }
    return 0;
}

static void
module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "nvfp4sparse._C",
    .m_doc = "GEMM of 2:4 sparse NVFP4 with dense NVFP4, on the CPU and on CUDA devices.",
    .m_size = sizeof(struct nvs_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__C(void)
{
    return PyModuleDef_Init(&definition);
}
