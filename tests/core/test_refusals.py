"""Mistakes that newcomers make, and what they are told to write."""

import pandas as pd
import pytest
import torch
from torch import nn

import langevin as lv


def posterior():
    return lv.Posterior(nn.Linear(2, 3), lv.likelihoods.Categorical(), num_data=30)


X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        (Y[:, None], r"pass y\.squeeze\(1\)\."),
        (Y[:, None].float(), r"pass y\.squeeze\(1\)\.long\(\)"),
        (Y.float(), r"pass y\.long\(\)"),
        (nn.functional.one_hot(Y), r"pass y\.argmax\(1\)"),
        (nn.functional.one_hot(Y).float(), r"pass y\.argmax\(1\)"),
        (Y + 0.5, r"lv\.likelihoods\.Gaussian"),
        (Y + 1, r"Renumber the labels from 0, such as y - y\.min\(\)"),
    ],
)
def test_labels_of_another_shape_or_precision(labels, remedy):
    with pytest.raises(ValueError, match=remedy):
        lv.sample(posterior(), (X, labels), lv.SGLD, lr=1e-3, steps=3, progress=False)


def test_tables_of_pandas():
    table = pd.DataFrame(X.numpy())
    for data in (table, (table, Y), (X, pd.Series(Y.numpy()))):
        with pytest.raises(ValueError, match=r"of pandas; .*Write torch\.tensor\(table\.to_numpy"):
            lv.sample(posterior(), data, lv.SGLD, lr=1e-3, steps=3, progress=False)
    run = lv.sample(posterior(), (X, Y), lv.SGLD, lr=1e-3, steps=3, progress=False)
    with pytest.raises(ValueError, match="Given a DataFrame of pandas"):
        run.predict(table)
    with pytest.raises(ValueError, match=r'Write ood=\{"name": …\}'):
        lv.evaluate(run, (X, Y), ood=X)


@pytest.mark.parametrize("likelihood", [nn.MSELoss(), "gaussian"])
def test_a_loss_is_not_a_likelihood(likelihood):
    with pytest.raises(ValueError, match=r"Gaussian\(0\.1\) for real-valued targets.*MeanLoss"):
        lv.Posterior(nn.Linear(2, 1), likelihood, num_data=30)
