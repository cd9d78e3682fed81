/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_info() and build_info(): what is here, for people and bug reports.
 */
#include "nvfp4sparse.h"

static PyObject *
device_dict(int id)
{
    struct nvs_device *device = NULL;
    struct nvs_fault fault;
    if (nvs_device_open(id, &device, &fault) < 0) {
        return Py_BuildValue("{si ss}", "id", id, "error", fault.text);
    }
    return Py_BuildValue("{si ss si si}", "id", id, "name", device->name, "cc", device->cc,
                         "sm_count", device->sm_count);
}

PyObject *
nvs_cuda_info(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct nvs_fault fault;
    int version = 0;
    int count = 0;
    PyObject *devices = PyList_New(0);
    if (devices == NULL) {
        return NULL;
    }
    if (nvs_device_count(&version, &count, &fault) < 0) {
        return Py_BuildValue("{sO ss sO sN}", "available", Py_False, "reason", fault.text, "driver",
                             Py_None, "devices", devices);
    }
    for (int id = 0; id < count; id++) {
        PyObject *device = device_dict(id);
        if (device == NULL || PyList_Append(devices, device) < 0) {
            Py_XDECREF(device);
            Py_DECREF(devices);
            return NULL;
        }
        Py_DECREF(device);
    }
    PyObject *driver = PyUnicode_FromFormat("%d.%d", version / 1000, version % 1000 / 10);
    if (driver == NULL) {
        Py_DECREF(devices);
        return NULL;
    }
    return Py_BuildValue("{sO sO sN sN}", "available", count > 0 ? Py_True : Py_False, "reason",
                         Py_None, "driver", driver, "devices", devices);
}

PyObject *
nvs_build_dict(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
#ifdef Py_LIMITED_API
    PyObject *limited_api = Py_True;
#else
    PyObject *limited_api = Py_False;
#endif
    PyObject *images = PyDict_New();
    if (images == NULL) {
        return NULL;
    }
    for (int i = 0; i < nvs_image_count; i++) {
        PyObject *archs = PyUnicode_FromString(nvs_images[i].archs);
        if (archs == NULL || PyDict_SetItemString(images, nvs_images[i].name, archs) < 0) {
            Py_XDECREF(archs);
            Py_DECREF(images);
            return NULL;
        }
        Py_DECREF(archs);
    }
    return Py_BuildValue("{ss sN sO}", "cuda", nvs_build_info, "images", images, "limited_api",
                         limited_api);
}
