"""The code of the tutorials runs, block after block, as it stands there."""

import re
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


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
