"""The site: every public name has an API page, pages are in the navigation, equations and fonts are our own."""

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import langevin as lv

ROOT = Path(__file__).parents[2]
specification = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site" / "hooks.py")
hooks = importlib.util.module_from_spec(specification)
specification.loader.exec_module(hooks)


@pytest.fixture(scope="module")
def pages():
    return hooks.api_pages()


def test_every_public_name_has_a_page_with_its_docstring(pages):
    for name in dir(lv):
        if name.startswith("_"):
            continue
        page = pages[f"api/{name}.md"]
        entry = getattr(lv, name)
        assert f"# lv.{name}\n" in page
        if not inspect.ismodule(entry):
            assert f"::: {entry.__module__}.{entry.__qualname__}" in page
            assert inspect.getdoc(entry), name


def test_every_likelihood_prior_and_preconditioner_is_on_the_page_of_its_module(pages):
    from langevin.core.likelihoods.base import LIKELIHOODS
    from langevin.core.priors import PRIORS
    from langevin.preconditioners import PRECONDITIONERS

    for module, registry in {"likelihoods": LIKELIHOODS, "priors": PRIORS, "preconditioners": PRECONDITIONERS}.items():
        for entry in registry.values():
            assert f"::: {entry.__module__}.{entry.__qualname__}" in pages[f"api/{module}.md"], entry


def test_a_new_sampler_has_a_page_as_soon_as_it_is_registered(monkeypatch):
    from langevin.samplers import SAMPLERS

    class Fresh(lv.SGLD):
        """A sampler that was registered a moment ago."""

    monkeypatch.setitem(SAMPLERS, "fresh", Fresh)
    made = hooks.api_pages()
    assert "A sampler that was registered a moment ago." in made["api/index.md"]
    assert "api/Fresh.md" in made
    del SAMPLERS["fresh"]
    assert "api/Fresh.md" not in hooks.api_pages()
    SAMPLERS["fresh"] = Fresh  # taken out again by monkeypatch


def test_the_page_of_a_sampler_has_its_equation(pages):
    assert "θ ← θ − ε g + √(2εT/N) η" in pages["api/SGLD.md"]


def test_examples_of_modules_are_code(pages):
    assert "```pycon\n>>> from sklearn.datasets import load_iris\n" in pages["api/integrations.sklearn.md"]
    for name, page in pages.items():
        outside = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
        assert ">>>" not in outside, name


def test_exponents_and_indices_are_raised_and_lowered_in_running_text():
    assert hooks.with_scripts("A^{1/2}, Σ_{i∈batch}") == "A<sup>1/2</sup>, Σ<sub>i∈batch</sub>"
    for kept in ("`A^{1/2}`", "$A^{1/2}$", "$$\nA^{1/2}\n$$", "    A^{1/2}"):
        assert hooks.with_scripts(f"{kept}\nA^{{2}}") == f"{kept}\nA<sup>2</sup>"


def test_nothing_is_loaded_from_elsewhere():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert not re.findall(r"https?://", settings)
    katex = ROOT / "docs" / "assets" / "katex"
    style = (katex / "katex.min.css").read_text()
    fonts = set(re.findall(r"url\(([^)]+)\)", style))
    assert len(fonts) == 20
    assert all((katex / font).exists() for font in fonts)
    assert "MIT" in (katex / "LICENSE").read_text()


def test_the_navigation_has_every_page():
    settings = (ROOT / "mkdocs.yml").read_text()
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]:
        assert f"- {page.relative_to(ROOT / 'docs')}" in settings or page.name == "index.md", page


def test_the_errata_name_tests_that_exist():
    page = (ROOT / "docs" / "errata.md").read_text()
    known = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) >= 12
    for name in named:
        assert f"def {name}(" in known, name


def test_every_erratum_has_a_test_in_the_file_that_is_named():
    page = (ROOT / "docs" / "errata.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| (?!where|-|`)", line)]
    assert len(rows) >= 16
    for row in rows:
        shown = row.split("|")[-2]
        if shown.strip() == "the same":
            continue
        file = (re.findall(r"`(tests/[\w/]+\.py)`", shown) or ["tests/docs/test_errata.py"])[0]
        name = re.search(r"`(test_\w+)`", shown)[1]
        assert f"def {name}(" in (ROOT / file).read_text(), row


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_site_builds_without_a_warning_and_its_links_are_good(tmp_path):
    pytest.importorskip("mkdocs", reason="no MkDocs: pip install 'langevin[docs]'")
    pytest.importorskip("mike", reason="no mike: pip install 'langevin[docs]'")
    out = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, "docs/site/check_links.py", out], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "all links are good\n"


@pytest.mark.parametrize("library", ["accelerate", "lightning", "tensorboard", "transformers"])
def test_the_site_needs_none_of_the_libraries_that_are_optional(library, pages, monkeypatch):
    for name in list(sys.modules):
        if name.startswith("langevin.integrations."):
            monkeypatch.delitem(sys.modules, name)
    for name in [library, f"{library}.pytorch.callbacks", f"torch.utils.{library}"]:
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    made = hooks.api_pages()
    assert {name: page for name, page in made.items() if page != pages[name]} == {}


def test_a_broken_link_and_a_foreign_script_are_found(tmp_path):
    specification = importlib.util.spec_from_file_location("links", ROOT / "docs" / "site" / "check_links.py")
    links = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(links)
    (tmp_path / "a.html").write_text('<a href="b.html#here"></a><a href="https://example.org">x</a>')
    (tmp_path / "b.html").write_text('<p id="here"></p>')
    assert links.broken(tmp_path) == []
    assert links.broken(tmp_path / "not built") != []
    (tmp_path / "b.html").write_text('<script src="https://example.org/x.js"></script><a href="c.html"></a>')
    found = " ".join(links.broken(tmp_path))
    assert "no such anchor" in found
    assert "loads https://example.org/x.js" in found
    assert "c.html does not exist" in found
