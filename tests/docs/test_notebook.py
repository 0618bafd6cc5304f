"""Objects in a notebook and in a log: short, escaped, figures as figures, progress that reads well."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv

SETUP = """
import torch, langevin as lv
from torch import nn
torch.set_num_threads(1)
x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)); y = (x[:, 0] > 0).long()
posterior = lv.Posterior(nn.Linear(3, 2), lv.likelihoods.Categorical(), num_data=60)
run = lv.sample(posterior, (x, y), lv.SGLD, lr=1e-2, steps=200, chains=2, progress=False)
"""
SHOWN = {
    "posterior": "text/html",
    "run": "text/html",
    "run.predict(x)": "text/html",
    "run.verdict()": "text/html",
    "run.function_convergence(x)": "text/html",
    "lv.compare({'a': run, 'b': run[:4]}, (x, y))": "text/html",
    "lv.evaluate(run, (x, y), progress=False)": "text/html",
    "lv.plots.traces(run.trace('loss'))": "image/png",
}


def objects():
    space = {}
    exec(SETUP, space)
    return space


def test_representations_are_one_short_line():
    space = objects()
    for code in list(SHOWN)[:-1]:
        shown = repr(eval(code, space))
        assert shown.startswith("<")
        assert len(shown) < 500, code
        assert "\n" not in shown
    value = lv.Posterior(nn.Linear(3, 1), lv.likelihoods.Gaussian(0.5), num_data=60)
    run = lv.sample(value, (space["x"], space["x"][:, :1]), lv.SGLD, lr=1e-3, steps=40, progress=False)
    prediction = run.predict(space["x"])
    assert repr(prediction).startswith("<ValuePrediction of 60 inputs")
    assert "and 55 more" in prediction._repr_html_()


def test_the_text_of_a_user_is_escaped():
    x = torch.zeros(4, 3)
    predicted = {"<script>": lv.Ensemble.from_classifier(nn.Linear(3, 2)).predict(x)}
    table = lv.compare(predicted, (x, torch.tensor([0, 1, 0, 1])), resamples=2)._repr_html_()
    assert "<script>" not in table
    assert "&lt;script&gt;" in table


def test_a_notebook_shows_tables_figures_and_a_progress_bar():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    bar = "from langevin.core.progress import tqdm\nfor _ in tqdm(range(3), desc='steps'): pass\n"
    bar += "for _ in tqdm(range(3), desc='a stage', leave=False): pass"
    cells = [SETUP, *SHOWN, bar]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    for cell, (code, kind) in zip(book.cells[1:-1], SHOWN.items(), strict=True):
        (output,) = [o for o in cell.outputs if o.output_type == "execute_result"]
        assert kind in output.data, code
        assert len(output.data["text/plain"]) < 500
    assert "<iframe" in book.cells[7].outputs[-1].data["text/html"]
    shown = [kind for output in book.cells[-1].outputs for kind in output.get("data", {})]
    assert "application/vnd.jupyter.widget-view+json" in shown or book.cells[-1].outputs[0].name == "stderr"
    widgets = book.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    layouts = [widget["state"].get("display") for widget in widgets.values() if widget["model_name"] == "LayoutModel"]
    assert not layouts or layouts.count("none") == 1  # what is closed leaves no empty line


def test_a_log_file_has_whole_lines(tmp_path):
    code = (
        "import time, langevin.core.progress as progress\n"
        "progress._BETWEEN = 0.02\n"
        "for _ in progress.tqdm(range(20), desc='steps', dynamic_ncols=True): time.sleep(0.005)\n"
    )
    log = tmp_path / "log"
    with log.open("w") as file:
        subprocess.run([sys.executable, "-c", code], stderr=file, check=True, cwd=Path(__file__).parents[2])
    text = log.read_text()
    assert "\r" not in text
    assert 2 <= len(text.splitlines()) <= 12
    assert text.splitlines()[-1].startswith("steps: 100% 20/20")
