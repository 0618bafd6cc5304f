"""What the bits of a sample depend on besides its configuration: versions, processor, threads."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from langevin._version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """Recorded in every manifest; samples are bit-identical only where it is equal."""
    return {
        "langevin": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
