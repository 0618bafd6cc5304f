import pickle
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import langevin as lv
from langevin.integrations.sklearn import BayesianClassifier, BayesianRegressor

QUICK = {"sampler": partial(lv.SGLD, lr=1e-3), "steps": 100, "chains": 1, "random_state": 0}


@parametrize_with_checks([BayesianClassifier(**QUICK), BayesianRegressor(**QUICK)])
def test_estimator_checks(estimator, check):
    check(estimator)


def test_cross_validation():
    X, y = load_breast_cancer(return_X_y=True)
    scores = cross_val_score(BayesianClassifier(steps=300, chains=1, random_state=0), X, y, cv=3)
    assert scores.mean() > 0.93


@pytest.mark.slow
def test_the_defaults_pass_the_verdict():
    X, y = load_iris(return_X_y=True)
    assert BayesianClassifier(random_state=0).fit(X, y).verdict_.level == "good"


@pytest.mark.slow
def test_regression_intervals_have_their_nominal_coverage():
    X, y = load_diabetes(return_X_y=True)
    model = BayesianRegressor(random_state=0).fit(X[:300], y[:300])
    assert model.verdict_.level == "good"
    mean, std = model.predict(X[300:], return_std=True)
    assert np.mean(np.abs(mean - y[300:]) < 2 * std) == pytest.approx(0.95, abs=0.05)
    assert model.score(X[300:], y[300:]) > 0.35


@pytest.mark.parametrize(
    "net",
    [torch.nn.Linear(30, 2), lambda features, classes: torch.nn.Linear(features, classes)],
    ids=["module", "function"],
)
def test_custom_nets_and_samplers(net):
    X, y = load_breast_cancer(return_X_y=True)
    model = BayesianClassifier(net, partial(lv.SGHMC, lr=0.01), steps=300, chains=2, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert len(model.ensemble_) == 2 * 112
    if isinstance(net, torch.nn.Module):
        copied = pickle.loads(pickle.dumps(model))
        assert np.array_equal(copied.predict_proba(X), model.predict_proba(X))


def test_an_unfitted_estimator_raises():
    with pytest.raises(NotFittedError):
        BayesianClassifier().predict(np.zeros((2, 3)))
