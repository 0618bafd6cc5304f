import json
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import langevin as lv
from langevin.evaluation import scores
from tests.helpers import toy_data, toy_model, toy_posterior


def predictions(n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    hint = 2.0 * nn.functional.one_hot(labels, 3)
    noise = torch.randn(n, 3, generator=generator)
    return {
        "weak": (0.3 * hint + noise).softmax(1),
        "strong": (1.5 * hint + noise).softmax(1),
        "same": (0.3 * hint + noise).softmax(1),
    }, labels


def test_scores_and_differences():
    probs, labels = predictions()
    table = lv.compare(probs, (torch.zeros(len(labels), 1), labels), resamples=200)
    for name, p in probs.items():
        for metric, value in scores.class_scores(p, labels).items():
            if metric in table.metrics:
                assert table.scores[name][metric].value == pytest.approx(value)
                assert table.scores[name][metric].low <= table.scores[name][metric].high
    difference = table.differences["strong"]["nll"]
    assert difference.value == pytest.approx(table.scores["strong"]["nll"].value - table.scores["weak"]["nll"].value)
    assert difference.excludes_zero
    assert difference.high < 0
    assert table.differences["same"]["accuracy"] == (0.0, 0.0, 0.0)  # paired: all runs are scored on the same examples
    assert not table.differences["same"]["accuracy"].excludes_zero
    assert "weak" not in table.differences


def test_the_interval_is_that_of_the_mean_of_paired_differences():
    """Of a difference of means over n examples: ± 1.96 standard errors of the paired differences."""
    probs, labels = predictions(n=400)
    table = lv.compare(probs, (torch.zeros(400, 1), labels), metrics=["brier"], resamples=2000)
    each = scores.brier_each(probs["strong"], labels) - scores.brier_each(probs["weak"], labels)
    error = float(each.std() / 20)
    found = table.differences["strong"]["brier"]
    for side, sign in ((found.low, -1), (found.high, 1)):
        # the quantile of 2000 resamples is known to √(0.025·0.975/2000)/φ(1.96) ≈ 0.06 errors
        assert side == pytest.approx(found.value + sign * 1.96 * error, abs=0.25 * error)


def test_resampled_calibration_error_is_the_calibration_error_of_the_resample():
    from langevin.evaluation.compare import _calibration

    probs, labels = predictions(n=57)
    chosen = np.random.default_rng(0).integers(57, size=57)
    statistic = _calibration(probs["weak"], labels)
    expected = scores.calibration_error(probs["weak"][chosen], labels[chosen])
    whole = scores.calibration_error(probs["weak"], labels)
    assert statistic(chosen) == pytest.approx(expected)
    assert statistic(np.stack([chosen, np.arange(57)])) == pytest.approx([expected, whole])


def test_one_example_has_no_intervals():
    probs, labels = predictions(n=1)
    table = lv.compare(probs, (torch.zeros(1, 1), labels))
    difference = table.differences["strong"]["nll"]
    assert difference.value == pytest.approx(table.scores["strong"]["nll"].value - table.scores["weak"]["nll"].value)
    assert np.isnan([difference.low, difference.high]).all()
    assert not difference.excludes_zero


def test_runs_modules_predictions_and_data_sets():
    data = toy_data()
    run = lv.sample(toy_posterior(), data, partial(lv.SGLD, lr=0.05), steps=40, thin=5, progress=False)
    table = lv.compare(
        {"net": toy_model(), "run": run, "probs": run.predict(data[0])}, TensorDataset(*data), resamples=20
    )
    assert table.scores["run"] == table.scores["probs"]
    assert table.examples == 60
    text, markdown = str(table), table.markdown()
    assert "run − net" in text
    assert "95% paired bootstrap" in text
    lines = markdown.splitlines()
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert len({line.count("|") for line in lines}) == 1
    assert json.loads(json.dumps(table.to_dict()))["scores"]["net"]["nll"]["value"] == table.scores["net"]["nll"].value
    pairs = [(x, y) for x, y in zip(*data, strict=True)]
    assert lv.compare({"run": run}, pairs, resamples=20).scores["run"] == table.scores["run"]


def test_regression():
    x = torch.linspace(-1, 1, 30)[:, None]
    y = x + 0.1 * torch.randn(30, 1)
    posterior = lv.Posterior(
        nn.Linear(1, 1), lv.likelihoods.Gaussian(0.3, sampled=True), lv.priors.Gaussian(), num_data=30
    )
    run = lv.sample(posterior, (x, y), partial(lv.SGLD, lr=0.01), steps=100, thin=10, progress=False)
    table = lv.compare({"a": run, "b": run.predict(x, samples=True)}, (x, y), resamples=20)
    assert table.metrics == ["rmse", "nll", "crps"]
    assert table.scores["a"] == table.scores["b"]
    prediction = run.predict(x, samples=True)
    assert table.scores["a"]["rmse"].value == pytest.approx(float((prediction.mean - y).square().mean().sqrt()))
    # the density is the mixture over samples, each with its own noise
    stds = torch.stack([sample["likelihood.log_std"].exp() for sample in run])
    densities = torch.distributions.Normal(prediction.samples, stds[:, None, None]).log_prob(y).exp().mean(0)
    assert table.scores["a"]["nll"].value == pytest.approx(float(-densities.log().mean()), rel=1e-5)


def test_bad_input_is_refused():
    probs, labels = predictions(n=20)
    test = (torch.zeros(20, 1), labels)
    with pytest.raises(ValueError, match="no runs to compare"):
        lv.compare({}, test)
    with pytest.raises(ValueError, match=r"do not predict the same quantity \('a': 3 classes; 'b': 2 classes\)"):
        lv.compare({"a": probs["weak"], "b": torch.full((20, 2), 0.5)}, test)
    with pytest.raises(ValueError, match="found label 5"):
        lv.compare({"a": probs["weak"]}, (test[0], labels.clone().fill_(5)))
    with pytest.raises(ValueError, match="predictions for 19 examples; the test data have 20"):
        lv.compare({"a": probs["weak"][:19]}, test)
    with pytest.raises(ValueError, match="test data are empty"):
        lv.compare({"a": probs["weak"]}, (test[0][:0], labels[:0]))
    with pytest.raises(ValueError, match="test data are empty"):
        lv.compare({"a": probs["weak"]}, [])
    with pytest.raises(ValueError, match="metrics=\\['f1'\\]"):
        lv.compare({"a": probs["weak"]}, test, metrics=["f1"])
    with pytest.raises(ValueError, match="given str"):
        lv.compare({"a": "run"}, test)
    with pytest.raises(ValueError, match="row 0 sums to 2"):
        lv.compare({"a": probs["weak"] * 2}, test)


def test_temperature_scaled_values_are_compared():
    """They are Gaussian as a whole, without members."""
    x = torch.linspace(-1, 1, 30)[:, None]
    model = lv.Ensemble.from_weights(nn.Linear(1, 1), lv.likelihoods.Gaussian(0.1))
    y = model.predict(x).mean + 0.5 * torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    scaled = lv.evaluation.temperature_scaling(model, (x, y))
    found = lv.compare({"as it is": model, "scaled": scaled}, (x, y), resamples=20).scores
    assert found["scaled"]["nll"].value < found["as it is"]["nll"].value
    assert found["scaled"]["rmse"].value == pytest.approx(found["as it is"]["rmse"].value)
