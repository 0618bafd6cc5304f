"""What the bits of a sample depend on besides its configuration: versions, processor, threads, precision."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from langevin._version import __version__
from langevin.kernels import updates

_VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NUMBA_CPU_NAME")


def environment(device: torch.device) -> dict[str, Any]:
    """Recorded in every manifest; samples are bit-identical only where it is equal."""
    found = {
        "langevin": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": importlib.metadata.version("numba") if updates.enabled() else None,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        **{name: os.environ.get(name) for name in _VARIABLES},  # they choose among ways to compute
    }
    if device.type == "cuda":
        found["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        found["cudnn_allow_tf32"] = torch.backends.cudnn.allow_tf32
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
