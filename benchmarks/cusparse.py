"""A sparse-dense product through cuSPARSE's generic API, called by ctypes with everything reusable kept.

The library is the one that torch itself loaded, a wheel's, or the toolkit's. Only what the product needs is declared;
the numbers are those of cusparse.h and library_types.h.
"""

from __future__ import annotations

import ctypes
import os
import site
from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Algorithm", "CsrProduct", "CusparseError", "cusparse_found", "cusparse_version"]

Algorithm = Literal["ALG1", "ALG2", "ALG3"]

# cusparseSpMMAlg_t, for CSR matrices
_ALGORITHM = {"ALG1": 4, "ALG2": 6, "ALG3": 12}
_PREPROCESSED = ("ALG1", "ALG3")  # those that gain from cusparseSpMM_preprocess
# cudaDataType_t
_DATA_TYPE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
_VERSION_PARTS = 3  # libraryPropertyType: major, minor, patch
_INDEX_32_BIT = 2  # CUSPARSE_INDEX_32I
_BASE_ZERO = 0  # CUSPARSE_INDEX_BASE_ZERO
_ROW_MAJOR = 2  # CUSPARSE_ORDER_ROW
_NOT_TRANSPOSED = 0  # CUSPARSE_OPERATION_NON_TRANSPOSE
ALIGNMENT = 16  # bytes, of every pointer that is handed over
GUARD_BYTES = 1 << 20
PATTERN = 0x5A
_SONAMES = ("libcusparse.so.12", "libcusparse.so.13", "libcusparse.so")


class CusparseError(RuntimeError):
    """A cuSPARSE call returned something else than success."""


class _Library:
    """The functions, each raising on a bad status."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._handle = handle
        describe = handle.cusparseGetErrorString
        describe.restype, describe.argtypes = ctypes.c_char_p, [c_int]
        self._describe = describe
        product = [c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]
        self._declare("cusparseCreate", [c_void_p])
        self._declare("cusparseGetProperty", [c_int, c_void_p])
        self._declare("cusparseDestroy", [c_void_p])
        self._declare("cusparseSetStream", [c_void_p, c_void_p])
        csr = [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int]
        self._declare("cusparseCreateCsr", csr)
        self._declare("cusparseDestroySpMat", [c_void_p])
        self._declare("cusparseCreateDnMat", [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int, c_int])
        self._declare("cusparseDnMatSetValues", [c_void_p, c_void_p])
        self._declare("cusparseDestroyDnMat", [c_void_p])
        self._declare("cusparseSpMM_bufferSize", product)
        self._declare("cusparseSpMM_preprocess", product)
        self._declare("cusparseSpMM", product)

    def _declare(self, name: str, argument_types: Sequence[type]) -> None:
        function = getattr(self._handle, name)
        function.restype, function.argtypes = c_int, argument_types

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._handle, name)(*arguments)
        if status != 0:
            raise CusparseError(f"{name}: expected status 0, got {status} ({self._describe(status).decode()})")


@cache
def _library() -> _Library | None:
    folders = [Path(folder) / "nvidia" for folder in [*site.getsitepackages(), site.getusersitepackages()]]
    folders.append(Path(torch.__file__).parents[1] / "nvidia")
    wheels = [str(path) for folder in folders for path in sorted(folder.glob("*/lib/libcusparse.so.*"))]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"
    candidates = [*_SONAMES, *wheels, *(str(toolkit / soname) for soname in _SONAMES)]
    for candidate in candidates:
        try:
            return _Library(ctypes.CDLL(candidate))
        except (OSError, AttributeError):
            continue
    return None


def cusparse_found() -> bool:
    """Whether a cuSPARSE with the generic API can be loaded."""
    return _library() is not None


def cusparse_version() -> str | None:
    """For instance 12.6.3; None without a library."""
    library = _library()
    if library is None:
        return None
    parts = []
    for which in range(_VERSION_PARTS):
        part = c_int()
        library.call("cusparseGetProperty", which, byref(part))
        parts.append(str(part.value))
    return ".".join(parts)


class _Guarded:
    """Device memory between two stretches of a known pattern, so that writes beyond its ends are noticed."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._whole = torch.full((size + 2 * GUARD_BYTES,), PATTERN, dtype=torch.uint8, device=device)
        self.bytes = self._whole[GUARD_BYTES : GUARD_BYTES + size]
        self._before, self._behind = self._whole[:GUARD_BYTES], self._whole[GUARD_BYTES + size :]

    def overrun(self) -> bool:
        """Synchronises."""
        return not bool((self._before == PATTERN).all() & (self._behind == PATTERN).all())


