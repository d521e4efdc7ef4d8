"""The arithmetic of local steps: torch's modes that change bits are fixed; everything else is in the fingerprint."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import overrides
from torch.nn.modules import module
from torch.utils import _python_dispatch as dispatch

from fedforget.training.streams import own_streams, stream_sample

Setting = tuple[Callable[[], Any], Callable[[Any], Any], Any]

_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_CPU_ISA_HINTS",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "GLIBC_TUNABLES",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
)  # libraries select their loops by these when a process starts

_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)  # dictionaries of torch, which its functions ``register_module_*`` fill


@contextlib.contextmanager
def fixed_arithmetic(floats: torch.dtype = torch.float32) -> Iterator[None]:
    """Set the modes that every process of a run computes with, and restore the caller's modes afterwards.

    One thread, because a matrix product differs in its last bits between one thread and two. ``floats`` is the default
    dtype: the one that the module computes in.
    """
    with contextlib.ExitStack() as modes:
        _without_interceptors(modes)
        _without_saved_tensors_hooks(modes)
        _without_global_module_hooks(modes)
        modes.enter_context(torch.inference_mode(mode=False))
        modes.enter_context(torch.autocast("cpu", enabled=False))
        modes.enter_context(torch.autograd.set_multithreading_enabled(mode=False))
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        for read, write, value in _settings(floats):
            modes.callback(write, read())
            write(value)
        yield


def _without_interceptors(modes: contextlib.ExitStack) -> None:
    """Take the caller's ``TorchFunctionMode`` and ``TorchDispatchMode`` off their stacks: they may replace results."""
    for _ in overrides._get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        modes.enter_context(overrides._pop_mode_temporarily())
    for _ in dispatch._get_current_dispatch_mode_stack():
        modes.enter_context(dispatch._pop_mode_temporarily())


def _without_saved_tensors_hooks(modes: contextlib.ExitStack) -> None:
    """Shadow the caller's hooks on tensors that autograd saves: they may hand back other values."""
    graph = torch.autograd.graph
    try:
        with graph.disable_saved_tensors_hooks(""):
            return
    except RuntimeError:  # there are some; only the innermost apply
        modes.enter_context(graph.saved_tensors_hooks(_unchanged, _unchanged))


def _without_global_module_hooks(modes: contextlib.ExitStack) -> None:
    """Take the caller's hooks for all modules off: they may replace results and gradients."""
    for name in _GLOBAL_HOOKS:
        hooks: dict[int, Any] = getattr(module, name)
        modes.callback(hooks.update, dict(hooks))
        modes.callback(hooks.clear)
        hooks.clear()
    kind = "_global_is_full_backward_hook"
    modes.callback(setattr, module, kind, getattr(module, kind))
    setattr(module, kind, None)


def _unchanged(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _settings(floats: torch.dtype) -> Iterator[Setting]:
    """Yield the global modes: how to read each, how to write it, and its value during training."""
    yield torch.get_num_threads, torch.set_num_threads, 1
    yield torch.get_default_dtype, torch.set_default_dtype, floats
    yield torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0
    yield _flushes_denormals, torch.set_flush_denormal, False
    yield lambda: torch.backends.mkldnn.enabled, _set_mkldnn, True
    yield from _float32_precision()
    attention = torch.backends.cuda  # these switches apply to the CPU too
    yield attention.flash_sdp_enabled, attention.enable_flash_sdp, True
    yield attention.mem_efficient_sdp_enabled, attention.enable_mem_efficient_sdp, True
    yield attention.math_sdp_enabled, attention.enable_math_sdp, True


def _float32_precision() -> Iterator[Setting]:
    """Yield the precision modes. Newer versions of torch have one per operation, and then reject the old function."""
    parts = [getattr(torch.backends.mkldnn, part, None) for part in ("matmul", "conv", "rnn")]
    if not all(hasattr(part, "fp32_precision") for part in parts):
        yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
        return
    for part in parts:
        yield _reader(part), _writer(part), "ieee"


def _set_mkldnn(enabled: bool) -> None:
    torch.backends.mkldnn.enabled = enabled  # type: ignore[assignment]


def _reader(switch: Any) -> Callable[[], Any]:
    return lambda: switch.fp32_precision


def _writer(switch: Any) -> Callable[[Any], None]:
    return lambda value: setattr(switch, "fp32_precision", value)


def _flushes_denormals() -> bool:
    tiny = torch.tensor([2.0**-1074], dtype=torch.float64, device="cpu")
    return not bool((tiny * 1.0 != 0).item())


@cache
def fingerprint() -> dict[str, str]:
    """Return what can change the bits of a result here: names, and a digest of a few test operations."""
    set_here = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    with fixed_arithmetic(), own_streams():
        return {
            "threads": "1",
            "vectors": torch.backends.cpu.get_cpu_capability(),
            "variables": " ".join(set_here),
            "probe": _probe(),
            "random": hashlib.blake2b(stream_sample(), digest_size=16).hexdigest(),
        }


def _probe() -> str:
    """Return a digest of the results of operations that processors and libraries round differently."""
    hasher = hashlib.blake2b(digest_size=16, person=b"fedforget/probe")
    for dtype in (torch.float32, torch.float64):
        numbers = torch.arange(1, 64 * 96 + 1, dtype=dtype).sin_()  # values with full mantissas
        matrix, image = numbers.view(64, 96), numbers[: 2 * 3 * 16 * 16].view(2, 3, 16, 16)
        kernel = numbers[: 8 * 3 * 5 * 5].view(8, 3, 5, 5)
        for result in (
            numbers,
            matrix @ matrix.t(),
            torch.addmm(matrix[0, :64], matrix[:8], matrix.t()),
            torch.nn.functional.conv2d(image, kernel, padding=2),
            torch.log_softmax(matrix, 1),
            numbers.exp(),
            numbers.tanh(),
            numbers.sum(),
        ):
            hasher.update(result.contiguous().numpy().tobytes())
    return hasher.hexdigest()
