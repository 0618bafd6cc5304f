"""Integrations with other libraries; each module is imported on first access."""

import importlib
from typing import Any

_MODULES = ("accelerate", "huggingface", "lightning", "sklearn", "tensorboard")


def __getattr__(name: str) -> Any:
    """`lv.integrations.sklearn` and the others."""
    if name in _MODULES:
        return importlib.import_module(f"langevin.integrations.{name}")
    raise AttributeError(f"module 'langevin.integrations' has no attribute {name!r}")