class CsrProduct:
    """result = A x for a matrix A of ones in CSR form: rowptr [R+1], col [E] int32, x [num_cols, F] row-major.

    Half inputs are multiplied and summed in float32; `result_dtype` says how the result is stored. Each call writes the
    same result buffer, which is filled with NaN once, so that rows left unwritten show.
    """

    def __init__(self, rowptr: Tensor, col: Tensor, x: Tensor, result_dtype: torch.dtype, algorithm: Algorithm) -> None:
        library = _library()
        if library is None:
            raise CusparseError("libcusparse: expected in the process, a wheel or the toolkit, found none")
        _check(rowptr, col, x)
        self._library = library
        self._algorithm = _ALGORITHM[algorithm]
        rows, features = rowptr.numel() - 1, x.size(1)
        # Everything the descriptors point to lives as long as this object.
        self._rowptr, self._col, self._x = rowptr, col, x
        self._values = torch.ones(col.numel(), dtype=x.dtype, device=x.device)
        self._result_memory = _Guarded(rows * features * result_dtype.itemsize, x.device)
        self._result = self._result_memory.bytes.view(result_dtype).view(rows, features).fill_(float("nan"))
        self._compute = _DATA_TYPE[torch.float64 if x.dtype == torch.float64 else torch.float32]
        scalar = c_double if x.dtype == torch.float64 else c_float  # alpha and beta are of the compute type
        self._one, self._zero = scalar(1.0), scalar(0.0)
        self._handle, self._matrix, self._dense, self._output = (c_void_p(), c_void_p(), c_void_p(), c_void_p())
        value_type = _DATA_TYPE[x.dtype]

        library.call("cusparseCreate", byref(self._handle))
        self._use_current_stream()
        library.call(
            "cusparseCreateCsr",
            byref(self._matrix),
            rows,
            x.size(0),
            col.numel(),
            rowptr.data_ptr(),
            col.data_ptr(),
            self._values.data_ptr(),
            _INDEX_32_BIT,
            _INDEX_32_BIT,
            _BASE_ZERO,
            value_type,
        )
        x_at, out_at = x.data_ptr(), self._result.data_ptr()
        out_type = _DATA_TYPE[result_dtype]
        dense = "cusparseCreateDnMat"
        library.call(dense, byref(self._dense), x.size(0), features, features, x_at, value_type, _ROW_MAJOR)
        library.call(dense, byref(self._output), rows, features, features, out_at, out_type, _ROW_MAJOR)
        size = c_size_t()
        library.call("cusparseSpMM_bufferSize", *self._arguments(), byref(size))
        self._space = _Guarded(max(size.value, 1), x.device)
        self.workspace_bytes = size.value + self._values.numel() * self._values.element_size()
        if algorithm in _PREPROCESSED:
            # From here on the work space holds what this matrix, algorithm and shape need: it serves nothing else.
            library.call("cusparseSpMM_preprocess", *self._arguments(), self._space.bytes.data_ptr())
        self(x)
        self._raise_if_overrun()

    def _arguments(self) -> tuple[object, ...]:
        scale = (byref(self._one), self._matrix, self._dense, byref(self._zero), self._output)
        return (self._handle, _NOT_TRANSPOSED, _NOT_TRANSPOSED, *scale, self._compute, self._algorithm)

    def _use_current_stream(self) -> None:
        self._library.call("cusparseSetStream", self._handle, torch.cuda.current_stream().cuda_stream)

    def _raise_if_overrun(self) -> None:
        memory = {"work space": self._space, "result": self._result_memory}
        overrun = [name for name, guarded in memory.items() if guarded.overrun()]
        if overrun:
            size = self._space.bytes.numel()
            raise CusparseError(f"wrote beyond its {' and '.join(overrun)} (work space as asked for: {size} bytes)")

    def __call__(self, x: Tensor) -> Tensor:
        """The product, in the buffer that every call shares."""
        self._use_current_stream()
        self._library.call("cusparseDnMatSetValues", self._dense, x.data_ptr())
        self._library.call("cusparseSpMM", *self._arguments(), self._space.bytes.data_ptr())
        return self._result

    def close(self) -> None:
        """Destroys the descriptors and the handle, in that order, once nothing uses them any more."""
        torch.cuda.synchronize()
        self._library.call("cusparseDestroyDnMat", self._output)
        self._library.call("cusparseDestroyDnMat", self._dense)
        self._library.call("cusparseDestroySpMat", self._matrix)
        self._library.call("cusparseDestroy", self._handle)


def _check(rowptr: Tensor, col: Tensor, x: Tensor) -> None:
    """cuSPARSE trusts its caller: a wrong type, stride or alignment is an access out of bounds."""
    for name, index in (("rowptr", rowptr), ("col", col)):
        if index.dtype != torch.int32 or not index.is_contiguous():
            raise CusparseError(f"{name}: expected contiguous int32, got {index.dtype} with strides {index.stride()}")
    if x.dim() != 2 or not x.is_contiguous() or x.data_ptr() % ALIGNMENT:
        raise CusparseError(
            f"x: expected contiguous rows on a {ALIGNMENT}-byte boundary, got strides {x.stride()} at {x.data_ptr():#x}"
        )
    if int(rowptr[-1]) != col.numel():
        raise CusparseError(f"rowptr: expected its end to be the {col.numel()} edges, got {int(rowptr[-1])}")
    if col.numel() and not 0 <= int(col.min()) <= int(col.max()) < x.size(0):
        raise CusparseError(f"col: expected ids below {x.size(0)}, got {int(col.min())}..{int(col.max())}")
