import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.diagnostics.curvature import largest_curvature
from langevin.inference.doctor import examine
from tests.helpers import toy_data, toy_model, toy_posterior


def levels(findings):
    """The worst level of each check."""
    order = ["ok", "note", "warning", "error"]
    worst = {}
    for finding in findings:
        worst[finding.check] = max(worst.get(finding.check, "ok"), finding.level, key=order.index)
    return worst


def test_a_correct_set_up_has_no_findings():
    findings = examine(toy_posterior(), toy_data(), sampler=partial(lv.SGLD, lr=1e-5), search=False)
    assert set(levels(findings).values()) == {"ok"}
    assert len(levels(findings)) == 8


def test_a_wrong_number_of_data():
    findings = examine(toy_posterior(n=600), toy_data())
    assert levels(findings)["number of data"] == "error"
    assert any("temperature of 0.1 instead of 1. Write num_data=60" in finding.message for finding in findings)


def test_a_summed_loss_is_found_and_a_mean_is_not():
    model = toy_model()

    def summed(x, y):
        return nn.functional.cross_entropy(model(x), y, reduction="sum")

    def averaged(x, y):
        return nn.functional.cross_entropy(model(x), y)

    assert levels(examine(toy_posterior(model), toy_data(), loss=summed))["mean or sum"] == "error"
    assert levels(examine(toy_posterior(model), toy_data(), loss=averaged))["mean or sum"] == "ok"

    class Scaled(lv.likelihoods.Categorical):
        def log_prob(self, output, target):
            return super().log_prob(output, target) * len(target)  # per example, and yet a sum in disguise

    for std in (1.0, 0.01):  # the energy of a strong prior, which does not double, must not hide the sum
        posterior = lv.Posterior(model, Scaled(), lv.priors.Gaussian(std), num_data=60)
        assert levels(examine(posterior, toy_data()))["mean or sum"] == "error"


@pytest.mark.filterwarnings("ignore:Layer")
def test_layers():
    def net(layer):
        return nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 3))

    sgld, sgd = partial(lv.SGLD, lr=1e-3), partial(lv.SGD, lr=1e-3)
    norm = toy_posterior(net(nn.BatchNorm1d(5)))
    assert levels(examine(norm, toy_data(), sampler=sgld))["layers"] == "error"
    assert levels(examine(norm, toy_data(), sampler=sgd))["layers"] == "warning"
    found = levels(examine(toy_posterior(net(nn.Dropout(0.5))), toy_data(), sampler=sgld))
    assert found["layers"] == "error"
    assert found["repeatability"] == "error"


def test_frozen_parameters_are_noted():
    findings = examine(toy_posterior(sampled="2.*"), toy_data())
    assert levels(findings)["frozen parameters"] == "note"
    assert any("25 weights are frozen" in finding.message for finding in findings)


def test_labels_out_of_range():
    x, y = toy_data()
    assert levels(examine(toy_posterior(), (x, y + 9)))["targets"] == "error"


def test_the_largest_curvature_is_the_largest_eigenvalue():
    x, y = toy_data()
    posterior = lv.Posterior(
        nn.Linear(4, 1, bias=False), lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(2.0), num_data=60
    )
    hessian = x.T @ x / 60 / 0.25 + torch.eye(4) / 4 / 60
    exact = float(torch.linalg.eigvalsh(hessian)[-1])
    assert largest_curvature(posterior, x, y[:, None].float(), iterations=200) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("name", ["SGD", "SGLD", "SGHMC"])
def test_the_learning_rate_is_judged_by_the_stability_limit_and_the_limit_is_real(name):
    """Just below the limit the iterates stay, just above they blow up; and the doctor says so beforehand."""
    x = torch.linalg.qr(torch.randn(60, 4)).Q * math.sqrt(60)
    data = x, x.sum(1, keepdim=True)

    def posterior():
        return lv.Posterior(
            nn.Linear(4, 1, bias=False), lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(), num_data=60
        )

    kind = getattr(lv, name)
    limit = kind([nn.Parameter(torch.zeros(1))], lr=1e-3, num_data=60).stability_limit(4 + 1 / 60)
    for factor, verdict in ((0.2, "ok"), (0.9, "warning"), (1.1, "error")):
        sampler = partial(kind, lr=factor * limit)
        findings = examine(posterior(), data, sampler=sampler, batch_size=60, search=False)
        assert levels(findings)["learning rate"] == verdict
        options = {"batch_size": 60, "steps": 3000, "progress": False}
        if verdict == "error":
            with pytest.raises(lv.DivergenceError):
                lv.sample(posterior(), data, sampler, **options)
        else:
            lv.sample(posterior(), data, sampler, **options)


def test_the_doctor_and_find_lr_say_the_same(monkeypatch):
    data, short = toy_data(), partial(lv.find_lr, steps=100)
    monkeypatch.setattr("langevin.inference.doctor.find_lr", short)
    found = short(toy_posterior(), data, lv.SGLD, batch_size=10, progress=False)
    for factor, level in ((0.9, "ok"), (3.0, "warning")):
        sampler = partial(lv.SGLD, lr=factor * found.lr)
        findings = [
            f for f in examine(toy_posterior(), data, sampler=sampler, batch_size=10) if f.check == "temperature"
        ]
        assert [finding.level for finding in findings] == [level]
        assert f"it would be about {found.expected(factor * found.lr)[0]:.3g}, and" in findings[0].message
    assert f"Try lr={found.lr:.2g}, which find_lr finds." in findings[0].message


def test_the_gradient_noise_temperature_of_a_sampler_without_another():
    (finding,) = [
        f
        for f in examine(toy_posterior(), toy_data(), sampler=partial(lv.FSGD, lr=0.5), batch_size=2)
        if f.check == "gradient noise"
    ]
    assert finding.level == "note"
    assert "It is the only noise" in finding.message
