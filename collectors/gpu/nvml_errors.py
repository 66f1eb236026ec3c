"""Errors of NVML: those of one call, and those after which a GPU or the driver is gone."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Error codes in nvml.h after which the driver is gone for all GPUs, or this GPU is lost
# (GPU_IS_LOST, RESET_REQUIRED). Every other error concerns a single call.
UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH = 1, 9, 18
DRIVER_GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH})
GONE = DRIVER_GONE | {15, 16}
COUNTED_FROM_ZERO = (10, 15, 16, 999)
"""Errors that every GPU can have: TIMEOUT, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN."""

# Not available on this board, with this driver or at this time: INVALID_ARGUMENT, NOT_SUPPORTED,
# NOT_FOUND, FUNCTION_NOT_FOUND (a symbol that an old driver lacks), NO_DATA,
# ARGUMENT_VERSION_MISMATCH, DEPRECATED.
_UNSUPPORTED = frozenset({2, 3, 6, 13, 21, 25, 26})


class OptionalCalls:
    """Makes optional calls: after an error they return `default`.

    Unsupported calls are not counted as errors. Raises NVMLError if the GPU or the driver is gone.
    """

    def __init__(self, nvml: Any, errors: Counter[tuple[str, str]], gpu: str) -> None:
        self.nvml = nvml
        self._errors = errors
        self._gpu = gpu

    def __call__(self, call: Callable[..., T], *arguments: Any, default: T | None = None) -> Any:
        try:
            return call(*arguments)
        except self.nvml.NVMLLibraryMismatchError:  # pynvml's error for a missing symbol
            return default
        except self.nvml.NVMLError as error:
            if error.value in GONE:
                raise
            if error.value not in _UNSUPPORTED:
                self._errors[self._gpu, error_name(self.nvml, error.value)] += 1
            return default


def error_name(nvml: Any, code: int) -> str:
    """NVML's own name: `no_permission` for NVML_ERROR_NO_PERMISSION."""
    for name in dir(nvml):
        if name.startswith("NVML_ERROR_") and getattr(nvml, name) == code:
            return name.removeprefix("NVML_ERROR_").lower()
    return str(code)
