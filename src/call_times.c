/* SPDX-License-Identifier: Apache-2.0
 *
 * time_launches() and time_preparation(): what a call of sparse_gemm() is made of, for the bench's
 * --host. Both take the positional arguments of a call as a tuple and a number of calls, and return
 * the nanoseconds of each. They run the very stages that gemm.c runs.
 */
#define _POSIX_C_SOURCE 200809L

#include "nvfp4sparse.h"

#include "gemm_cpu.h"

#include <stdlib.h>

enum {
    MAX_CALLS = 1 << 20,
};

struct timing {
    PyObject *arguments[NVS_POSITIONAL]; /* borrowed */
    Py_ssize_t count;
    int calls;
    int in_calls; /* prepare anew before each launch */
    int64_t *nanoseconds;
};

static int
parse(PyObject *arguments, const char *format, struct timing *timing)
{
    PyObject *tuple = NULL;
    if (!PyArg_ParseTuple(arguments, format, &PyTuple_Type, &tuple, &timing->calls,
                          &timing->in_calls)) {
        return -1;
    }
    timing->count = PyTuple_Size(tuple);
    if (timing->count > NVS_POSITIONAL || timing->calls < 1 || timing->calls > MAX_CALLS) {
        PyErr_Format(PyExc_ValueError, "at most %d arguments and 1 to %d calls",
                     (int)NVS_POSITIONAL, (int)MAX_CALLS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < timing->count; i++) {
        timing->arguments[i] = PyTuple_GetItem(tuple, i);
    }
    timing->nanoseconds = calloc((size_t)timing->calls, sizeof(*timing->nanoseconds));
    if (timing->nanoseconds == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* The list of times, or NULL if `status` says that there are none; frees them. */
static PyObject *
finish(struct timing *timing, int status)
{
    PyObject *list = status == 0 ? PyList_New(timing->calls) : NULL;
    for (int i = 0; list != NULL && i < timing->calls; i++) {
        PyObject *number = PyLong_FromLongLong(timing->nanoseconds[i]);
        if (number == NULL || PyList_SetItem(list, i, number) < 0) {
            Py_CLEAR(list);
        }
    }
    free(timing->nanoseconds);
    return list;
}

static int
prepare(struct nvs_state *state, struct nvs_call *call, const struct timing *timing, PyObject **out)
{
    *out = NULL;
    nvs_clear(call);
    return nvs_parse(state, call, timing->arguments, timing->count, NULL) < 0
               ? -1
               : nvs_prepare(state, call, out);
}

static int
time_launch(struct nvs_call *call, int64_t *nanoseconds)
{
    struct nvs_fault fault;
    if (call->problem.kind == NVS_KIND_CPU) {
        int64_t begin = nvs_now();
        if (nvs_gemm_cpu(&call->args, 0) < 0) {
            PyErr_NoMemory();
            return -1;
        }
        *nanoseconds = nvs_now() - begin;
        return 0;
    }
    int result;
    Py_BEGIN_ALLOW_THREADS result = nvs_device_time_launch(call->device, call->kernel, call->grid,
                                                           call->stream.handle, &call->args,
                                                           nanoseconds, &fault);
    Py_END_ALLOW_THREADS return result < 0 ? nvs_raise_fault(&fault) : 0;
}

PyObject *
nvs_time_launches(PyObject *module, PyObject *arguments)
{
    struct timing timing = {.nanoseconds = NULL};
    int status = parse(arguments, "O!i|p:time_launches", &timing);
    for (int i = 0; i < timing.calls && status == 0;) {
        struct nvs_call call;
        PyObject *out = NULL;
        status = prepare(PyModule_GetState(module), &call, &timing, &out);
        if (status == 0 && call.kernel == NULL) {
            PyErr_SetString(PyExc_ValueError, "time_launches: there is nothing to compute");
            status = -1;
        }
        do {
            status = status == 0 ? time_launch(&call, &timing.nanoseconds[i++]) : -1;
        } while (!timing.in_calls && i < timing.calls && status == 0);
        nvs_release(&call);
        Py_XDECREF(out);
    }
    return finish(&timing, status);
}

PyObject *
nvs_time_preparation(PyObject *module, PyObject *arguments)
{
    struct timing timing = {.nanoseconds = NULL};
    int status = parse(arguments, "O!i:time_preparation", &timing);
    for (int i = 0; i < timing.calls && status == 0; i++) {
        int64_t begin = nvs_now();
        struct nvs_call call;
        PyObject *out = NULL;
        status = prepare(PyModule_GetState(module), &call, &timing, &out);
        nvs_release(&call);
        timing.nanoseconds[i] = nvs_now() - begin;
        Py_XDECREF(out);
    }
    return finish(&timing, status);
}
