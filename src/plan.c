/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels() and plan(): the table and its choice, for people. plan() asks the same functions as a
 * call does, and needs no GPU where a compute capability is given.
 */
#include "nvfp4sparse.h"

#include "nvfp4.h"

#include <stdlib.h>
#include <string.h>

static PyObject *
needs_list(unsigned needs)
{
    PyObject *list = PyList_New(0);
    static const struct {
        enum nvs_needs need;
        const char *name;
    } names[] = {
        {NVS_NEEDS_ALIGNED_16, "aligned_16"},
        {NVS_NEEDS_ALIGNED_OUT, "aligned_out"},
        {NVS_NEEDS_ALIGNED_SCALES, "aligned_scales"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && list != NULL; i++) {
        PyObject *name = needs & names[i].need ? PyUnicode_FromString(names[i].name) : NULL;
        if (needs & names[i].need && (name == NULL || PyList_Append(list, name) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *
kernel_dict(const struct nvs_kernel *kernel)
{
    PyObject *needs = needs_list(kernel->needs);
    if (needs == NULL) {
        return NULL;
    }
    bool is_built = kernel->kind == NVS_KIND_CPU || nvs_find_image(kernel->image) != NULL;
    return Py_BuildValue(
        "{ss sz sz ss si si sL sL sL sL sL si sN si si si si sO sO si sL si si ss sO}", "name",
        kernel->name, "symbol", kernel->symbol, "image", kernel->image, "kind",
        kernel->kind == NVS_KIND_CPU ? "cpu" : "cuda", "cc_min", kernel->cc_min, "cc_max",
        kernel->cc_max, "m_min", (long long)kernel->m_min, "m_max", (long long)kernel->m_max,
        "n_min", (long long)kernel->n_min, "n_max", (long long)kernel->n_max, "k_max",
        (long long)kernel->k_max, "k_multiple", kernel->k_multiple, "needs", needs, "tile_m",
        kernel->tile_m, "tile_n", kernel->tile_n, "threads", kernel->threads, "cluster",
        kernel->cluster, "one_wave", kernel->one_wave ? Py_True : Py_False, "persistent",
        kernel->persistent ? Py_True : Py_False, "wave_ns", kernel->wave_ns, "pays_mk",
        (long long)kernel->pays_mk, "shared_bytes", kernel->shared_bytes, "a_box_rows",
        kernel->a_box_rows, "when", kernel->when, "built", is_built ? Py_True : Py_False);
}

PyObject *
nvs_kernels_list(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    for (int i = 0; i < nvs_kernel_count && list != NULL; i++) {
        PyObject *row = kernel_dict(&nvs_kernels[i]);
        if (row == NULL || PyList_Append(list, row) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

static int
parse_device_word(const char *word, int *id)
{
    if (strcmp(word, "cpu") == 0) {
        *id = -1;
        return 0;
    }
    if (strcmp(word, "cuda") == 0) {
        *id = 0;
        return 0;
    }
    if (strncmp(word, "cuda:", 5) != 0 || word[5] < '0' || word[5] > '9') {
        return -1;
    }
    char *end = NULL;
    long value = strtol(word + 5, &end, 10);
    *id = (int)value;
    return *end == '\0' && value == (int)value ? 0 : -1;
}

/* A device's number from an int, "cuda:1", "cuda", or what prints so (torch.device); -1 for
 * "cpu". */
static int
parse_device(PyObject *object, int *id)
{
    if (PyLong_Check(object)) {
        long value = PyLong_AsLong(object);
        if (value == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (value < 0 || value != (int)value) {
            PyErr_Format(PyExc_ValueError, "plan: device must be 0 or more, got %R", object);
            return -1;
        }
        *id = (int)value;
        return 0;
    }
    PyObject *text = PyObject_Str(object);
    const char *word = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int result = word ? parse_device_word(word, id) : -1;
    if (word != NULL && result < 0) {
        PyErr_Format(PyExc_ValueError,
                     "plan: device must be \"cpu\", \"cuda\", \"cuda:N\", an int or None, got %R",
                     object);
    }
    Py_XDECREF(text);
    return result;
}

/* Fills kind, cc, sm_count and built of the problem. */
static int
place_problem(PyObject *device, PyObject *cc, struct nvs_problem *problem)
{
    struct nvs_fault fault;
    struct nvs_device *opened = NULL;
    int id = 0;
    if (device != Py_None && parse_device(device, &id) < 0) {
        return -1;
    }
    problem->kind = NVS_KIND_CUDA;
    if (cc != Py_None) {
        long value = PyLong_AsLong(cc);
        if (value == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (value < 10 || value > 9999 || id < 0) {
            PyErr_Format(PyExc_ValueError,
                         id < 0 ? "plan: cc is for GPUs, leave it away for the CPU (got %R)"
                                : "plan: cc must be a compute capability times 10 (90), got %R",
                         cc);
            return -1;
        }
        problem->cc = (int)value;
        return 0;
    }
    int version = 0;
    int count = 0;
    if (id < 0 ||
        (device == Py_None && (nvs_device_count(&version, &count, &fault) < 0 || count == 0))) {
        problem->kind = NVS_KIND_CPU;
        return 0;
    }
    if (nvs_device_open(id, &opened, &fault) < 0) {
        PyErr_Format(PyExc_RuntimeError, "plan: %s", fault.text);
        return -1;
    }
    problem->cc = opened->cc;
    problem->sm_count = opened->sm_count;
    problem->built = true;
    return 0;
}

/* The row that a call would take, and in `why` what is against each row above that. */
static const struct nvs_kernel *
choose(const struct nvs_state *state, const struct nvs_problem *problem, PyObject *why,
       bool *pinned)
{
    *pinned = state->pinned != NULL && state->pinned->kind == problem->kind;
    for (int i = 0; i < nvs_kernel_count; i++) {
        const struct nvs_kernel *kernel = &nvs_kernels[i];
        const char *against = *pinned ? nvs_misfit(kernel, problem)
                                      : nvs_reason_against(kernel, problem);
        if (against == NULL && (!*pinned || kernel == state->pinned)) {
            return kernel;
        }
        PyObject *phrase = PyUnicode_FromString(against ? against
                                                        : "NVFP4SPARSE_KERNEL names another");
        if (phrase == NULL || PyDict_SetItemString(why, kernel->name, phrase) < 0) {
            Py_XDECREF(phrase);
            return NULL;
        }
        Py_DECREF(phrase);
    }
    return NULL;
}

static PyObject *
planned_row(const struct nvs_kernel *kernel, const struct nvs_problem *problem)
{
    if (kernel->kind == NVS_KIND_CPU) {
        return Py_BuildValue("{ss ss}", "kernel", kernel->name, "kind", "cpu");
    }
    struct nvs_grid grid = nvs_grid(kernel, problem);
    return Py_BuildValue("{ss ss si s(III) si si si}", "kernel", kernel->name, "kind", "cuda", "cc",
                         problem->cc, "grid", grid.x, grid.y, grid.z, "threads", kernel->threads,
                         "cluster", kernel->cluster, "shared_bytes", kernel->shared_bytes);
}

PyObject *
nvs_plan(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"m", "n", "k", "device", "cc", "aligned", NULL};
    long long m, n, k;
    PyObject *device = Py_None;
    PyObject *cc = Py_None;
    int aligned = 1;
    bool pinned = false;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "LLL|O$Op:plan", names, &m, &n, &k,
                                     &device, &cc, &aligned)) {
        return NULL;
    }
    if (m < 0 || n < 0 || k < 0 || k % NVS_BLOCK != 0) {
        PyErr_Format(PyExc_ValueError,
                     "plan: m, n and k must be 0 or more and k a multiple of %d, got %lld, %lld, "
                     "%lld",
                     (int)NVS_BLOCK, m, n, k);
        return NULL;
    }
    struct nvs_problem problem = {.m = m, .n = n, .k = k, .aligned = aligned ? NVS_NEEDS_ALL : 0};
    if (place_problem(device, cc, &problem) < 0) {
        return NULL;
    }
    PyObject *why = PyDict_New();
    if (why == NULL) {
        return NULL;
    }
    const struct nvs_kernel *kernel = choose(PyModule_GetState(module), &problem, why, &pinned);
    if (PyErr_Occurred()) {
        Py_DECREF(why);
        return NULL;
    }
    PyObject *row = kernel == NULL ? Py_BuildValue("{sz}", "kernel", NULL)
                                   : planned_row(kernel, &problem);
    if (row == NULL || PyDict_SetItemString(row, "why", why) < 0 ||
        PyDict_SetItemString(row, "pinned", pinned ? Py_True : Py_False) < 0) {
        Py_CLEAR(row);
    }
    Py_DECREF(why);
    return row;
}
