"""Arguments of public functions are checked against their annotations, before anything else happens to them.

    @validated(level=within(0, 1))
    def stationarity(self, level: float = 0.05) -> …

A wrong kind of value would otherwise be found deep inside torch, or not at all. Numbers, strings, paths, dtypes,
choices (`Literal`), functions, mappings, sequences, modules, the library's own classes and their unions are checked;
others are left to the function, which knows more about them. Constructors of what is registered
(`langevin.core.registry`) are checked without being asked.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import os
import reprlib
import sys
import types
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)
_LARGEST = 2**64  # of integers: those of the random streams
_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a string",
    Path: "a path",
    torch.dtype: "a dtype, such as torch.float16",
    torch.device: 'a device, such as "cpu"',
    Tensor: "a tensor",
    tuple: "a tuple",
    nn.Module: "a module",
    Optimizer: "an optimizer",
    abc.Mapping: "a mapping",
    abc.Sequence: "a sequence",
    abc.Collection: "a collection",
    abc.Iterable: "an iterable",
    abc.Callable: "a function",
}


_PLAIN = (str, bytes, bool, int, float, types.NoneType, list, tuple, dict, set)
_EXAMPLES = {"Posterior": "lv.Posterior(model, lv.likelihoods.Categorical(), num_data=len(train))"}


@dataclass(frozen=True)
class Rule:
    """What is asked of a value beside its kind; None is always allowed where the annotation allows it."""

    holds: Callable[[Any], bool]
    expected: str


def at_least(least: float) -> Rule:
    """A finite number from this one on."""
    return Rule(lambda value: least <= value < math.inf, f"{least} or more")


def within(low: float, high: float) -> Rule:
    """A number between two others."""
    return Rule(lambda value: low < value < high, f"between {low} and {high}")


COUNT = at_least(1)
NATURAL = at_least(0)
POSITIVE = Rule(lambda value: 0 < value < math.inf, "positive and finite")
FRACTION = within(0, 1)
DURATION = Rule(lambda value: value >= 0, "0 or more; infinity for never")
SEED = Rule(lambda value: 0 <= value < 2**64, "0 to 2^64 - 1")


def validated(**rules: Rule) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check the arguments of a function against its annotations and these rules, at every call.

    Numbers are finite unless a rule allows infinity.
    """

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        check = _checker(function, rules)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            check(args, kwargs)
            return function(*args, **kwargs)

        return call

    return wrap


def validated_init(*, numbers: Rule | None = None, **rules: Rule) -> Callable[[C], C]:
    """The same for the constructor of a class, also one that `dataclass` has made.

    Its own sentences come first: arguments are checked after it has returned, or raised something else.
    """

    def wrap(kind: C) -> C:
        if "__init__" not in vars(kind):
            return kind
        function = vars(kind)["__init__"]
        check = _checker(function, rules, numbers)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:
                if not (isinstance(error, ValueError) and _is_ours(error)):
                    check(args, kwargs)
                raise
            check(args, kwargs)

        kind.__init__ = call  # type: ignore[misc]
        return kind

    return wrap


