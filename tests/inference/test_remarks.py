"""What is probably a mistake in data or model is said before the first step, whoever chooses the settings."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.core.batches import as_batches
from langevin.errors import ConvergenceWarning
from langevin.inference.autopilot import begin
from langevin.inference.remarks import remark_on_data

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 3


class Begun(Exception):
    pass


def by_hand(posterior, data) -> None:
    lv.sample(posterior, data, lv.SGLD, lr=1e-4, steps=4, burn_in=1, progress=False)


@pytest.fixture
def by_autopilot(monkeypatch):
    def draw(posterior, data) -> None:
        def begun(*args, **options):
            raise Begun

        monkeypatch.setattr(begin, "within_limit", begun)
        with pytest.raises(Begun):
            lv.sample(posterior, data, progress=False)

    return draw


@pytest.fixture(params=["by hand", "by autopilot"])
def draw(request, by_autopilot):
    return by_hand if request.param == "by hand" else by_autopilot


def classifier(*last: nn.Module) -> lv.Posterior:
    torch.manual_seed(0)
    return lv.Posterior(nn.Sequential(nn.Linear(3, 3), *last), lv.likelihoods.Categorical(), num_data=40)


def regression() -> lv.Posterior:
    torch.manual_seed(0)
    return lv.Posterior(nn.Linear(3, 1), lv.likelihoods.Gaussian(1.0), num_data=40)


def binary(*last: nn.Module) -> lv.Posterior:
    torch.manual_seed(0)
    return lv.Posterior(nn.Sequential(nn.Linear(3, 1), *last), lv.likelihoods.Bernoulli(), num_data=40)


@pytest.mark.parametrize(
    ("posterior", "data", "message"),
    [
        (classifier(), (X + 1000, LABELS), r"not standardized \(a column has mean or standard deviation 1e\+03\)"),
        (
            classifier(),
            (torch.cat([X[:, :2], torch.full((40, 1), 50.0)], 1), LABELS),
            r"Column 2 of the inputs is constant.*leave it out",
        ),
        (regression(), (X, torch.full((40, 1), 2.5)), r"All 40 targets are the same \(2.5\)"),
        (regression(), (X, torch.full((40, 1), 250.0)), r"All 40 targets are the same \(250\)"),
        (
            regression(),
            (X, 1000 + 50 * X[:, :1]),
            r"targets are not standardized \(mean 1e\+03.*multiply predictions by",
        ),
        (classifier(), (X, torch.ones(40, dtype=torch.long)), r"All 40 targets are the same \(1\)"),
        (classifier(nn.Softmax(1)), (X, LABELS), "exceeds 0.58. Leave out the model's last softmax"),
        (binary(nn.Sigmoid()), (X, (LABELS == 0).float()[:, None]), "ends in a sigmoid"),
    ],
)
@pytest.mark.filterwarnings("ignore::langevin.errors.ConvergenceWarning")
def test_probable_mistakes_are_said(draw, posterior, data, message) -> None:
    with pytest.warns(UserWarning, match=message) as said:
        draw(posterior, data)
    assert [w.filename for w in said if "verdict" not in str(w.message)] == [__file__]


def test_nothing_is_said_of_usual_data(draw) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        draw(classifier(), (X, LABELS))


def test_examples_that_are_in_no_batch_are_said() -> None:
    data = TensorDataset(X, LABELS)
    with pytest.warns(UserWarning, match=r"its last 4 examples are in no batch.*shuffle=True"):
        by_hand(classifier(), DataLoader(data, batch_size=6, drop_last=True))
    for usual in ({"shuffle": True, "drop_last": True}, {}):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*in no batch.*")
            by_hand(classifier(), DataLoader(data, batch_size=6, **usual))


def test_running_statistics_are_left_as_they_are() -> None:
    posterior = classifier(nn.BatchNorm1d(3))
    before = {name: buffer.clone() for name, buffer in posterior.named_buffers()}
    remark_on_data(posterior, as_batches((X, LABELS), 40, 0, torch.device("cpu")), stacklevel=1)
    assert all(torch.equal(buffer, before[name]) for name, buffer in posterior.named_buffers())


def test_options_of_a_sampler_that_is_not_named_are_refused() -> None:
    data = X, LABELS
    with pytest.raises(ValueError, match=r"no sampler.*lv.SGHMC, lr=0.01, steps=10000\)"):
        lv.sample(classifier(), data, lr=1e-2)
    with pytest.raises(ValueError, match=r"lv.SGHMC, lr=0.01, steps=300\)"):
        lv.sample(classifier(), data, lr=1e-2, steps=300)
    with pytest.raises(ValueError, match=r"momentum=0.9 is given, but no sampler.*lv.SGHMC, momentum=0.9\)"):
        lv.sample(classifier(), data, momentum=0.9)
    with pytest.raises(ValueError, match=r"no option num_chains=2. Write chains=…"):
        lv.sample(classifier(), data, num_chains=2)


@pytest.mark.parametrize(
    ("likelihood", "y", "told"),
    [
        (lv.likelihoods.HeteroscedasticGaussian(), X[:, :1].clamp_min(0), True),
        (lv.likelihoods.HeteroscedasticGaussian(), X[:, :1], False),
        (lv.likelihoods.HeteroscedasticStudentT(), X[:, :1].clamp_min(0), False),
    ],
)
def test_targets_that_are_often_one_value_are_told_to_have_heavier_tails(likelihood, y, told) -> None:
    torch.manual_seed(0)
    posterior = lv.Posterior(nn.Linear(3, 2), likelihood, num_data=40)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remark_on_data(posterior, as_batches((X, y), 10, 0, torch.device("cpu")), stacklevel=1)
    said = [str(w.message) for w in caught if "of the targets are 0" in str(w.message)]
    assert len(said) == told
    assert all("HeteroscedasticStudentT()" in each for each in said)
