"""The code of the tutorials runs, block after block, as it stands there."""

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
specification = importlib.util.spec_from_file_location("run_tutorials", DOCS / "tutorials" / "run.py")
tutorials = importlib.util.module_from_spec(specification)
specification.loader.exec_module(tutorials)
PAGES = {page.stem: page for page in tutorials.pages()}


def run_blocks(name):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"tutorial-{name}.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    space = {"__name__": "tutorial"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks:
            exec(compile(block, f"tutorial-{name}.md", "exec"), space)
    return space


@pytest.mark.slow
def test_last_layer():
    space = run_blocks("last-layer")
    assert float((space["prediction"].labels == space["test_y"]).float().mean()) > 0.9
    assert max(found.auroc for found in space["detection"].values()) > 0.75


@pytest.mark.slow
def test_lora():
    space = run_blocks("lora")
    assert len(space["run"]) == 40
    assert len(space["ensemble"]) == 4


@pytest.mark.slow
def test_text_classification():
    space = run_blocks("text-classification")
    assert space["prediction"].probs[0, 1] > 0.8
    assert len(space["run"]) == 20


def test_the_tutorials_are_linked():
    page = (DOCS / "fine-tuning.md").read_text()
    for file in DOCS.glob("tutorial-*.md"):
        assert file.name in page


def test_there_are_ten_and_each_ends_in_a_figure():
    assert len(PAGES) == 10
    index = (DOCS / "tutorials" / "index.md").read_text()
    for name, page in PAGES.items():
        assert f"({name}.md)" in index
        figures = re.findall(r"\]\((figures/[^)]+)\)", page.read_text().replace("\n", " "))
        assert figures, name
        assert all((page.parent / figure).exists() for figure in figures), figures
        assert "savefig" in "".join(code for _, code in tutorials.code_of(page))


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_shows_is_what_its_code_printed(name):
    assert tutorials.is_current(PAGES[name]), f"run `python docs/tutorials/run.py {name}`"


_VERDICT = re.compile(r"^(?:.*; )?(good|warning|bad): T ", re.MULTILINE)
_NOT_GOOD = {"images"}  # says so, and why


@pytest.mark.parametrize("name", PAGES)
def test_the_verdicts_that_a_page_shows_are_good(name):
    """What a page samples for itself passes; the counter-examples of the page on reports are shown as tables."""
    shown = re.findall(r"^```output\n(.*?)^```", PAGES[name].read_text(), re.DOTALL | re.MULTILINE)
    levels = {level for text in shown for level in _VERDICT.findall(text)}
    if name in _NOT_GOOD:
        assert "The verdict is a warning, and it is right" in PAGES[name].read_text()
    else:
        assert levels <= {"good"}


@pytest.mark.parametrize("name", PAGES)
def test_the_toy_size_is_of_code_that_is_there(name):
    assert tutorials.code_of(PAGES[name], toy=True) != tutorials.code_of(PAGES[name])


def test_a_change_of_the_code_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n")
    assert not tutorials.is_current(page)
    page.write_text(page.read_text() + f"<!-- written by `x`, code {tutorials.digest(page)}, 0 s -->\n")
    assert tutorials.is_current(page)
    page.write_text(page.read_text().replace("print(1)", "print(2)"))
    assert not tutorials.is_current(page)


def test_the_name_of_the_machine_is_not_written_into_a_page(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "my-laptop")
    printed = f"process 12 on my-laptop, ended\n{tutorials.ROOT}/src and {Path.home()}/data"
    assert tutorials.anonymous(printed) == "process 12 on host, ended\nlangevin/src and ~/data"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_runs_at_toy_size(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed, _, figures, _ = tutorials.run_blocks(PAGES[name], toy=True)
    assert figures
    assert any(text.strip() for text in printed)
    if name == "resume":
        assert "identical to the uninterrupted run: True" in "".join(printed)
        assert "identical to those of one: True" in "".join(printed)
