"""A second device on a machine that has none: `sim`, made in Python from PyTorch's PrivateUse1.

Its tensors hold CPU numbers, but an operation on a tensor of `sim` and one of the CPU raises, as on a GPU, and so does
a request for a `torch.Generator` of it. `synchronisations()` counts what would make the host wait for a GPU: numbers
that are read (`.item()`, `.tolist()`, `bool(t)`), copies to the CPU, blocking copies from it, and results whose shape
depends on the data.

`install()` changes the process for good, so it is called in processes of their own only.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_map

NAME = "sim"
_ops: Any = torch.ops.aten
_WAITS = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "_linalg_check_errors"),
    *("nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive", "bincount", "histc"),
}
_COPIES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize", "_foreach_copy_"}
_seen: Counter[str] = Counter()
_library: list[torch.library.Library] = []


class DeviceMismatch(RuntimeError):
    """A tensor of the CPU beside one of the device."""


class _Module:
    """What PyTorch asks the module of a device for; its generator is a number that seeding changes."""

    state = torch.zeros(1, dtype=torch.int64)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self.state = torch.tensor([seed % 2**63])

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        self.state = state.clone()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: Any = None) -> None:
        pass

    free_memory = 1 << 40

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.free_memory, 1 << 40


class Simulated(torch.Tensor):
    """A tensor of the device: the shape and the device are seen, the numbers are in `raw`."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Simulated:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw = raw
        return made

    def __init__(self, *given: Any) -> None:
        pass

    def __repr__(self, **options: Any) -> str:
        return f"{self.raw}.to({NAME!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.data.__set__:  # p.data = value, which dispatches no operation
            args[0].raw = args[1].raw
        if func is torch.Tensor.data_ptr:
            return args[0].raw.data_ptr()
        if func in (torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.numpy):
            if func is not torch.Tensor.tolist:
                raise TypeError(f"can't convert a {NAME} tensor to numpy; use Tensor.cpu() first.")
            _seen[_where()] += 1
            return args[0].raw.tolist()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among arguments, and in lists of them: in less time than `tree_flatten`."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Simulated):
        return value.raw
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.removeprefix("aten::")
    given = _tensors(args) + (_tensors(kwargs.values()) if kwargs else [])
    device = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
    to_cpu = device in ("cpu", "meta")
    if name in _COPIES and device != "meta":
        own = [isinstance(t, Simulated) for t in given]
        to_cpu = to_cpu or (name != "_to_copy" and not own[0])
        crossing = (name == "_to_copy" and to_cpu != (not own[0])) or (name != "_to_copy" and len(set(own)) > 1)
        non_blocking = kwargs.get("non_blocking", False) or (len(args) > 2 and args[2] is True)
        if crossing and (to_cpu or not non_blocking):
            _seen[_where()] += 1
    elif name not in _COPIES:
        _refuse_mixed(func, given)
        masked = name == "index" and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
        if masked or name in _WAITS:
            _seen[_where()] += 1
    if device == NAME:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    if name == "_efficientzerotensor":  # of forward-mode derivatives: without memory, which the CPU's operations miss
        func = torch.zeros
    found = func(*(_plain(value) for value in args), **{key: _plain(value) for key, value in kwargs.items()})
    known = {id(t.raw): t for t in given if isinstance(t, Simulated)}
    if func._schema.is_mutable if hasattr(func, "_schema") else False:
        for t in known.values():
            if t.shape != t.raw.shape or t.stride() != t.raw.stride():  # resized, squeezed or transposed in place
                with torch._C.DisableTorchFunctionSubclass():
                    t.data = Simulated(t.raw)

    def wrapped(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return type(t)(wrapped(each) for each in t) if isinstance(t, list | tuple) else t
        return known[id(t)] if id(t) in known else Simulated(t)

    return found if to_cpu else wrapped(found)


def _refuse_mixed(func: Any, given: list[torch.Tensor]) -> None:
    """A CPU tensor is allowed beside the device's only if it is a number and the operation is element by element."""
    if not any(isinstance(t, Simulated) for t in given):
        return
    pointwise = torch.Tag.pointwise in func.tags or func._schema.name.startswith("aten::_foreach")
    for t in given:
        if not isinstance(t, Simulated) and not (t.dim() == 0 and pointwise):
            raise DeviceMismatch(f"{func}: a tensor of the CPU, shape {tuple(t.shape)}, beside tensors of {NAME}.")


def _where() -> str:
    """The line of the library that synchronises, for messages of tests."""
    for frame in reversed(traceback.extract_stack()):
        if "/langevin/" in frame.filename:
            return f"{frame.filename.rpartition('/langevin/')[2]}:{frame.lineno}"
    return "outside the library"


def _cast(name: str) -> Any:
    """What autocast does to products: their arguments in half precision."""

    def cast(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)
        args = tree_map(lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args)
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return getattr(_ops, name)(*args, **kwargs)

    return cast


def install() -> None:
    """Make the device; once in a process, and for good."""
    if _library:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
        library, library_of_casts = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        library.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
        library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        for name in ("linear", "mm", "addmm", "matmul", "conv2d"):
            library_of_casts.impl(name, _cast(name), "AutocastPrivateUse1")
    _library.extend([library, library_of_casts])


@contextmanager
def synchronisations() -> Any:
    """`with synchronisations() as seen: …`; then `seen.total`, and `seen.lines`, by line of the source."""
    before = Counter(_seen)
    found = SimpleNamespace(total=0, lines=Counter(), so_far=lambda: _seen - before)
    yield found
    found.lines = _seen - before
    found.total = sum(found.lines.values())
