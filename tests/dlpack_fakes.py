# SPDX-License-Identifier: Apache-2.0
"""DLPack producers built with ctypes, which say what a test wants and count what becomes of it."""

import ctypes
from ctypes import (
    POINTER,
    PYFUNCTYPE,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    py_object,
)

import numpy as np

CPU, CUDA, CUDA_HOST, ROCM, CUDA_MANAGED = 1, 2, 3, 10, 13
READ_ONLY, PADDED = 1, 4

DTYPES = {
    "int8": (0, 8, 1),
    "uint8": (1, 8, 1),
    "uint16": (1, 16, 1),
    "float16": (2, 16, 1),
    "float32": (2, 32, 1),
    "float64": (2, 64, 1),
    "bfloat16": (4, 16, 1),
    "bool": (6, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float4_e2m1fn": (17, 4, 1),
    "float4_e2m1fn_x2": (17, 4, 2),
}


class DLTensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class Legacy(Structure):
    _fields_ = (("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p))


class Versioned(Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    )


class ExchangeAPI(Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("previous", c_void_p),
        ("allocator", c_void_p),
        ("managed_from_object", c_void_p),
        ("managed_to_object", c_void_p),
        ("tensor_from_object", c_void_p),
        ("current_work_stream", c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = py_object, (c_void_p, c_char_p, c_void_p)
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = c_char_p, (py_object,)

_Deleter = PYFUNCTYPE(None, c_void_p)
_NAMES = {"legacy": b"dltensor", "versioned": b"dltensor_versioned"}


def capsule_name(capsule):
    return _capsule_name(capsule).decode()


class Producer:
    """Exports a NumPy array, with any of its facts replaced.

    style: "versioned" and "legacy" answer so whatever is asked for; "before-1.0" is legacy and
    does not know max_version. shape, strides: None for a NULL pointer. `deleted` counts calls of
    the deleter, `asked` holds the keywords of each __dlpack__ call, `capsules` what it returned.
    """

    def __init__(self, array, style="versioned", **facts):
        self.array, self.style = array, style
        self.device = facts.pop("device", (CPU, 0))
        self.asked, self.capsules, self.deleted = [], [], 0
        self.on_delete = facts.pop("on_delete", None)
        self.version = facts.pop("version", (1, 3))
        self.flags = facts.pop("flags", 0)
        self.has_deleter = facts.pop("has_deleter", True)
        self.facts = facts
        self._deleter = _Deleter(self._delete)
        self._alive = []

    def _delete(self, _):
        self.deleted += 1
        if self.on_delete:
            self.on_delete()

    def tensor(self):
        """A DLTensor that is good while this object lives."""
        facts = dict(self.facts)
        array = self.array
        dtype = facts.pop("dtype", array.dtype.name)
        code, bits, lanes = DTYPES.get(dtype, dtype)
        shape = facts.pop("shape", array.shape)
        strides = facts.pop("strides", tuple(s // array.itemsize for s in array.strides))
        ndim = facts.pop("ndim", len(shape) if shape is not None else 2)
        tensor = DLTensor(
            data=facts.pop("data", array.ctypes.data),
            device_type=self.device[0],
            device_id=self.device[1],
            ndim=ndim,
            code=code,
            bits=bits,
            lanes=lanes,
            shape=self._int64s(shape),
            strides=self._int64s(strides),
            byte_offset=facts.pop("byte_offset", 0),
        )
        assert not facts
        return tensor

    def _int64s(self, values):
        if values is None:
            return None
        array = (c_int64 * max(1, len(values)))(*values)
        self._alive.append(array)
        return cast(array, POINTER(c_int64))

    def managed(self):
        """The owning struct, of the kind that `style` names."""
        deleter = cast(self._deleter, c_void_p) if self.has_deleter else None
        if self.style == "versioned":
            managed = Versioned(*self.version, None, deleter, self.flags, self.tensor())
        else:
            managed = Legacy(self.tensor(), None, deleter)
        self._alive.append(managed)
        return managed

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        if self.style == "before-1.0" and "max_version" in keywords:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        name = _NAMES.get(self.style, b"dltensor")
        capsule = _new_capsule(ctypes.addressof(self.managed()), name, None)
        self.capsules.append(capsule)
        return capsule


def operands_as(producer, operands, **facts):
    """The five operands of a product, each behind a producer."""
    return [producer(operand, **facts) for operand in operands]


_TensorFromObject = PYFUNCTYPE(c_int, py_object, POINTER(DLTensor))
_ManagedFromObject = PYFUNCTYPE(c_int, py_object, POINTER(c_void_p))
_CurrentWorkStream = PYFUNCTYPE(c_int, c_int, c_int32, POINTER(c_void_p))


def exchange_type(
    *, owning=False, versions=((1, 3),), stream=None, capsule=b"dlpack_exchange_api", status=0
):
    """A subclass of Producer with a C exchange API, which alone it can be imported by.

    owning: only the owning conversion exists. versions: of the struct and of those behind its
    prev_api; the functions stand in the last one. stream: what current_work_stream() reports;
    None for no such function. status: what the conversion returns, without an exception if not 0.
    """

    def tensor_from_object(obj, out):
        obj.conversions += 1
        out[0] = obj.tensor()
        return status

    def managed_from_object(obj, out):
        obj.conversions += 1
        out[0] = ctypes.addressof(obj.managed())
        return status

    def current_work_stream(device_type, device_id, out):
        Exchanging.stream_queries.append((device_type, device_id))
        out[0] = stream
        return 0

    functions = [
        _TensorFromObject(tensor_from_object),
        _ManagedFromObject(managed_from_object),
        _CurrentWorkStream(current_work_stream),
    ]
    pointers = [cast(function, c_void_p) for function in functions]
    api = ExchangeAPI(
        *versions[-1],
        managed_from_object=pointers[1],
        tensor_from_object=None if owning else pointers[0],
        current_work_stream=None if stream is None else pointers[2],
    )
    for version in reversed(versions[:-1]):
        functions.append(api)
        api = ExchangeAPI(*version, previous=cast(byref(api), c_void_p))
    functions.append(api)

    class Exchanging(Producer):
        conversions = 0  # of one object
        stream_queries = []  # noqa: RUF012
        keep = functions
        __dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(api), capsule, None)

    return Exchanging


def failing_exchange_type():
    """A type whose conversion sets TypeError: PyObject_Size(), which needs a __len__."""
    address = cast(ctypes.pythonapi.PyObject_Size, c_void_p)
    api = ExchangeAPI(major=1, minor=3, tensor_from_object=address)

    class Failing(Producer):
        keep = api
        __dlpack_c_exchange_api__ = _new_capsule(
            ctypes.addressof(api), b"dlpack_exchange_api", None
        )

    return Failing


def padded(array, left, right, dtype=np.uint8):
    """A view of the same elements in the middle of wider rows."""
    wide = np.zeros((array.shape[0], left + array.shape[1] + right), dtype)
    view = wide[:, left : left + array.shape[1]]
    view[...] = array
    return view


class Foreign:
    """A tensor of a framework that nobody knows."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None):
        return self.tensor.__dlpack__(stream=stream)
