"""Compile every update for a GPU that need not be there: `python tests/gpu/compile_kernels.py 80`.

Prints the registers of a thread and the bytes that did not fit into them, which docs/gpu.md has.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def main(capability: int) -> None:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from langevin.kernels import triton_kernels

    update = triton_kernels._update
    states = {"langevin": 0, "rmsprop": 1, "sghmc": 1}
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for kind, pointer in ((tl.float32, "*fp32"), (tl.float64, "*fp64")):
        for name in (*states, "symmetric_gaussian", "symmetric_relativistic", "fused"):
            types = {
                "table": "*i64",
                "programs": "*i64",
                "settings": pointer,
                "seed": "i64",
                "step": "i64",
                "stream": "i32",
            }
            constants = {"noisy": True, "states": states.get(name, 2), "name": name, "kind": kind}
            constants |= {"in_memory": False, "stream": 0}
            signature = {argument: types.get(argument, "constexpr") for argument in update.arg_names}
            fixed = {(update.arg_names.index(argument),): value for argument, value in constants.items()}
            source = ASTSource(fn=update, signature=signature, constexprs=fixed)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=triton_kernels.LAUNCH)
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(compiled.asm["cubin"])
                file.flush()
                command = [str(tool), "--dump-resource-usage", file.name]
                told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            registers, spilled = re.search(r"REG:(\d+) STACK:(\d+)", told).groups()
            print(f"sm_{capability} {kind} {name}: {registers} registers, {spilled} bytes spilled")


if __name__ == "__main__":
    main(int(sys.argv[1]))
