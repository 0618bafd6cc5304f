"""Modules that change a process for good are collected (and imported, for doctests) in a process of their own only."""

import sys

OWN_PROCESS = ["on_device.py", "interpreter.py", "compile_kernels.py"]
collect_ignore = [name for name in OWN_PROCESS if not any(name in argument for argument in sys.argv)]
