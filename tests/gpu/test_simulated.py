"""The library on the simulated device, and the kernels for GPUs in Triton's interpreter: in processes of their own.

A second device changes a process for good, and Triton reads whether to interpret when it is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(file, which, **environment):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", which, str(HERE / file)]
    options = {"cwd": HERE.parents[1], "env": {**os.environ, **environment}, "timeout": 7200}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    "which", ["not slow", pytest.param("slow", marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_on_the_simulated_device(which):
    run("on_device.py", which)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [75, 80, 90])
def test_the_kernels_compile_for(capability):
    """Triton's compiler needs no GPU, nor does the assembler that comes with it: every update, in both precisions."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(HERE / "compile_kernels.py"), str(capability)]
    done = subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("registers") == 21


@pytest.mark.parametrize(
    "which", ["not slow", pytest.param("slow", marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_in_the_interpreter(which):
    pytest.importorskip("triton")
    run("interpreter.py", which, TRITON_INTERPRET="1")
