"""The version: that of the tag which the package was built from."""

try:
    from langevin._tag import __version__ as __version__
except ImportError:  # a clone that was not installed
    __version__ = "0.1.0.dev0"
