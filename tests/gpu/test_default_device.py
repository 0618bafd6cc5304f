"""Whoever has called `torch.set_default_device("cuda")`: no tensor of the library lies there by accident.

The default device is "meta" here, whose tensors have no numbers; model and data are on the CPU.
"""

import warnings

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core import devices
from langevin.evaluation import PGD
from tests.helpers import toy_data, toy_model

X, Y = toy_data()
OPTIONS = {"lr": 1e-3, "steps": 8, "burn_in": 4, "thin": 2, "batch_size": 10, "progress": False, "seed": 3}


@pytest.fixture(autouse=True)
def _default_device():
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        yield


def posterior():
    with torch.device("cpu"):
        return lv.Posterior(toy_model(), lv.likelihoods.Categorical(), num_data=60)


def test_the_default_device_is_another():
    assert torch.zeros(1).is_meta
    assert torch.as_tensor(X).is_meta
    assert devices.as_tensor(X) is X
    assert devices.as_tensor([1.0]).is_cpu


@pytest.mark.parametrize("kind", [lv.SGHMC, lv.MCLMC, lv.KSGLD])
def test_sample_resume_and_load(kind, tmp_path):
    options = {**OPTIONS, "batch_size": "full" if kind.full_batch else 10}
    lv.sample(posterior(), (X, Y), kind, **options, out=tmp_path / "r")
    lv.resume(tmp_path / "r", posterior(), (X, Y), steps=12, progress=False)
    run = lv.load(tmp_path / "r", posterior().model)
    assert run.predict(X).probs.is_cpu
    assert run.predict(X.numpy()).log_prob(Y.tolist()).is_cpu


def test_evaluate_and_draw():
    run = lv.sample(posterior(), list(zip(X, Y, strict=True)), lv.SGLD, chains=2, **OPTIONS)
    report = lv.evaluate(run, (X, Y), ood={"far": 5 * X}, attack=PGD(0.1, steps=2), attack_examples=20)
    assert "accuracy" in str(report)
    assert run.predict(X).sample(2).is_cpu
    assert str(run.summary())
    assert lv.prior_predictive(posterior(), X).probs.is_cpu


def test_values_and_sampled_scales():
    with torch.device("cpu"):
        likelihood, prior = lv.likelihoods.Gaussian(std=0.5, sampled=True), {"*": lv.priors.SampledGaussian(3.0, 2.0)}
        p = lv.Posterior(nn.Linear(4, 1), likelihood, prior, num_data=60)
    run = lv.sample(p, (X, X[:, :1]), lv.SGHMC, **OPTIONS)
    assert run.predict(X).quantile(0.5).is_cpu
    assert str(lv.evaluate(run, (X, X[:, :1])))
