# SPDX-License-Identifier: Apache-2.0
"""Calls a custom call of XLA as XLA would, with ctypes: for machines without JAX or a GPU.

The structs are typed from XLA's xla/ffi/api/c_api.h, by hand and apart from src/xla_ffi.h.
"""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_void_p, cast

import numpy as np

NAME = b"xla._CUSTOM_CALL_TARGET"
TYPES = {"int8": 2, "uint8": 6, "float16": 10, "float32": 11, "bfloat16": 16, "float8_e4m3fn": 20}
METADATA, EXECUTE, BUFFER, SCALAR, STRING = 1, 3, 1, 3, 4

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)


class Head(Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extensions", c_void_p))


class Version(Head):
    _fields_ = (("major", c_int), ("minor", c_int))


class Metadata(Structure):
    _fields_ = (("size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32))


class Extension(Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", c_void_p),
    )


class Api(Head):
    _fields_ = (
        ("version", Version),
        ("internal", c_void_p),
        ("functions", c_void_p * 18),  # in order; those below by their place
    )


ERROR_CREATE, STREAM_GET, ORDINAL_GET = 0, 4, 17


class ErrorArguments(Head):
    _fields_ = (("message", c_char_p), ("code", c_int))


class StreamArguments(Head):
    _fields_ = (("context", c_void_p), ("stream", c_void_p))


class OrdinalArguments(Head):
    _fields_ = (("context", c_void_p), ("ordinal", ctypes.c_int32))


class Buffer(Head):
    _fields_ = (("type", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))


class Buffers(Head):
    _fields_ = (("size", c_int64), ("kinds", POINTER(c_int)), ("values", POINTER(c_void_p)))


class Text(Structure):
    _fields_ = (("text", c_char_p), ("size", ctypes.c_size_t))


class Scalar(Structure):
    _fields_ = (("type", c_int), ("value", c_void_p))


class Attributes(Head):
    _fields_ = (
        ("size", c_int64),
        ("kinds", POINTER(c_int)),
        ("names", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
    )


class Frame(Head):
    _fields_ = (
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", Buffers),
        ("results", Buffers),
        ("attributes", Attributes),
        ("future", c_void_p),
    )


class Call:
    """A handler out of its capsule; `stream`, `device` and `struct_size` are what XLA says."""

    MINOR = 3

    def __init__(self, capsule, stream, device):
        self.handler = CFUNCTYPE(c_void_p, c_void_p)(_pointer(capsule, NAME))
        self.stream, self.device = stream, device
        self.struct_size = ctypes.sizeof(Api)
        self.message = None
        self._functions = {
            ERROR_CREATE: CFUNCTYPE(c_void_p, POINTER(ErrorArguments))(self._error),
            STREAM_GET: CFUNCTYPE(c_void_p, POINTER(StreamArguments))(self._stream),
            ORDINAL_GET: CFUNCTYPE(c_void_p, POINTER(OrdinalArguments))(self._ordinal),
        }

    def _error(self, arguments):
        self.message = arguments[0].message.decode()
        return 1

    def _stream(self, arguments):
        arguments[0].stream = self.stream
        return None

    def _ordinal(self, arguments):
        arguments[0].ordinal = self.device
        return None

    def _api(self):
        api = Api(self.struct_size, None, Version(24, None, 0, self.MINOR), None)
        for place, function in self._functions.items():
            api.functions[place] = cast(function, c_void_p)
        return api

    def metadata(self):
        """What the handler says of itself: (major, minor, traits)."""
        metadata = Metadata(size=ctypes.sizeof(Metadata))
        extension = Extension(ctypes.sizeof(Extension), METADATA, None, ctypes.addressof(metadata))
        api = self._api()
        frame = Frame(api=ctypes.addressof(api), extensions=ctypes.addressof(extension))
        assert self.handler(byref(frame)) is None
        return metadata.version.major, metadata.version.minor, metadata.traits

    def run(self, operands, out, stage=EXECUTE, alpha=1.0, kernel=""):
        """Call the handler; None, or the message of its error."""
        value, text = ctypes.c_float(alpha or 0), Text(kernel.encode(), len(kernel))
        scalar = Scalar(TYPES["float32"], ctypes.addressof(value))
        attributes = [("kernel", STRING, text)]
        if alpha is not None:
            attributes.insert(0, ("alpha", SCALAR, scalar))
        names = [Text(name.encode(), len(name)) for name, _, _ in attributes]
        keep = [_buffer(array) for array in (*operands, out)]
        api = self._api()
        frame = Frame(
            api=ctypes.addressof(api),
            stage=stage,
            arguments=_buffers(keep[:-1]),
            results=_buffers(keep[-1:]),
            attributes=Attributes(
                size=len(attributes),
                kinds=(c_int * 2)(*(kind for _, kind, _ in attributes)),
                names=_addresses(names),
                values=_addresses([value for _, _, value in attributes]),
            ),
        )
        self.message = None
        failed = self.handler(byref(frame)) is not None
        assert failed == (self.message is not None)
        return self.message


def _buffer(array):
    assert array.flags.c_contiguous
    dims = (c_int64 * max(1, array.ndim))(*array.shape)
    kind = TYPES[np.dtype(array.dtype).name]
    return Buffer(type=kind, data=array.ctypes.data, rank=array.ndim, dims=dims)


def _addresses(structs):
    return (c_void_p * max(1, len(structs)))(*map(ctypes.addressof, structs))


def _buffers(buffers):
    kinds = (c_int * max(1, len(buffers)))(*[BUFFER] * len(buffers))
    return Buffers(size=len(buffers), kinds=kinds, values=_addresses(buffers))
