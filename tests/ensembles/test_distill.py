"""Distillation of teachers for which the optimal student is known."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core.likelihoods import Bernoulli, Categorical
from langevin.ensembles.distill import MeanAndVariance, _divergence
from langevin.ensembles.prediction import ClassPrediction, ValuePrediction
from tests.helpers import toy_data, toy_model, toy_posterior


class Teacher:
    """An ensemble whose predictions are given by a function."""

    def __init__(self, function):
        self.function = function

    def predict(self, x, *, batch_size=1024, samples=False):
        return self.function(x)


def classes(probs):
    entropy = torch.special.entr(probs).sum(1)
    return ClassPrediction(probs, entropy, entropy)


def test_a_student_of_the_same_family_recovers_the_teacher():
    x = torch.randn(300, 4)
    truth = nn.Linear(4, 3)
    teacher = Teacher(lambda x: classes(truth(x).softmax(1).detach()))
    student = nn.Linear(4, 3)
    before = [p.clone() for p in student.parameters()]
    distilled = lv.distill(teacher, student, x, steps=1500, lr=0.05)
    torch.testing.assert_close(distilled.predict(x).probs, teacher.predict(x).probs, atol=2e-3, rtol=0)
    assert distilled.trace("loss")[0][-1] < 1e-5
    assert all(torch.equal(a, b) for a, b in zip(before, student.parameters(), strict=True))  # not modified
    assert float(distilled.predict(x).mutual_information.abs().max()) < 1e-6


def test_regression_recovers_mean_and_total_variance():
    x = torch.linspace(-1, 1, 200)[:, None]
    teacher = Teacher(lambda x: ValuePrediction(2 * x + 1, 0.3 * x.exp(), 0.2 * x.exp()))
    distilled = lv.distill(teacher, nn.Linear(1, 2), x, steps=1500, lr=0.05)
    got, expected = distilled.predict(x), teacher.predict(x)
    torch.testing.assert_close(got.mean, expected.mean, atol=2e-3, rtol=0)
    torch.testing.assert_close(got.variance, expected.variance, atol=0, rtol=5e-3)


def test_the_loss_agrees_with_the_kl_divergence_of_torch():
    p, logits = torch.randn(5, 3).softmax(1), torch.randn(5, 3)
    got = _divergence(classes(p), torch.arange(5), Categorical(), logits)
    of = torch.distributions
    expected = of.kl_divergence(of.Categorical(p), of.Categorical(logits=logits)).mean()
    torch.testing.assert_close(got, expected)

    teacher = ValuePrediction(torch.randn(5, 2), torch.rand(5, 2), torch.rand(5, 2))
    output = torch.randn(5, 4)
    got = _divergence(teacher, torch.arange(5), MeanAndVariance((2,)), output)
    student = of.Normal(output[:, :2], output[:, 2:].mul(0.5).exp())
    expected = of.kl_divergence(of.Normal(teacher.mean, teacher.variance.sqrt()), student).sum(1).mean()
    torch.testing.assert_close(got, expected)


def test_the_log_density_of_a_regression_student():
    likelihood = MeanAndVariance(())
    output = torch.tensor([[1.0, math.log(4.0)]])
    assert float(likelihood.log_prob(output, torch.tensor([3.0]))) == pytest.approx(
        -0.5 - math.log(2) - 0.5 * math.log(2 * math.pi)
    )


def test_a_run_is_distilled_into_one_network():
    x, _ = toy_data()
    run = lv.sample(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.1), steps=400, progress=False)
    distilled = lv.distill(run, toy_model(), x, steps=800, lr=0.02)
    gap = (distilled.predict(x).probs - run.predict(x).probs).abs().max()
    assert float(gap) < 0.06
    assert distilled.manifest["of"]["sampler"]["name"] == "SGLD"
    assert distilled.manifest["options"]["inputs"] == 60


def test_two_classes_with_one_logit():
    x = torch.randn(100, 2)
    teacher = Teacher(lambda x: classes(torch.stack([1 - x[:, 0].sigmoid(), x[:, 0].sigmoid()], 1)))
    distilled = lv.distill(teacher, nn.Linear(2, 1), x, steps=800, lr=0.05)
    assert isinstance(distilled.predictors[0][0].likelihood, Bernoulli)
    torch.testing.assert_close(distilled.predict(x).probs, teacher.predict(x).probs, atol=5e-3, rtol=0)


@pytest.mark.parametrize(
    ("student", "options", "message"),
    [
        (nn.Linear(4, 2), {}, r"\(n, 2\), expected \(n, 3\)"),
        (nn.Linear(4, 1), {}, "the logits of 3 classes"),
        (nn.Linear(4, 3), {"steps": 0}, "steps must be an integer, 1 or more"),
        (nn.Linear(4, 3), {"lr": -1.0}, "lr must be a number, positive"),
    ],
)
def test_bad_input(student, options, message):
    teacher = Teacher(lambda x: classes(torch.full((len(x), 3), 1 / 3)))
    with pytest.raises(ValueError, match=message):
        lv.distill(teacher, student, torch.randn(10, 4), **options)


def test_a_regression_student_without_a_variance_is_refused():
    teacher = Teacher(lambda x: ValuePrediction(x[:, :1], x[:, :1] ** 2, x[:, :1] ** 2))
    with pytest.raises(ValueError, match="a mean and a log-variance of each of 1 value"):
        lv.distill(teacher, nn.Linear(4, 1), torch.randn(10, 4))


def test_a_diverging_student_is_reported():
    teacher = Teacher(lambda x: ValuePrediction(x[:, :1], x[:, :1] ** 2 * 0, x[:, :1] ** 2 * 0 + 1e-30))
    with pytest.raises(FloatingPointError, match="Lower lr"):
        lv.distill(teacher, nn.Linear(4, 2), torch.randn(10, 4), lr=1e6, steps=100)


def test_unknown_traces_are_refused():
    distilled = lv.distill(
        Teacher(lambda x: classes(torch.full((len(x), 2), 0.5))), nn.Linear(1, 2), torch.randn(4, 1), steps=1
    )
    with pytest.raises(ValueError, match='"loss" only'):
        distilled.trace("temperature")
