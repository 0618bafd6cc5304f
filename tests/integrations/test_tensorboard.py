"""Events for TensorBoard, read back by TensorBoard's own reader."""

import math
import sys
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core.statistics import effective_sample_size
from langevin.integrations.tensorboard import TensorBoard
from tests.helpers import toy_data, toy_posterior
from tests.report.test_evaluate import command

draw = partial(lv.sample, sampler=partial(lv.SGLD, lr=1e-2), steps=60, burn_in=20, thin=4, progress=False)
NLL, ESS = "validation/NLL of the samples so far", "validation/ESS of the samples so far"


def read(directory):
    """Tag → list of (step, value)."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
def test_loss_rate_temperature_and_predictive(mode, tmp_path):
    posterior, (x, y) = toy_posterior(), toy_data()
    seen = []
    with TensorBoard(posterior, tmp_path, validation=(x[:20], y[:20]), every=5) as log:
        run = draw(posterior, (x, y), chains=2, mode=mode, callbacks=[log, seen.append])
    got = read(tmp_path)
    assert [step for step, _ in got["loss/chain 1"]] == list(range(5, 61, 5))
    losses = [m.loss[m.chains.index(1)] for m in seen if 1 in m.chains and m.step % 5 == 0]
    assert [value for _, value in got["loss/chain 1"]] == pytest.approx(losses)
    assert all(value == pytest.approx(1e-2) for _, value in got["lr/chain 0"])
    assert all(earlier[0] < later[0] for rows in got.values() for earlier, later in pairwise(rows))
    readings = [value for _, value in got["temperature/chain 0"]]
    assert sum(readings) / len(readings) == pytest.approx(sum(run.trace("temperature")[0]) / 10, rel=1e-5)  # 10 samples
    probs = run.predict(x[:20], samples=True).samples
    log_p = torch.distributions.Categorical(probs).log_prob(y[:20]).double()
    expected = -float((log_p.logsumexp(0) - math.log(len(run))).mean())
    assert got[NLL][-1] == (20, pytest.approx(expected, rel=1e-5))
    ess = sum(float(effective_sample_size(log_p[10 * c : 10 * (c + 1)]).median()) for c in range(2))
    assert got[ESS][-1][1] == pytest.approx(ess, rel=1e-4)


def test_a_resumed_run_counts_its_earlier_samples(tmp_path):
    posterior, data = toy_posterior(), toy_data()
    with TensorBoard(posterior, tmp_path / "whole", validation=data) as log:
        draw(posterior, data, callbacks=[log])
    draw(posterior, data, steps=40, out=tmp_path / "run")
    begun = lv.load(tmp_path / "run", posterior.model)
    with TensorBoard(posterior, tmp_path / "resumed", validation=data, begun=begun) as log:
        lv.resume(tmp_path / "run", posterior, data, steps=60, callbacks=[log], progress=False)
    whole, resumed = read(tmp_path / "whole"), read(tmp_path / "resumed")
    assert resumed[NLL][-1] == pytest.approx(whole[NLL][-1])
    assert resumed[ESS][-1] == pytest.approx(whole[ESS][-1])


def test_regression_with_sampled_noise(tmp_path):
    x = toy_data()[0]
    posterior = lv.Posterior(
        nn.Linear(4, 1), lv.likelihoods.Gaussian(0.5, sampled=True), lv.priors.Gaussian(), num_data=60
    )
    with TensorBoard(posterior, tmp_path, validation=(x, x[:, :1])) as log:
        run = draw(posterior, (x, x[:, :1]), callbacks=[log])
    prediction = run.predict(x, samples=True)
    densities = torch.distributions.Normal(prediction.samples, prediction.noise.sqrt()).log_prob(x[:, :1]).sum(2)
    expected = -float((densities.double().logsumexp(0) - math.log(len(run))).mean())
    assert read(tmp_path)[NLL][-1][1] == pytest.approx(expected, rel=1e-4)


def test_without_validation_data_nll_and_ess_are_not_written(tmp_path):
    with TensorBoard(toy_posterior(), tmp_path) as log:
        draw(toy_posterior(), toy_data(), callbacks=[log])
    assert {tag.partition("/")[0] for tag in read(tmp_path)} == {"loss", "lr", "temperature"}


def test_fewer_than_four_samples_have_no_ess(tmp_path):
    with TensorBoard(toy_posterior(), tmp_path, validation=toy_data()) as log:
        draw(toy_posterior(), toy_data(), steps=32, callbacks=[log])
    assert NLL in read(tmp_path)
    assert ESS not in read(tmp_path)


def test_bad_input(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="every=0"):
        TensorBoard(toy_posterior(), tmp_path, every=0)
    with pytest.raises(ValueError, match="validation has no examples"):
        TensorBoard(toy_posterior(), tmp_path, validation=(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"langevin\[tensorboard\]"):
        TensorBoard(toy_posterior(), tmp_path)


def test_the_command_line_logs(tmp_path):
    quick = ["--model", "mlp", "--data", "digits", "--lr", "0.1", "--thin", "5", "--model-option", "widths=[8]"]
    command("sample", *quick, "--steps", "40", "--out", tmp_path / "run", "--log", "tensorboard")
    command("resume", tmp_path / "run", "--steps", "60", "--log", "tensorboard")
    got = read(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in got[NLL]] == list(range(1, 11))
    assert got[ESS][-1][1] > 0
    with pytest.raises(ValueError, match="choose one of tensorboard"):
        command("sample", *quick, "--out", tmp_path / "other", "--log", "paper")
