/* SPDX-License-Identifier: Apache-2.0
 *
 * nvfp4sparse._C.Result: a result for callers whose framework we cannot allocate in. A Python
 * object around a block of ours that speaks DLPack, versioned and legacy.
 */
#include "block.h"

typedef struct {
    PyObject_HEAD struct nvs_block *block;
} Exporter;

PyObject *
nvs_exporter_new(PyTypeObject *type, const struct nvs_call *call)
{
    struct nvs_block *block = nvs_block_new(call);
    if (block == NULL) {
        return NULL;
    }
    Exporter *self = PyObject_New(Exporter, type);
    if (self == NULL) {
        nvs_block_let_go(block);
        return NULL;
    }
    self->block = block;
    return (PyObject *)self;
}

int
nvs_exporter_record(PyObject *exporter, void *stream)
{
    struct nvs_block *block = ((Exporter *)exporter)->block;
    struct nvs_fault fault;
    if (block->device == NULL) {
        return 0;
    }
    if (nvs_memory_record(block->device, &block->memory, stream, &fault) < 0) {
        return nvs_raise_fault(&fault);
    }
    block->recorded = true;
    return 0;
}

/* Lets the consumer's stream wait for the result. */
static int
order_stream(struct nvs_block *block, PyObject *stream)
{
    if (block->tensor.device.device_type == kDLCPU) {
        if (stream != Py_None) {
            PyErr_Format(PyExc_ValueError,
                         "Result.__dlpack__: stream must be None in host memory, got %R", stream);
            return -1;
        }
        return 0;
    }
    Py_ssize_t handle = 1; /* None: the legacy default stream */
    if (stream != Py_None) {
        handle = PyLong_AsSsize_t(stream);
        if (handle == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (handle == 0 || handle < -1) {
            PyErr_Format(PyExc_ValueError,
                         "Result.__dlpack__: stream must be -1, 1, 2 or a stream's address, got %R",
                         stream);
            return -1;
        }
    }
    struct nvs_fault fault;
    if (handle != -1 && block->recorded &&
        nvs_memory_wait(block->device, &block->memory, (void *)handle, &fault) < 0) {
        return nvs_raise_fault(&fault);
    }
    return 0;
}

static int
two_ints(PyObject *pair, const char *name, int *first, int *second)
{
    if (!PyTuple_Check(pair)) {
        PyErr_Format(PyExc_TypeError, "Result.__dlpack__: %s must be a tuple, got %R", name, pair);
        return -1;
    }
    return PyArg_ParseTuple(pair, "ii", first, second) ? 0 : -1;
}

static PyObject *
py_dlpack(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    struct nvs_block *block = ((Exporter *)self)->block;
    PyObject *stream = Py_None;
    PyObject *max_version = Py_None;
    PyObject *dl_device = Py_None;
    PyObject *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|$OOOO:__dlpack__", names, &stream,
                                     &max_version, &dl_device, &copy)) {
        return NULL;
    }
    DLDevice device = block->tensor.device;
    if (dl_device != Py_None) {
        int type = 0;
        int id = 0;
        if (two_ints(dl_device, "dl_device", &type, &id) < 0) {
            return NULL;
        }
        if (type != device.device_type || id != device.device_id) {
            PyErr_SetString(PyExc_BufferError, "Result.__dlpack__: cannot copy to another device");
            return NULL;
        }
    }
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "Result.__dlpack__: cannot copy");
        return NULL;
    }
    int major = 0;
    int minor = 0;
    if (max_version != Py_None && two_ints(max_version, "max_version", &major, &minor) < 0) {
        return NULL;
    }
    if (order_stream(block, stream) < 0) {
        return NULL;
    }
    return nvs_block_export(block, major >= DLPACK_MAJOR_VERSION);
}

static PyObject *
py_dlpack_device(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    DLDevice device = ((Exporter *)self)->block->tensor.device;
    return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}

static PyObject *
get_shape(PyObject *self, void *Py_UNUSED(closure))
{
    const int64_t *shape = ((Exporter *)self)->block->shape;
    return Py_BuildValue("(LL)", (long long)shape[0], (long long)shape[1]);
}

static PyObject *
py_repr(PyObject *self)
{
    const DLTensor *tensor = &((Exporter *)self)->block->tensor;
    char shape[NVS_TEXT_SIZE];
    char dtype[NVS_TEXT_SIZE];
    char device[NVS_TEXT_SIZE];
    nvs_shape_text(tensor->shape, tensor->ndim, shape);
    nvs_dtype_text(tensor->dtype, dtype);
    nvs_device_text(tensor->device, device);
    return PyUnicode_FromFormat("<nvfp4sparse Result %s %s on %s, take it with from_dlpack()>",
                                dtype, shape, device);
}

static void
dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nvs_block_let_go(((Exporter *)self)->block);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))py_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule: versioned if max_version is (1, 0) or more, else legacy."},
    {"__dlpack_device__", py_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\nDLPack's (device type, device id)."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"shape", get_shape, NULL, "(m, n)", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A result of sparse_gemm() for a framework that it does not know.\n\n"
                "Take it into yours with from_dlpack(). Freeing it waits for the device."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_repr, py_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec nvs_exporter_spec = {
    .name = "nvfp4sparse._C.Result",
    .basicsize = sizeof(Exporter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
