import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.ensembles.ensemble import WeightList
from langevin.evaluation.attacks import predictive_gradient, under_attack
from tests.helpers import toy_data, toy_posterior


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    return lv.sample(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), steps=60, thin=5, chains=2, progress=False)


def test_the_gradient_goes_through_the_whole_ensemble(run):
    """Against central differences of −log of the mean probability that `predict` gives."""
    double = in_double(run)
    x, y = toy_data(n=5, dtype=torch.float64)

    def loss(at):
        return -double.predict(at).probs.gather(1, y[:, None]).log().squeeze(1)

    found = predictive_gradient(double, x, y, batch_size=2)
    h = 1e-5
    for j in range(x.shape[1]):
        step = torch.zeros_like(x)
        step[:, j] = h
        torch.testing.assert_close(found[:, j], (loss(x + step) - loss(x - step)) / (2 * h), rtol=1e-6, atol=1e-9)


def test_the_gradient_of_a_module_is_that_of_autograd_and_does_not_change_the_module():
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)).eval()
    model[1].train()
    x, y = toy_data(n=6)
    found = predictive_gradient(model, x, y)
    at = x.clone().requires_grad_()
    outputs = model[2](model[0](at))  # dropout is off
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, y, reduction="sum"), at)
    torch.testing.assert_close(found, expected)
    assert [layer.training for layer in model] == [False, True, False]
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def test_a_saturated_model_still_has_a_gradient():
    """softmax of the label underflows to 0: the probability has no gradient, its logarithm does."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[300.0, 0.0], [-300.0, 0.0]]))
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert float(model(x).detach().softmax(1)[0, 1]) == 0.0
    torch.testing.assert_close(predictive_gradient(model, x, y), torch.tensor([[600.0, 0.0]]))


def test_fgsm_moves_every_input_by_eps_along_the_sign_of_the_gradient(run):
    x, y = toy_data()
    attacked = lv.evaluation.FGSM(0.1).perturb(run, x, y)
    torch.testing.assert_close(attacked, x + 0.1 * predictive_gradient(run, x, y).sign())
    clipped = lv.evaluation.FGSM(0.1, clip=(-0.5, 0.5)).perturb(run, x.clamp(-0.5, 0.5), y)
    assert float(clipped.abs().max()) <= 0.5


def test_pgd_stays_in_the_box_and_is_stronger_than_fgsm(run):
    x, y = toy_data()
    plain, fgsm, pgd = (
        under_attack(run, attack, x, y)
        for attack in (lv.evaluation.FGSM(0.0), lv.evaluation.FGSM(0.5), lv.evaluation.PGD(0.5, steps=10))
    )
    assert float((pgd.x - x).abs().max()) <= 0.5 + 1e-6
    assert plain.accuracy == plain.clean_accuracy > fgsm.accuracy
    assert fgsm.nll > plain.nll
    assert pgd.nll > 0.999 * fgsm.nll  # the toy network is nearly linear, so both end near the same corner
    again = lv.evaluation.PGD(0.5, steps=10).perturb(run, x, y)
    assert torch.equal(again, pgd.x)
    single = lv.evaluation.PGD(0.5, steps=1, step_size=0.5, random_start=False).perturb(run, x, y)
    torch.testing.assert_close(single, fgsm.x)


def test_on_a_linear_model_fgsm_is_the_worst_case_in_the_box():
    model = nn.Linear(4, 2)
    x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    normal = (model.weight[1] - model.weight[0]).sign()
    torch.testing.assert_close(lv.evaluation.FGSM(0.3).perturb(model, x, y), x + 0.3 * normal)


def test_detection_of_attacked_inputs_and_transfer(run):
    x, y = toy_data()
    found = under_attack(run, lv.evaluation.FGSM(0.3), x, y)
    assert set(found.detection) == {"max probability", "entropy", "mutual information"}
    same = under_attack(run, lv.evaluation.FGSM(0.0), x, y)
    assert same.detection["entropy"].auroc == pytest.approx(0.5)
    other = nn.Linear(4, 3)
    transferred = under_attack(run, lv.evaluation.FGSM(0.3), x, y, surrogate=other)
    torch.testing.assert_close(transferred.x, lv.evaluation.FGSM(0.3).perturb(other, x, y))
    single = under_attack(other, lv.evaluation.FGSM(0.3), x, y)
    assert set(single.detection) == {"max probability", "entropy"}  # a single model has no mutual information


def test_bad_input_is_refused(run):
    x, y = toy_data(n=3)
    with pytest.raises(ValueError, match="eps=-1"):
        lv.evaluation.FGSM(-1.0)
    with pytest.raises(ValueError, match="eps=nan"):
        lv.evaluation.PGD(math.nan)
    with pytest.raises(ValueError, match="steps=0"):
        lv.evaluation.PGD(0.1, steps=0)
    with pytest.raises(ValueError, match="lowest, highest"):
        lv.evaluation.FGSM(0.1, clip=(1.0, 0.0))
    with pytest.raises(ValueError, match=r"x.float\(\) / 255"):
        lv.evaluation.FGSM(0.1).perturb(run, x.long(), y)
    with pytest.raises(ValueError, match="as many labels as inputs"):
        lv.evaluation.FGSM(0.1).perturb(run, x, y[:2])
    with pytest.raises(ValueError, match="gradients through; given Tensor"):
        lv.evaluation.FGSM(0.1).perturb(torch.zeros(3, 2), x, y)


def in_double(run):
    """The same samples in double precision, for central differences."""
    return WeightList(run.predictors[0][0], run).double()
