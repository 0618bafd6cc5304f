"""What a newcomer tried and found wanting: each is a sentence, or simply works."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core.statistics import Estimate
from langevin.diagnostics.verdict import Finding, Verdict
from langevin.errors import ConvergenceWarning
from tests.helpers import toy_data, toy_model, toy_posterior


def draw(**options):
    settings = {"lr": 1e-2, "steps": 60, "burn_in": 20, "thin": 4, "chains": 2, "progress": False, **options}
    return lv.sample(toy_posterior(), toy_data(), lv.SGLD, **settings)


def test_a_part_of_a_run_is_saved_as_that_part_and_cannot_be_resumed(tmp_path):
    run = draw()
    for number, part in enumerate((run[12:], run.chain(1), run[::3])):
        saved = part.save(tmp_path / str(number))
        loaded = lv.load(tmp_path / str(number), toy_model())
        assert len(saved) == len(loaded) == len(part) < len(run)
        assert loaded.steps == part.steps
        assert all(torch.equal(a["0.weight"], b["0.weight"]) for a, b in zip(loaded, part, strict=True))
        with pytest.raises(lv.RunError, match="can't be resumed"):
            lv.resume(tmp_path / str(number), toy_posterior(), toy_data(), steps=80)
        with pytest.raises(ValueError, match="part of a run can't be resumed"):
            lv.resume(part, toy_posterior(), toy_data(), steps=80)


def test_a_recorded_run_of_another_optimizer_is_evaluated_without_a_temperature():
    posterior, (x, y) = toy_posterior(), toy_data()
    optimizer = torch.optim.SGD(posterior.parameters(), lr=1e-2)
    recorder = lv.Recorder(posterior, optimizer)
    for step in range(1, 41):
        optimizer.zero_grad()
        posterior.loss(x, y).backward()
        optimizer.step()
        recorder.record(step)
    run = recorder.run()
    assert torch.isnan(torch.tensor(run.temperature().mean))
    assert "No temperature was measured" in str(lv.evaluate(run, (x, y)))


@pytest.mark.parametrize("options", [{}, {"batch_size": 20}])
def test_an_input_that_is_nan_is_named_whatever_the_likelihood(options):
    """A predicted scale that overflows was told to have its inputs standardized, which makes the whole column NaN."""
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    x[11, 2] = float("nan")
    options |= {"budget": "300 steps", "progress": False}
    for likelihood in (lv.likelihoods.HeteroscedasticStudentT(df=4), lv.likelihoods.HeteroscedasticGaussian()):
        posterior = lv.Posterior(nn.Linear(3, 2), likelihood, num_data=40)
        with pytest.raises(lv.DivergenceError, match="input of example 11 of the data set has NaN or infinity"):
            lv.sample(posterior, (x, y), **options)


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (
            toy_model(),
            toy_data()[0].double(),
            r"parameters are torch.float32; convert the inputs: x.to\(torch.float32\)",
        ),
        (toy_model(), toy_data()[0][:, :3], r"inputs torch.float32 \(32, 3\).*Check that model\(x\) works"),
        (Pair(4, 3), toy_data()[0], r"returns several tensors .*Posterior\(model, …, output=0\)"),
    ],
)
def test_a_loss_that_cannot_be_computed_says_why(model, x, message):
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), num_data=60)
    with pytest.raises(ValueError, match=message):
        lv.sample(posterior, (x, toy_data()[1]), lv.SGLD, lr=1e-2, steps=20, batch_size=32)


def test_a_class_is_not_an_object():
    for arguments in ((lv.likelihoods.Categorical,), (lv.likelihoods.Categorical(), lv.priors.Gaussian)):
        with pytest.raises(ValueError, match="is a class; give an object"):
            lv.Posterior(toy_model(), *arguments, num_data=60)


def test_names_that_are_nearly_right_are_recognized():
    for options, meant in (({"batchsize": 8}, "batch_size"), ({"temperatur": 1.0}, "temperature")):
        with pytest.raises(ValueError, match=f"Write {meant}=…, if that is meant"):
            draw(**options)


def test_runs_are_compared_by_name():
    run = draw()
    with pytest.raises(ValueError, match="runs must be a mapping"):
        lv.compare([run, run], toy_data())
    with pytest.raises(ValueError, match="baselines must be a mapping"):
        lv.evaluate(run, toy_data(), baselines=run)
    with pytest.raises(TypeError, match="indexed by numbers and slices"):
        run["0.weight"]


def test_reprs_are_short():
    run = draw(chains=1)
    assert repr(run) == "<Run of 10 samples from 1 chain in memory>"
    assert repr(lv.Ensemble.concat([run, run])) == "<Ensemble of 20 sets of weights>"


def test_a_lazy_module_has_to_be_called_first():
    with pytest.raises(ValueError, match=r"'weight' has no shape yet \(a lazy module\); call model\(x\) once"):
        lv.Posterior(nn.LazyLinear(3), lv.likelihoods.Categorical(), num_data=60)


def test_inputs_may_require_a_gradient():
    x, y = toy_data()
    run = lv.sample(toy_posterior(), (x.clone().requires_grad_(), y), lv.SGLD, lr=1e-2, steps=20, progress=False)
    assert not run.predict(x.clone().requires_grad_()).probs.requires_grad


def test_a_path_that_is_too_long_is_refused(tmp_path):
    run = draw()
    long = tmp_path / ("a" * 300)
    for use in (lambda: draw(out=long), lambda: run.save(long), lambda: lv.load(long, toy_model())):
        with pytest.raises(lv.RunError, match="name too long"):
            use()


def test_a_forgotten_partial_is_named():
    with pytest.raises(ValueError, match="schedule can't be made: .*'T_max'"):
        draw(schedule=torch.optim.lr_scheduler.CosineAnnealingLR)
    with pytest.raises(ValueError, match="Adam is not a langevin.Sampler"):
        lv.sample(toy_posterior(), toy_data(), torch.optim.Adam, lr=1e-2, steps=20)


@pytest.mark.parametrize("kind", ["tensors", "data set", "loader", "stacked"])
def test_a_nan_in_one_row_names_the_row(kind):
    x, y = toy_data()
    x[17, 2] = float("nan")
    data = {"data set": list(zip(x, y, strict=True))}.get(kind, (x, y))
    if kind == "loader":
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)
    options = {"mode": "vectorised", "chains": 3} if kind == "stacked" else {}
    where = "7 of the mini-batch" if kind == "loader" else "17 of the data set"
    steps = {"steps": 60, "burn_in": 20, "progress": False, "batch_size": None if kind == "loader" else 10}
    with pytest.raises(lv.DivergenceError, match=f"The input of example {where} has NaN") as caught:
        lv.sample(toy_posterior(), data, lv.SGLD, lr=1e-3, **steps, **options)
    assert "smaller lr" not in str(caught.value)


def test_a_pair_is_told_how_to_be_predicted_and_evaluated():
    run, (x, y) = draw(), toy_data()
    for pair in ((x, y), [x, y], (x[0], y[0])):
        with pytest.raises(
            ValueError, match=r"given a (tuple|list) of 2.*run.predict\(x\); lv.evaluate\(run, \(x, y\)\)"
        ):
            run.predict(pair)


def test_several_quantiles_are_asked_for_one_by_one():
    posterior = lv.Posterior(nn.Linear(4, 1), lv.likelihoods.Gaussian(1.0), num_data=60)
    x = toy_data()[0]
    prediction = lv.sample(posterior, (x, x[:, :1]), lv.SGLD, lr=1e-3, steps=20, progress=False).predict(x)
    for wrong in (torch.tensor([0.1, 0.9]), [0.1, 0.9]):
        with pytest.raises(ValueError, match=r"one number.*torch.stack\(\[prediction.quantile\(q\) for q in"):
            prediction.quantile(wrong)
        with pytest.raises(ValueError, match=r"Write interval\(0.9\)"):
            prediction.interval(wrong)


def test_the_last_layer_of_laplace_is_an_option():
    with pytest.raises(ValueError, match=r'Laplace\("kfac", layers="last"\)'):
        lv.Laplace("last layer")


@pytest.mark.parametrize("options", [{}, {"sampler": lv.SGLD, "lr": 1e-3, "steps": 4}])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((toy_data()[0], np.array(["ill", "well"] * 30)), r"Number the labels: names, y = np.unique"),
        ((toy_data()[0], ["ill", "well"] * 30), r"Number the labels: names, y = np.unique"),
        ((toy_data()[0], [0, 1] * 30), r"targets are a list of 60; write torch.tensor\(y\)"),
        (toy_data()[0], r"lv.sample\(posterior, \(x, y\)\)"),
        ((toy_data()[0].double(), toy_data()[1]), r"x.to\(torch.float32\), or of an array x.astype\('float32'\)"),
    ],
)
def test_data_that_are_not_tensors_of_numbers_are_told_what_to_be(data, message, options):
    with pytest.raises(ValueError, match=message):
        lv.sample(toy_posterior(), data, **options)


def test_inputs_of_another_shape_are_told_the_shape_of_the_training_data():
    run, (x, y) = draw(), toy_data()
    with pytest.raises(ValueError, match=r"float32 of shape \(3,\), and those of the training data .* shape \(4,\)"):
        run.predict(x[:, :3])
    with pytest.raises(ValueError, match="Given a DataFrame of pandas"):
        lv.evaluate(run, (pd.DataFrame(x.numpy()), y))


def test_arrays_that_can_not_be_written_are_taken_in_silence():
    x, y = (tensor.numpy().copy() for tensor in toy_data())
    x.flags.writeable = y.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        lv.sample(toy_posterior(), (x, y), lv.SGLD, lr=1e-3, steps=4, burn_in=1, progress=False)


def test_the_warning_of_a_bad_verdict_points_to_the_call(monkeypatch) -> None:
    bad = Verdict.of([Finding("Loss", "bad", "The chain diverged.")], Estimate(1.0, 0.1))
    monkeypatch.setattr(lv.Run, "verdict", lambda run: bad)
    with pytest.warns(ConvergenceWarning, match="The chain diverged") as caught:
        lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=0.01, steps=20, progress=False)
    assert [each.filename for each in caught] == [__file__]
