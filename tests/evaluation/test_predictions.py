"""Out-of-distribution detection and other scores of runs, undefined cases, bad input."""

from functools import partial

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.evaluation import ood, scores, selective
from langevin.evaluation.inputs import examples, prediction_of
from langevin.evaluation.small_data import overfitting_curve
from tests.helpers import toy_data, toy_posterior


@pytest.fixture(scope="module")
def run():
    return lv.sample(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), steps=60, thin=5, progress=False)


def test_uncertainty_is_aleatoric_plus_epistemic(run):
    prediction = run.predict(toy_data()[0], samples=True)
    of_samples = torch.special.entr(prediction.samples.double()).sum(2)
    torch.testing.assert_close(prediction.aleatoric.double(), of_samples.mean(0), rtol=1e-5, atol=1e-6)
    total = prediction.aleatoric + prediction.mutual_information
    torch.testing.assert_close(total, prediction.entropy)
    of_mean = torch.special.entr(prediction.samples.double().mean(0)).sum(1)
    torch.testing.assert_close(prediction.entropy.double(), of_mean, rtol=1e-5, atol=1e-6)
    assert float(prediction.mutual_information.min()) > -1e-6


def test_ood_inputs_are_detected_by_every_uncertainty(run):
    inside, outside = run.predict(3 * toy_data()[0]), run.predict(0.01 * torch.randn(50, 4))
    found = ood.out_of_distribution(inside, outside)
    assert list(found) == ["max probability", "entropy", "mutual information"]
    assert found["entropy"].auroc > 0.8  # near the origin confidence is low
    scores_of = ood.uncertainties(inside)
    torch.testing.assert_close(scores_of["max probability"].float(), 1 - inside.confidence)
    alike = ood.out_of_distribution(inside, inside)
    assert alike["entropy"].auroc == pytest.approx(0.5)


def test_a_run_of_one_sample_has_no_mutual_information_to_detect_with():
    run = lv.sample(
        toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), steps=10, burn_in=0, thin=10, progress=False
    )
    assert len(run) == 1
    found = ood.out_of_distribution(run.predict(toy_data()[0]), run.predict(torch.randn(5, 4)))
    assert list(found) == ["max probability", "entropy"]


def test_an_empty_out_of_distribution_set_is_refused(run):
    with pytest.raises(ValueError, match="x is empty"):
        run.predict(torch.zeros(0, 4))
    with pytest.raises(ValueError, match="Leave out an empty out-of-distribution set"):
        ood.detection(torch.ones(3), torch.ones(0))
    with pytest.raises(ValueError, match="1 of the outside scores are not finite"):
        ood.detection(torch.ones(3), torch.tensor([1.0, torch.nan]))


def test_ties_in_confidence_count_with_their_mean_error():
    probs = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.6, 0.4], [0.9, 0.1]])
    labels = torch.tensor([1, 0, 0, 0])  # wrong, right, right, right
    found = selective.risk_coverage(probs, labels)
    assert found.risk.tolist() == pytest.approx([0, 0.25, 1 / 3, 0.25])
    assert found.aurc == pytest.approx((0.25 + 1 / 3 + 0.25) / 4)
    assert found.risk_at(0.5) == pytest.approx(0.25)
    assert found.excess_aurc == pytest.approx(found.aurc - 0.25 / 4)
    by_another = selective.risk_coverage(probs, labels, torch.tensor([9.0, 1.0, 2.0, 3.0]))
    assert by_another.risk.tolist() == pytest.approx([0, 0, 0, 0.25])
    with pytest.raises(ValueError, match="coverage=0"):
        found.risk_at(0)
    with pytest.raises(ValueError, match="uncertainty must have the shape"):
        selective.risk_coverage(probs, labels, torch.zeros(3))


def test_overfitting_shrinks_with_data():
    x, y = toy_data(n=260)
    train, test = (x[:60], y[:60]), (x[60:], y[60:])
    seen = []

    def make(x, y):
        seen.append(x)
        posterior = toy_posterior(n=len(y))
        options = {"batch_size": len(y), "steps": 300, "thin": 300, "burn_in": 0, "progress": False}
        return lv.sample(posterior, (x, y), partial(lv.SGD, lr=0.5), **options)

    points = overfitting_curve(make, train, test, [6, 60], seed=1)
    assert [point.size for point in points] == [6, 60]
    assert torch.equal(seen[1][:6], seen[0])  # nested
    assert points[0].gap > points[1].gap
    expected = scores.negative_log_likelihood(make(*train).predict(test[0]).probs, test[1])
    assert points[1].test_nll == pytest.approx(expected, rel=0.05)  # the same examples in another order
    with pytest.raises(ValueError, match=r"sizes=\[61\]: give numbers of training examples from 1 to 60"):
        overfitting_curve(make, train, test, [61])


def test_invalid_probabilities_are_refused():
    labels = torch.tensor([0, 1])
    for probs, message in (
        (torch.tensor([[0.5, 0.5], [0.9, 0.2]]), "row 1 sums to 1.1 .1 of 2 rows"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), "0 or more"),
        (torch.tensor([[torch.nan, 0.5], [0.5, 0.5]]), "row 0 sums to nan"),
        (torch.zeros(0, 2), r"given \(0, 2\)"),
        (torch.full((2,), 0.5), r"\(n, classes\)"),
    ):
        for score in (scores.accuracy, scores.brier, scores.calibration_error, selective.risk_coverage):
            with pytest.raises(ValueError, match=message):
                score(probs, labels)
        with pytest.raises(ValueError, match=message):
            ood.confidence_histogram(probs)
    fine = torch.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="found label 2"):
        scores.accuracy(fine, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="found label 0.5"):
        scores.accuracy(fine, torch.tensor([0, 0.5]))
    with pytest.raises(ValueError, match=r"For one-hot labels pass y.argmax\(1\)"):
        scores.accuracy(fine, torch.eye(2).long())
    with pytest.raises(ValueError, match="bins=3 of equal mass for 2 examples"):
        scores.calibration_error(fine, labels, bins=3)
    with pytest.raises(ValueError, match="equal must be one of 'mass', 'width'"):
        scores.calibration_error(fine, labels, bins=2, equal="size")
    with pytest.raises(ValueError, match="1 values for each of 3 examples, the target 1 for each of 2"):
        scores.root_mean_square_error(torch.zeros(3), torch.zeros(2))


def test_sources_of_predictions(run):
    x = toy_data()[0]
    prediction = run.predict(x)
    assert prediction_of(prediction) is prediction
    from_probs = prediction_of(prediction.probs.numpy())
    torch.testing.assert_close(from_probs.entropy.float(), prediction.entropy)
    assert float(from_probs.mutual_information.abs().max()) == 0
    logits = torch.nn.Linear(4, 3)
    torch.testing.assert_close(prediction_of(logits, x).probs, logits(x).softmax(1))
    with pytest.raises(ValueError, match="2 inputs and 3 targets"):
        examples((np.zeros((2, 1)), np.zeros(3)))
    with pytest.raises(ValueError, match="given generator"):
        examples(i for i in range(3))
