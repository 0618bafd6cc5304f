"""Compile the kernels for a GPU that need not be there: `python tests/gpu/compile_kernels.py 80`.

Everything is as in a run on that GPU, but for its driver, which is replaced, and the launch itself. Prints the
registers of a thread and the bytes that did not fit into them, which docs/gpu.md has.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def replace_driver(capability: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Driver:
        get_current_device = get_current_stream = lambda self, *device: 0
        get_current_target = lambda self: GPUTarget("cuda", capability, 32)  # noqa: E731

    driver.set_active(Driver())


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*given, **options):
            made = self.kernel.run(*given, grid=grid, warmup=True, **options)
            registers, spilled = resources(made.asm["cubin"])
            name = [str(value) for value in given if isinstance(value, str)] or [self.kernel.__name__]
            kind = "float64" if "fp64" in str(made.src.signature) else "float32"
            print(f"{name[0]}, {kind}: {registers} registers, {spilled} bytes spilled")

        return launch


def resources(cubin: bytes) -> tuple[int, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, spilled = re.search(r"REG:(\d+) STACK:(\d+)", told).groups()
    return int(registers), int(spilled)


def main(capability: int) -> None:
    replace_driver(capability)

    import torch

    import langevin as lv
    from langevin.kernels import triton_kernels, updates

    updates._TRITON = {"cpu"}
    for name in ("_update", "_normals", "_words"):
        setattr(triton_kernels, name, Compiled(getattr(triton_kernels, name)))
    chains = torch.tensor([0, 1])
    triton_kernels.words(100, chains, seed=1, step=1, stream=1)
    for dtype in (torch.float32, torch.float64):
        out = torch.empty(2, 3000, dtype=dtype)
        triton_kernels.normals(out, chains, seed=3, step=5, stream=0, start=0)
        triton_kernels.normals(out, chains, seed=2**64 - 1, step=torch.tensor(2**40), stream=1, start=2**35)
        options = {"max_speed": None}
        for kind, settings in (
            *((lv.SGLD, {}), (lv.pSGLD, {}), (lv.SGHMC, {}), (lv.SGNHT, {})),
            *((lv.ATMC, {}), (lv.ATMC, options), (lv.ATMC, {"integrator": "fused"}), (lv.ATMC, {"temperature": 0.0})),
        ):
            p = torch.nn.Parameter(torch.zeros(3000, dtype=dtype))
            p.grad = torch.zeros_like(p)
            kind([p], lr=1e-3, num_data=100, seed=1, **settings).step()


if __name__ == "__main__":
    main(int(sys.argv[1]))
