/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tensor's type offers: the DLPack C exchange API, and the framework it belongs to. Answers
 * are kept for the first few types that have one, so that a call finds them by comparing pointers.
 */
#include "nvfp4sparse.h"

#include "cupy_array.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *package;
    enum nvs_framework framework;
} packages[] = {
    {"torch", NVS_FRAMEWORK_TORCH}, {"cupy", NVS_FRAMEWORK_CUPY},   {"jax", NVS_FRAMEWORK_JAX},
    {"jaxlib", NVS_FRAMEWORK_JAX},  {"numpy", NVS_FRAMEWORK_NUMPY},
};

/* The framework whose package defines a class of that module name ("torch.nn.parameter"). */
static enum nvs_framework
framework_of_module(PyObject *module_name)
{
    Py_ssize_t size = 0;
    const char *text = PyUnicode_Check(module_name) ? PyUnicode_AsUTF8AndSize(module_name, &size)
                                                    : NULL;
    if (text == NULL) {
        PyErr_Clear();
        return NVS_FRAMEWORK_OTHER;
    }
    size_t length = strcspn(text, ".");
    for (size_t i = 0; i < sizeof(packages) / sizeof(packages[0]); i++) {
        if (strlen(packages[i].package) == length &&
            strncmp(packages[i].package, text, length) == 0) {
            return packages[i].framework;
        }
    }
    return NVS_FRAMEWORK_OTHER;
}

/* A subclass defined elsewhere belongs to the framework of its first base that has one. */
static int
find_framework(PyTypeObject *type, enum nvs_framework *framework)
{
    PyObject *mro = PyObject_GetAttrString((PyObject *)type, "__mro__");
    *framework = NVS_FRAMEWORK_OTHER;
    if (mro == NULL || !PyTuple_Check(mro)) {
        Py_XDECREF(mro);
        return mro == NULL ? -1 : 0;
    }
    Py_ssize_t count = PyTuple_Size(mro);
    for (Py_ssize_t i = 0; i < count && *framework == NVS_FRAMEWORK_OTHER; i++) {
        PyObject *module_name = PyObject_GetAttrString(PyTuple_GetItem(mro, i), "__module__");
        if (module_name == NULL) {
            PyErr_Clear();
            continue;
        }
        *framework = framework_of_module(module_name);
        Py_DECREF(module_name);
    }
    Py_DECREF(mro);
    return 0;
}

/* The exchange API of major version 1, or NULL if the type has none that we can read. */
static int
find_exchange_api(PyTypeObject *type, const DLPackExchangeAPI **api)
{
    *api = NULL;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, DLPACK_EXCHANGE_API_ATTRIBUTE);
    if (capsule == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    if (PyCapsule_IsValid(capsule, DLPACK_EXCHANGE_API_CAPSULE)) {
        *api = PyCapsule_GetPointer(capsule, DLPACK_EXCHANGE_API_CAPSULE);
        while (*api != NULL && (*api)->version.major != DLPACK_MAJOR_VERSION) {
            *api = (*api)->prev_api;
        }
    }
    Py_DECREF(capsule);
    if (*api != NULL && (*api)->dltensor_from_py_object_no_sync == NULL &&
        (*api)->managed_tensor_from_py_object_no_sync == NULL) {
        *api = NULL;
    }
    return 0;
}

/* Keeps an answer in the first free place. It stays there until the module goes, since other
 * threads may be reading it; when all places are taken, later types are looked up each time. */
static void
remember(struct nvs_state *state, PyTypeObject *type, const struct nvs_type_info *info)
{
    struct nvs_known_type *known = malloc(sizeof(*known));
    if (known == NULL) {
        return;
    }
    known->type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    known->info = *info;
    for (int i = 0; i < NVS_KNOWN_TYPES; i++) {
        struct nvs_known_type *expected = NULL;
        if (atomic_compare_exchange_strong(&state->types[i], &expected, known)) {
            return;
        }
        if (expected->type == type) {
            break; /* another thread was first */
        }
    }
    Py_DECREF((PyObject *)type);
    free(known);
}

int
nvs_type_info(struct nvs_state *state, PyTypeObject *type, struct nvs_type_info *info)
{
    for (int i = 0; i < NVS_KNOWN_TYPES; i++) {
        struct nvs_known_type *known = atomic_load_explicit(&state->types[i], memory_order_acquire);
        if (known == NULL) {
            break;
        }
        if (known->type == type) {
            *info = known->info;
            return 0;
        }
    }
    info->is_cupy_array = false;
    if (find_exchange_api(type, &info->api) < 0 || find_framework(type, &info->framework) < 0 ||
        (info->framework == NVS_FRAMEWORK_CUPY &&
         nvs_cupy_find(state, type, &info->is_cupy_array) < 0)) {
        return -1;
    }
    /* A type without an answer may get one later: PyTorch 2.4 to 2.9 when an add-on is imported. */
    if (info->api != NULL || info->framework == NVS_FRAMEWORK_CUPY ||
        info->framework == NVS_FRAMEWORK_JAX || info->framework == NVS_FRAMEWORK_NUMPY) {
        remember(state, type, info);
    }
    return 0;
}

const char *
nvs_framework_name(enum nvs_framework framework)
{
    static const char *const names[] = {
        [NVS_FRAMEWORK_OTHER] = "other", [NVS_FRAMEWORK_TORCH] = "torch",
        [NVS_FRAMEWORK_CUPY] = "cupy",   [NVS_FRAMEWORK_JAX] = "jax",
        [NVS_FRAMEWORK_NUMPY] = "numpy",
    };
    return names[framework];
}
