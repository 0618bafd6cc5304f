"""Progress bars: a widget in Jupyter, a line that is redrawn in a terminal, and now and then a line in a log file."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import auto

_BETWEEN = 10.0  # seconds from one line of a log file to the next
_IS_WIDGET = any(base.__name__ == "tqdm_notebook" for base in auto.tqdm.__mro__)


class tqdm(auto.tqdm):  # type: ignore[misc]  # tqdm has no types
    """`tqdm.auto.tqdm`; where the output is neither a terminal nor a notebook it writes a line now and then."""

    disable: bool

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lines = not _IS_WIDGET and _is_file(options.get("file") or sys.stderr)
        if self._lines:
            options |= {"mininterval": _BETWEEN, "ncols": 0, "dynamic_ncols": False}
        super().__init__(*arguments, **options)

    def display(self, *arguments: Any, **options: Any) -> Any:
        """Show the present state."""
        if not self._lines:
            return super().display(*arguments, **options)
        text = options.get("msg", arguments[0] if arguments else None)
        text = str(self) if text is None else text
        if text:
            self.fp.write(f"{text}\n")
            self.fp.flush()
        return True

    def close(self) -> None:
        """End the bar, in a file with its last line."""
        if not getattr(self, "_lines", False) or self.disable:
            if _IS_WIDGET and not self.disable and not self.leave:
                self.container.layout.display = "none"  # tqdm hides the widget, and leaves its empty line
            super().close()
            return
        if self.leave and self.n > self.last_print_n and self.last_print_t >= self.start_t + self.delay:
            self.display()
        self.disable = True
        self._decr_instances(self)


def _is_file(output: Any) -> bool:
    """Whether the output is neither a terminal nor a notebook's cell."""
    isatty = getattr(output, "isatty", None)
    in_kernel = type(output).__module__.startswith("ipykernel")
    return not in_kernel and not (callable(isatty) and isatty())
