"""A sparse-dense product through cuSPARSE's generic API, called by ctypes with everything reusable kept.

The library is the one that torch itself loaded, a wheel's, or the toolkit's. Only what the product needs is declared;
the numbers are those of cusparse.h and library_types.h.
"""

from __future__ import annotations

import ctypes
import os
import site
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Algorithm", "CsrProduct", "CusparseError", "cusparse_found"]

Algorithm = Literal["ALG1", "ALG2", "ALG3"]

# cusparseSpMMAlg_t, for CSR matrices
_ALGORITHM = {"ALG1": 4, "ALG2": 6, "ALG3": 12}
# cudaDataType_t
_DATA_TYPE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
_INDEX_32_BIT = 2  # CUSPARSE_INDEX_32I
_BASE_ZERO = 0  # CUSPARSE_INDEX_BASE_ZERO
_ROW_MAJOR = 2  # CUSPARSE_ORDER_ROW
_NOT_TRANSPOSED = 0  # CUSPARSE_OPERATION_NON_TRANSPOSE
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


class CsrProduct:
    """result = A x for a matrix A of ones in CSR form: rowptr [R+1], col [E] int32, x [num_cols, F] row-major.

    Half inputs are multiplied and summed in float32; `result_dtype` says how the result is stored. Each call writes the
    same result buffer, which is filled with NaN once, so that rows left unwritten show.
    """

    def __init__(self, rowptr: Tensor, col: Tensor, x: Tensor, result_dtype: torch.dtype, algorithm: Algorithm) -> None:
        library = _library()
        if library is None:
            raise CusparseError("libcusparse: expected in the process, a wheel or the toolkit, found none")
        self._library = library
        self._algorithm = _ALGORITHM[algorithm]
        rows, features = rowptr.numel() - 1, x.size(1)
        values = torch.ones(col.numel(), dtype=x.dtype, device=x.device)
        self._result = torch.full((rows, features), float("nan"), dtype=result_dtype, device=x.device)
        self._kept = (rowptr, col, values, x)
        self._one, self._zero = c_float(1.0), c_float(0.0)
        self._compute = _DATA_TYPE[torch.float64 if x.dtype == torch.float64 else torch.float32]
        if x.dtype == torch.float64:
            self._one, self._zero = ctypes.c_double(1.0), ctypes.c_double(0.0)  # type: ignore[assignment]
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
            values.data_ptr(),
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
        self._space = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
        self.workspace_bytes = size.value + values.numel() * values.element_size()
        library.call("cusparseSpMM_preprocess", *self._arguments(), self._space.data_ptr())

    def _arguments(self) -> tuple[object, ...]:
        scale = (byref(self._one), self._matrix, self._dense, byref(self._zero), self._output)
        return (self._handle, _NOT_TRANSPOSED, _NOT_TRANSPOSED, *scale, self._compute, self._algorithm)

    def _use_current_stream(self) -> None:
        self._library.call("cusparseSetStream", self._handle, torch.cuda.current_stream().cuda_stream)

    def __call__(self, x: Tensor) -> Tensor:
        """The product, in the buffer that every call shares."""
        self._use_current_stream()
        self._library.call("cusparseDnMatSetValues", self._dense, x.data_ptr())
        self._library.call("cusparseSpMM", *self._arguments(), self._space.data_ptr())
        return self._result

    def close(self) -> None:
        """Destroys the descriptors and the handle."""
        torch.cuda.synchronize()
        self._library.call("cusparseDestroyDnMat", self._output)
        self._library.call("cusparseDestroyDnMat", self._dense)
        self._library.call("cusparseDestroySpMat", self._matrix)
        self._library.call("cusparseDestroy", self._handle)
