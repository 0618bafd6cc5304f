"""Where a warning points to: the line of the user, whatever called what inside the library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_LIBRARY = f"{Path(__file__).parents[1]}{os.sep}"


def user_level() -> int:
    """`stacklevel` of a warning, for the first caller outside the library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        level, frame = level + 1, frame.f_back
    return level