def _is_ours(error: Exception) -> bool:
    """Whether the library itself has raised this error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("langevin.")


def _checker(
    function: Callable[..., Any], rules: Mapping[str, Rule], numbers: Rule | None = None
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """A check of the arguments of a call; those that do not fit the signature are left to Python."""
    parameters = inspect.signature(function).parameters
    by_place = [name for name, parameter in parameters.items() if parameter.kind in _BY_PLACE]

    @functools.cache  # annotations are resolved at the first call, when all modules have been loaded
    def checked() -> dict[str, tuple[Any, str]]:
        hints = {name: kind for name, kind in _hints(function).items() if name in parameters}
        kinds = {name: kind for name, kind in hints.items() if parameters[name].kind not in _SEVERAL}
        return {name: (kind, words) for name, kind in kinds.items() if (words := _expected(kind)) is not None}

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        wanted = checked()
        for given in (zip(by_place, args, strict=False), kwargs.items()):
            for name, value in given:
                if name in wanted:
                    _check(name, value, *wanted[name], rules.get(name, numbers), parameters[name].default)

    return check


_SEVERAL = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _check(name: str, value: Any, kind: Any, expected: str, rule: Rule | None, default: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    allowed = not number or (math.isfinite(value) if rule is None else rule.holds(value))
    if _fits(value, kind) and allowed:
        return
    if rule is not None and _is_numeric(kind):
        expected = f"{expected}, {rule.expected}"
    elif isinstance(value, float) and not math.isfinite(value) and _is_numeric(kind):
        expected = f"{expected}, finite"
    if kind_name := _EXAMPLES.get(getattr(kind, "__name__", "")):
        write = f" Write {kind_name}."
    elif isinstance(default, bool | int | float | str):
        write = f" Write {name}={default!r}, for example."
    elif expected.startswith("a mapping"):
        write = f' Write {name}={{"name": …}}.'
    else:
        write = ""
    raise ValueError(f"{name} must be {expected}; given {name}={_shown(value)}.{write}")


def _shown(value: Any) -> str:
    kind = type(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return reprlib.repr(value) if kind in _PLAIN else f"<{kind.__name__}>"


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind for which `_expected` has words."""
    if kind is types.NoneType:
        return value is None
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
    if kind is float:
        return _is_number(value)
    if kind is Path:
        return isinstance(value, os.PathLike) and _is_path(os.fspath(value))
    if kind is str:
        return isinstance(value, str) and "\0" not in value
    if origin is abc.Callable:
        return callable(value)
    if kind is Tensor:
        return isinstance(value, Tensor | np.ndarray | np.generic) or (
            isinstance(value, list | tuple) and _is_list_of_numbers(value)
        )
    if kind is torch.device:
        return isinstance(value, torch.device)
    if not isinstance(value, origin) or isinstance(value, str | bytes | Tensor):
        return False
    return _parts_fit(value, arguments)


def _is_numeric(kind: Any) -> bool:
    return any(each in (int, float) for each in (kind, *get_args(kind)))


def _parts_fit(value: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether the parts of a mapping, a list or a tuple are of their kinds, as far as there are words for these."""
    if isinstance(value, tuple) and kinds and Ellipsis not in kinds and len(kinds) > 1:
        fit = [_expected(kind) is None or _fits(part, kind) for part, kind in zip(value, kinds, strict=False)]
        return len(value) == len(kinds) and all(fit)
    if isinstance(value, abc.Mapping) and len(kinds) == 2:
        pairs = list(value.items())
        return all(_expected(kind) is None or all(_fits(p[i], kind) for p in pairs) for i, kind in enumerate(kinds))
    if isinstance(value, list | tuple | set | frozenset) and kinds:
        return _expected(kinds[0]) is None or all(_fits(part, kinds[0]) for part in value)
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    if type(value) is bool or not isinstance(value, Real):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _is_list_of_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_list_of_numbers, value))
    return isinstance(value, Real)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _expected(kind: Any) -> str | None:
    """What to call a kind of value; None if it is left to the function."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        names = [_expected(each) for each in arguments if each is not types.NoneType]
        return None if not names or None in names else " or ".join(dict.fromkeys(filter(None, names)))
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(repr, arguments))
    if origin in (abc.Sequence, abc.Collection) and arguments and arguments[0] in (str, int):
        return f"{_NAMES[origin]} of {'strings' if arguments[0] is str else 'integers'}"
    ours = isinstance(origin, type) and origin.__module__.startswith("langevin.")
    if ours and not getattr(origin, "_is_protocol", False):
        return f"{'an' if origin.__name__[0] in 'AEIOU' else 'a'} {origin.__name__}"
    return _NAMES.get(origin)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved; what is imported for type checkers only is unknown, and so not checked."""
    module = vars(sys.modules[function.__module__])
    return get_type_hints(function, module, _Unknown(module))


class _Unknown(dict[str, Any]):
    """Names that neither a module nor Python has are Any."""

    def __init__(self, module: dict[str, Any]) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        if name in self._module or hasattr(builtins, name):
            raise KeyError(name)
        return Any
