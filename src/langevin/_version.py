"""The version: that of the tag which the package was built from."""

from importlib import import_module

try:
    __version__: str = import_module("langevin._tag").__version__
except ImportError:  # a clone that was not installed
    __version__ = "0.1.0.dev0"
