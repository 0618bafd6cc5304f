"""The rules of the house that a machine can hold: abstract or final, short files, few public names."""

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

import langevin
import langevin as lv

SOURCE = Path(langevin.__file__).parent


def _classes():
    found = set()
    for module in pkgutil.walk_packages([str(SOURCE)], "langevin."):
        if module.name == "langevin.__main__":
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and value.__module__.startswith("langevin."):
                found.add(value)
    return found


def test_a_class_is_abstract_or_final():
    classes = _classes()
    parents = {base for c in classes for base in c.__mro__[1:] if base in classes}
    concrete = {c.__qualname__ for c in parents if not inspect.isabstract(c) and not getattr(c, "_is_protocol", False)}
    # scikit-learn asks of a common base of estimators that it is a BaseEstimator, no more
    assert concrete <= {"_BayesianNetwork", "RunError"}


def test_no_method_raises_not_implemented_error():
    for file in SOURCE.rglob("*.py"):
        assert "raise NotImplementedError" not in file.read_text(), file


def test_no_file_is_longer_than_400_lines():
    for folder in (SOURCE, SOURCE.parents[1] / "reproductions", SOURCE.parents[1] / "benchmarks"):
        for file in folder.rglob("*.py"):
            assert len(file.read_text().splitlines()) <= 400, file


def test_at_most_half_a_dozen_modules_lie_beside_the_packages():
    beside = [file.stem for file in SOURCE.glob("*.py") if not file.stem.startswith("_")]
    assert len(beside) <= 6, beside


def test_there_are_about_forty_public_names():
    modules = {name for name in dir(lv) if inspect.ismodule(getattr(lv, name))}
    names = [name for name in dir(lv) if name not in modules and not name.startswith("_")]
    assert len(names) <= 44, names
    for name in names:
        assert getattr(lv, name).__doc__, name


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'SGDL'"):
        lv.SGDL  # noqa: B018


@pytest.mark.parametrize("word", ["METHODS", "Method"])
def test_a_name_has_one_meaning(word):
    assert not [
        file
        for file in SOURCE.rglob("*.py")
        if f"\n{word} =" in file.read_text() or f"class {word}" in file.read_text()
    ]


def test_the_figure_of_the_architecture_is_drawn_from_the_imports_as_they_are():
    sys.path.insert(0, str(SOURCE.parents[1] / "docs"))
    try:
        import draw_architecture as figure
    finally:
        sys.path.pop(0)
    names = [name for layer in figure.layers() for name in layer]
    assert {path.stem for path in SOURCE.iterdir() if path.name != "py.typed" and not path.stem.startswith("_")} == set(
        names
    )
    drawn = (SOURCE.parents[1] / "docs" / "architecture.svg").read_text()
    assert figure.described(figure.imports(names)) in drawn, "run `make architecture`"
