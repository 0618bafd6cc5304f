"""All thermometers of a run, in its summary and in its report: by tensor, along the stiffest and softest directions."""

import warnings

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.errors import ConvergenceWarning
from langevin.report.tables import estimate


def problem(n=200):
    """Regression with a large feature and nineteen small ones: two stiff directions, bias included, the rest soft."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 20, generator=generator) * torch.tensor([1.0] + [0.15] * 19)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(n, 1, generator=generator)
    torch.manual_seed(0)
    return lv.Posterior(nn.Linear(20, 1), lv.likelihoods.Gaussian(0.5), num_data=n), (x, y)


@pytest.fixture(scope="module")
def sampled():
    posterior, data = problem()
    options = {"lr": 0.2, "batch_size": 200, "steps": 1200, "chains": 12, "probe": 0.3, "mode": "vectorised"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = lv.sample(posterior, data, lv.SGLD, compile=False, progress=False, **options)
    return run, posterior, data


def test_the_summary_has_every_thermometer(sampled):
    run, posterior, data = sampled
    text = run.summary(posterior, data)
    for words in (
        "virial, weight",
        "virial, bias",
        "gradient, weight",
        "gradient, bias",
        "along the stiffest direction",
    ):
        assert words in text
        assert words in run.summary()
    assert text.count("virial, along a soft direction") == 3
    assert "along a soft direction" not in run.summary()  # a pass over the data per sample, for those who ask


def test_the_report_has_every_thermometer(sampled):
    run, posterior, data = sampled
    report = lv.evaluate(run, data, train=(posterior, data), probe=5)
    (table,) = [table for table in report.tables if table.title == "Temperature"]
    rows = {row[0]: row[1:] for row in table.rows}
    soft = [f"Softest direction {i}" for i in (1, 2, 3)]
    assert list(rows) == ["All weights", "Stiffest direction", *soft, "weight", "bias"]
    for name in ("weight", "bias"):
        assert rows[name] == [estimate(run.temperatures()[name]), estimate(run.gradient_temperatures()[name])]
    assert rows["Stiffest direction"] == ["", estimate(run.stiffest_temperature())]


def test_the_worst_of_them_decides(sampled):
    """1/(1 − lr λ/2) is 1.7 in two stiff directions and 1.01 in the others: the mean is on target, the run is bad."""
    run = sampled[0]
    found = run.all_temperatures()
    assert found.virial.mean < 1.1 + 2 * found.virial.error < 1.2
    assert found.stiffest.mean > 1.4
    judged = found.judge()
    assert judged.level == "bad"
    assert "too hot" in judged.message
    assert run.verdict().level == "bad"
