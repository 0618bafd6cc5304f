"""A run continues only with the data, the model and the prior that it had."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, SubsetRandomSampler, TensorDataset

import langevin as lv
from tests.helpers import assert_same_samples, toy_data, toy_model, toy_posterior

OPTIONS = {"lr": 1e-2, "steps": 40, "progress": False}


def start(path, data=None, posterior=None):
    return lv.sample(posterior or toy_posterior(), data or toy_data(), lv.SGLD, out=path, **OPTIONS)


def resume(path, data=None, posterior=None):
    return lv.resume(path, posterior or toy_posterior(), data or toy_data(), steps=80, progress=False)


@pytest.mark.parametrize("row", [0, 7, 33, 59])
def test_one_changed_label_is_noticed(tmp_path, row):
    start(tmp_path / "run")
    x, y = toy_data()
    y = y.clone()
    y[row] = (y[row] + 1) % 3
    with pytest.raises(lv.RunError, match="The data are not those of"):
        resume(tmp_path / "run", (x, y))


def test_data_replaced_by_noise_are_noticed(tmp_path):
    start(tmp_path / "run")
    with pytest.raises(lv.RunError, match=r"digest was .* given"):
        resume(tmp_path / "run", (torch.randn(60, 4), toy_data()[1]))


def test_the_batch_size_of_a_loader_is_noticed(tmp_path):
    data = TensorDataset(*toy_data())
    start(tmp_path / "run", DataLoader(data, batch_size=10))
    with pytest.raises(lv.RunError, match="batch_size was 10, given 20"):
        resume(tmp_path / "run", DataLoader(data, batch_size=20))


def test_labels_of_a_data_set_are_noticed(tmp_path):
    class Data:
        def __init__(self, labels):
            self.x, self.labels = toy_data()[0], labels

        def __len__(self):
            return 60

        def __getitem__(self, i):
            return self.x[i], self.labels[i]

    start(tmp_path / "run", Data(toy_data()[1]))
    with pytest.raises(lv.RunError, match="The data are not those of"):
        resume(tmp_path / "run", Data(toy_data()[1].flip(0)))


def test_another_activation_is_noticed(tmp_path):
    start(tmp_path / "run")
    other = toy_model()
    other[1] = nn.ReLU()
    with pytest.raises(lv.RunError, match=r"its layers \(print\(model\)\) or the code"):
        resume(tmp_path / "run", posterior=toy_posterior(other))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = toy_model()

    def forward(self, x):
        return self.inner(x)


class Doubled(Net):
    def forward(self, x):
        return 2 * self.inner(x)


def test_other_code_in_forward_is_noticed(tmp_path, monkeypatch):
    start(tmp_path / "run", posterior=toy_posterior(Net()))
    monkeypatch.setattr(Net, "forward", Doubled.forward)
    with pytest.raises(lv.RunError, match="the code of a forward method"):
        resume(tmp_path / "run", posterior=toy_posterior(Net()))


class Bare:
    """A prior without a __repr__."""

    def log_prob(self, parameter):
        return -0.5 * parameter.square().sum()


def test_a_prior_without_a_repr_can_be_resumed(tmp_path):
    def posterior():
        return lv.Posterior(toy_model(), lv.likelihoods.Categorical(), Bare(), num_data=60)

    start(tmp_path / "run", posterior=posterior())
    resumed = resume(tmp_path / "run", posterior=posterior())
    whole = lv.sample(posterior(), toy_data(), lv.SGLD, lr=1e-2, steps=80, burn_in=10, thin=1, progress=False)
    assert set(resumed.steps) <= set(whole.steps)
    assert_same_samples(resumed, whole[: len(resumed)])


def test_the_examples_of_a_subset_sampler_are_counted(tmp_path):
    """N is what the loader yields: the length of the data set would raise the likelihood to a power."""
    data, chosen = TensorDataset(*toy_data()), list(range(0, 60, 3))
    loader = DataLoader(data, batch_size=5, sampler=SubsetRandomSampler(chosen))
    assert len(start(tmp_path / "run", loader, toy_posterior(n=20))) > 0
    with pytest.raises(ValueError, match=r"num_data=20"):
        start(tmp_path / "other", loader, toy_posterior(n=60))


def test_a_sampler_of_unknown_length_is_taken_on_trust(tmp_path):
    class Odd(Sampler):
        def __iter__(self):
            return iter(range(1, 60, 2))

        def __len__(self):
            return 30

    loader = DataLoader(TensorDataset(*toy_data()), sampler=Odd())
    with pytest.warns(UserWarning, match="can't be repeated"):
        assert len(start(tmp_path / "run", loader, toy_posterior(n=30))) > 0
