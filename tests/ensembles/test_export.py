"""A run exported as one module predicts the same without langevin."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import toy_data, toy_posterior

draw = partial(lv.sample, steps=30, burn_in=10, thin=2, progress=False)
OLD = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 7)  # tried: 2.6 and 2.7 cannot export, 2.13 can
exports = pytest.mark.skipif(OLD, reason="this PyTorch cannot export a vectorized network")
new_x = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def run():
    return draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), chains=2)


def close(got, expected):
    torch.testing.assert_close(torch.as_tensor(got), expected, rtol=1e-4, atol=1e-6)


@exports
def test_the_exported_program_predicts_like_the_run_for_any_batch_size(run, tmp_path):
    run.export(tmp_path / "deep" / "model.pt2")
    expected = run.predict(new_x)
    got = torch.export.load(tmp_path / "deep" / "model.pt2").module()(new_x)
    close(got["probs"], expected.probs)
    close(got["entropy"], expected.entropy)
    close(got["mutual_information"], expected.mutual_information)


@exports
def test_the_program_runs_without_langevin(run, tmp_path):
    run.export(tmp_path / "model.pt2")
    code = (
        "import sys, torch; sys.modules['langevin'] = None\n"
        "print(torch.export.load('model.pt2').module()(torch.zeros(3, 4))['probs'].sum(1).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("[1.0") or done.stdout.strip().startswith("[0.99")


@exports
def test_regression_with_a_sampled_noise_std(tmp_path):
    x = toy_data()[0]
    posterior = lv.Posterior(
        nn.Linear(4, 2), lv.likelihoods.Gaussian(0.5, sampled=True), lv.priors.Gaussian(), num_data=60
    )
    run = draw(posterior, (x, x[:, :2]), partial(lv.SGLD, lr=1e-2))
    run.export(tmp_path / "model.pt2")
    got = torch.export.load(tmp_path / "model.pt2").module()(new_x)
    expected = run.predict(new_x)
    close(got["mean"], expected.mean)
    close(got["variance"], expected.variance)
    close(got["epistemic"], expected.epistemic)


@exports
def test_frozen_layers_and_buffers_are_exported(tmp_path):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    model[1].running_mean.uniform_()
    run = draw(toy_posterior(model, sampled="3.*"), toy_data(), partial(lv.SGLD, lr=1e-2))
    ensemble = run.export(tmp_path / "model.pt2")
    close(ensemble(new_x)["probs"], run.predict(new_x).probs)
    close(torch.export.load(tmp_path / "model.pt2").module()(new_x)["probs"], run.predict(new_x).probs)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left, right):
        return self.layer(torch.cat([left, right], 1))


@exports
@pytest.mark.parametrize("named", [False, True])
def test_models_with_several_arguments(named, tmp_path):
    x, y = toy_data()
    data = {"left": x[:, :2], "right": x[:, 2:], "y": y} if named else (x[:, :2], x[:, 2:], y)
    run = draw(toy_posterior(Two()), data, partial(lv.SGLD, lr=1e-2))
    run.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    left, right = new_x[:, :2], new_x[:, 2:]
    inputs = {"left": left, "right": right} if named else (left, right)
    close(program(inputs)["probs"], run.predict(inputs).probs)


@exports
def test_onnx_predicts_like_the_run(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    (entry,) = session.get_inputs()
    got = dict(zip(names, session.run(None, {entry.name: new_x.numpy()}), strict=True))
    expected = run.predict(new_x)
    close(got["probs"], expected.probs)
    close(got["entropy"], expected.entropy)
    close(got["mutual_information"], expected.mutual_information)


@exports
def test_a_subset_of_samples_is_evenly_spaced(run, tmp_path):
    few = run.export(tmp_path / "model.pt2", samples=4)
    chosen = [run[i] for i in (0, 5, 10, 15)]
    close(
        few(new_x)["probs"],
        lv.Ensemble.from_weights(run.predictors[0][0].model, lv.likelihoods.Categorical(), chosen).predict(new_x).probs,
    )


@exports
def test_the_module_is_differentiable_with_respect_to_its_inputs(run, tmp_path):
    x = new_x.clone().requires_grad_()
    run.export(tmp_path / "model.pt2")(x)["probs"][:, 0].sum().backward()
    assert bool((x.grad != 0).all())


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("model.bin", {}, "model.pt2"),
        ("model.pt2", {"samples": 0}, "samples must be an integer, 1 or more"),
        ("model.pt2", {"samples": 21}, "1 to"),
    ],
)
def test_bad_input(run, path, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run.export(tmp_path / path, **options)


@exports
def test_a_run_without_recorded_inputs_needs_example_inputs(run, tmp_path, monkeypatch):
    monkeypatch.delitem(run.manifest, "inputs")
    with pytest.raises(ValueError, match="inputs=x"):
        run.export(tmp_path / "model.pt2")
    run.export(tmp_path / "model.pt2", inputs=new_x)


def test_onnx_without_its_packages_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"langevin\[onnx\]"):
        run.export(tmp_path / "model.onnx")


def test_a_torch_that_cannot_export_says_so(run, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("NYI: querying is_contiguous inside of vmap")

    if not OLD:
        monkeypatch.setattr(torch.export, "export", fails)
    with pytest.raises(ValueError, match="upgrade"):
        run.export(tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []
