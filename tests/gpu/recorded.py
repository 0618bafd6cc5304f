"""What a CUDA graph does, without CUDA: the operations of a function are recorded, with their memory, and replayed.

Numbers of Python that went into an operation are replayed as they were; only what lies in tensors can change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Recorded(TorchDispatchMode):
    """`with Recorded() as graph: step()`, then `graph.replay()`."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("A number was read by the host: a CUDA graph can't be captured.")
        found = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, found))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        """Once more, in the same memory."""
        for func, args, kwargs, before in self.operations:
            if func.is_view:
                continue
            now = func(*args, **kwargs)
            for old, new in zip(tree_flatten(before)[0], tree_flatten(now)[0], strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.copy_(new)
