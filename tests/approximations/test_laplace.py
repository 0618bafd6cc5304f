"""The Laplace approximation: exact for a normal posterior, and against automatic differentiation otherwise."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev, vmap

import langevin as lv
from tests.conjugate import NOISE, PRIOR, conjugate
from tests.helpers import toy_data, toy_model, toy_posterior

STRUCTURES = ("diagonal", "kfac", "full")


def laplace(posterior, data, *args, **options):
    own = {key: options.pop(key) for key in ("init", "out", "steps", "batch_size", "draws") if key in options}
    return lv.fit(posterior, data, lv.Laplace(*args, **options), progress=False, **own)


@pytest.mark.parametrize("structure", ["kfac", "full"])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_it_is_exact_for_a_conjugate_model(structure, temperature):
    problem = conjugate()
    q = laplace(
        problem.posterior(), (problem.x, problem.y), structure, temperature=temperature, batch_size=7
    ).distribution
    torch.testing.assert_close(q.mean["weight"].flatten(), problem.mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(q.covariance(), temperature * problem.covariance, rtol=1e-8, atol=0)
    exact = torch.distributions.MultivariateNormal(problem.mean, temperature * problem.covariance)
    torch.testing.assert_close(q.entropy(), exact.entropy())
    if temperature == 1.0:  # q is the posterior: log p(data, w) − log q(w) is the same at every w
        found = lv.approximations.elbo(q, problem.posterior(), (problem.x, problem.y), draws=2)
        assert found.mean == pytest.approx(problem.evidence(), abs=1e-4)
        assert found.error < 1e-4


@pytest.mark.parametrize("structure", ["kfac", "full"])
def test_the_marginal_likelihood_is_exact_for_a_conjugate_model(structure):
    problem = conjugate()
    data = (problem.x, problem.y)
    given = laplace(problem.posterior(), data, structure)
    assert given.trace("log_marginal_likelihood")[0] == [pytest.approx(problem.evidence(), abs=1e-4)]
    assert given.trace("prior_scale")[0] == [1.0]

    def evidence(factor):
        covariance = NOISE**2 * torch.eye(len(problem.x)) + (factor * PRIOR) ** 2 * problem.x @ problem.x.T
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(problem.x)).double(), covariance)
        return float(normal.log_prob(problem.y[:, 0]))

    best = laplace(problem.posterior(), data, structure, prior_scale="marginal")
    (factor,), (reached,) = best.trace("prior_scale")[0], best.trace("log_marginal_likelihood")[0]
    assert reached == pytest.approx(evidence(factor), abs=1e-4)
    assert evidence(factor) > max(evidence(0.99 * factor), evidence(1.01 * factor))
    exact = torch.linalg.inv(problem.x.T @ problem.x / NOISE**2 + torch.eye(len(problem.mean)) / (factor * PRIOR) ** 2)
    torch.testing.assert_close(best.distribution.covariance(), exact, rtol=1e-6, atol=0)


def test_at_a_given_mode_only_the_prior_scale_is_tuned():
    problem = conjugate()
    data, mode = (problem.x, problem.y), {"weight": problem.mean[None]}
    fit = laplace(problem.posterior(), data, "full", prior_scale="marginal", init=mode)
    torch.testing.assert_close(fit.distribution.mean["weight"], mode["weight"])
    (factor,) = fit.trace("prior_scale")[0]

    def evidence(factor):
        """At this mode and curvature, without terms that do not depend on the factor."""
        a = (factor * PRIOR) ** -2
        precision = problem.x.T @ problem.x / NOISE**2 + a * torch.eye(len(problem.mean))
        squares = float(problem.mean.square().sum())
        return 0.5 * (len(problem.mean) * math.log(a) - a * squares - float(torch.logdet(precision)))

    assert abs(factor - 1) > 0.02
    assert evidence(factor) > max(evidence(0.999 * factor), evidence(1.001 * factor))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_last_layer_alone_is_the_linear_model_of_its_features(structure, tmp_path):
    x, y = toy_data(60)
    mode = lv.find_map(toy_posterior(n=60), (x, y))
    fit = laplace(toy_posterior(n=60), (x, y), structure, layers="last", init=mode, out=tmp_path / "fit")
    model = toy_model()
    model.load_state_dict(mode)
    features = nn.Sequential(*list(model)[:-1])(x).detach()
    head = lv.Posterior(model[-1], lv.likelihoods.Categorical(), toy_posterior(n=60).prior, num_data=60)
    own = {name.split(".")[-1]: mode[name] for name in mode if name.startswith(f"{len(model) - 1}.")}
    alone = laplace(head, (features, y), structure, init=own)
    torch.testing.assert_close(fit.distribution.covariance(), alone.distribution.covariance(), rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(fit.predict(x).probs, alone.predict(features).probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(lv.load(tmp_path / "fit", toy_model()).predict(x).probs, fit.predict(x).probs)
    assert set(fit[0]) == {f"{len(model) - 1}.weight", f"{len(model) - 1}.bias"}


@pytest.mark.parametrize("wrong", [{"layers": "first"}, {"prior_scale": "best"}])
def test_unknown_options_are_refused(wrong):
    with pytest.raises(ValueError, match="choose"):
        lv.Laplace(**wrong)


def test_the_diagonal_structure_inverts_the_diagonal_of_the_precision():
    problem = conjugate()
    q = laplace(problem.posterior(), (problem.x, problem.y), "diagonal", batch_size=9).distribution
    torch.testing.assert_close(q.variance["weight"].flatten(), 1 / problem.precision.diag())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_separate_priors_for_bias_and_weights_and_a_weighted_likelihood(structure):
    problem = conjugate()
    model = nn.Linear(3, 1).double()
    prior = {"bias": lv.priors.Gaussian(0.3), "*": lv.priors.Gaussian(PRIOR)}
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(NOISE), prior, num_data=problem.num_data, weight=0.4)
    q = laplace(posterior, (problem.x, problem.y), structure).distribution
    features = torch.cat([problem.x, torch.ones(problem.num_data, 1)], dim=1)
    precision = 0.4 * features.T @ features / NOISE**2 + torch.tensor([PRIOR**-2] * 3 + [0.3**-2]).double().diag()
    if structure == "diagonal":
        precision = precision.diag().diag()
    torch.testing.assert_close(q.covariance(), torch.linalg.inv(precision), rtol=1e-7, atol=0)


def logistic(classes=3):
    torch.manual_seed(0)
    return nn.Linear(4, classes).double()


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_the_precision_of_a_linear_classifier_is_the_hessian(structure):
    x, y = toy_data(dtype=torch.float64)
    posterior = lv.Posterior(logistic(), lv.likelihoods.Categorical(), lv.priors.Gaussian(0.5), num_data=60)
    found = laplace(posterior, (x, y), structure, batch_size=25)
    mode = {f"model.{name}": t for name, t in found.distribution.mean.items()}
    shapes = {name: t.shape for name, t in mode.items()}

    def energy(flat):
        parts = torch.split(flat, [s.numel() for s in shapes.values()])
        weights = {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return functional_call(posterior, weights, (x, y)) * 60

    precision = hessian(energy)(torch.cat([t.flatten() for t in mode.values()]))
    expected = torch.linalg.inv(precision) if structure == "full" else (1 / precision.diag()).diag()
    torch.testing.assert_close(found.distribution.covariance(), expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("fisher", ["mc", "empirical"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_sampled_and_empirical_fisher_agree_with_the_exact_one(structure, fisher):
    problem = conjugate(n=4000)
    posterior = problem.posterior()
    q = laplace(posterior, (problem.x, problem.y), structure, fisher=fisher, predictive="sampled").distribution
    exact = laplace(posterior, (problem.x, problem.y), structure).distribution
    # noise of the labels: a relative error of √(2/N) for each entry of the precision
    ratio = q.covariance().diag() / exact.covariance().diag()
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / 4000) * (1 if structure == "diagonal" else 3)


class Mixed(nn.Module):
    """A convolution, a linear layer, and a LayerNorm, for which K-FAC has no block."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm, self.out = nn.Conv2d(1, 2, 3, stride=2), nn.LayerNorm(8), nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.out(self.norm(torch.tanh(self.conv(x)).flatten(1)))


def test_a_network_with_convolution_linear_and_norm_layers(tmp_path):
    torch.manual_seed(4)
    x, y = torch.randn(30, 1, 6, 6), torch.randint(0, 3, (30,))
    posterior = lv.Posterior(Mixed(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=30)
    mode = dict(posterior.model.state_dict())
    found = {s: laplace(posterior, (x, y), s, init=mode, batch_size=11) for s in STRUCTURES}
    full, diagonal = found["full"].distribution.covariance(), found["diagonal"].distribution
    q = found["kfac"].distribution
    assert list(q.blocks) == ["conv", "out"]
    precision = torch.linalg.inv(full.double()).diag()
    torch.testing.assert_close(diagonal.covariance().diag().double(), 1 / precision, rtol=1e-3, atol=0)
    norm = torch.cat([q.variance[name] for name in ("norm.weight", "norm.bias")])
    torch.testing.assert_close(norm, torch.cat([diagonal.variance[n] for n in ("norm.weight", "norm.bias")]))
    # the last layer has one position; K-FAC takes its inputs as independent of the output's Fisher
    block = q.covariance()[-24:, -24:]
    exact = torch.linalg.inv(torch.linalg.inv(full.double())[-24:, -24:]).float()
    assert float((block - exact).norm() / exact.norm()) < 0.15
    rows = torch.stack([torch.cat([t.flatten() for t in q.draw(3, i).values()]) for i in range(3000)]).double()
    center = torch.cat([m.flatten() for m in q.mean.values()]).double()
    products = (rows - center)[:, :, None] * (rows - center)[:, None, :]
    error = products.std(0) / math.sqrt(len(rows))
    assert bool(((products.mean(0) - q.covariance()).abs() < 5 * error).all())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_it_has_the_interface_of_a_run(structure, tmp_path):
    x, y = toy_data()
    found = laplace(toy_posterior(), (x, y), structure, out=tmp_path / "f", draws=8)
    assert len(found) == 8
    again = lv.load(tmp_path / "f", toy_model())
    assert torch.equal(again.predict(x).probs, found.predict(x).probs)
    assert float((found.predict(x).labels == y).float().mean()) > 0.8
    mode = lv.find_map(toy_posterior(), (x, y))
    torch.testing.assert_close(found.distribution.mean["0.weight"], mode["0.weight"])
    assert found.trace("loss")[0][0] == pytest.approx(
        float(functional_call(toy_posterior(), {f"model.{n}": t for n, t in mode.items()}, (x, y))), rel=1e-4
    )
    assert "ritter" in lv.cite(found)
    with pytest.raises(lv.RunError, match="nothing to continue"):
        lv.resume(tmp_path / "f", toy_posterior(), (x, y))


def wave():
    """A curve with a gap, noise 0.1, and a network that can fit it in many ways."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.rand(30, 1, generator=generator) - 1.5, torch.rand(30, 1, generator=generator) + 0.5]).double()
    y = torch.sin(3 * x) + 0.1 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.1).double(), lv.priors.Gaussian(1.0), num_data=60)
    return posterior, x, y


def jacobian(posterior, weights, x):
    """∂output/∂weights, (inputs, outputs, weights)."""
    rows = vmap(jacrev(lambda w, xi: functional_call(posterior.model, w, (xi[None],))[0]), (None, 0))(weights, x)
    return torch.cat([rows[name].flatten(2) for name in weights], dim=2)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("inputs", [5, 200], ids=["vectorised", "one by one"])
def test_its_predictions_linearize_the_model(structure, inputs):
    posterior, x, y = wave()
    fit = laplace(posterior, (x, y), structure, draws=400)
    at = torch.linspace(-2, 2, inputs, dtype=torch.float64)[:, None]
    prediction = fit.predict(at, samples=True)
    mode = fit.distribution.mean
    slopes = jacobian(posterior, mode, at)[:, 0]
    center = functional_call(posterior.model, mode, (at,))
    moved = torch.cat([(fit.sample(3)[name] - mode[name]).flatten(1) for name in mode], dim=1)
    torch.testing.assert_close(prediction.samples[:3, :, 0], center[:, 0] + moved @ slopes.T, rtol=1e-9, atol=1e-9)
    variance = (slopes @ fit.distribution.covariance() * slopes).sum(1)
    assert float((prediction.epistemic[:, 0] / variance).log().abs().max()) < 5 * math.sqrt(2 / 400)
    torch.testing.assert_close(prediction.aleatoric, torch.full_like(prediction.aleatoric, 0.01))


def test_linearized_predictions_are_better_than_sampled_ones():
    posterior, x, y = wave()
    mode = lv.find_map(posterior, (x, y))
    scores = {}
    for predictive in ("linearized", "sampled"):
        prediction = laplace(posterior, (x, y), "full", init=mode, predictive=predictive).predict(x)
        scores[predictive] = float(
            torch.distributions.Normal(prediction.mean, prediction.variance.sqrt()).log_prob(y).mean()
        )
    assert scores["linearized"] > 0.7
    assert scores["sampled"] < scores["linearized"] - 1


def test_a_linearized_classifier_predicts_from_files_and_with_gradients(tmp_path):
    x, y = toy_data()
    fit = laplace(toy_posterior(), (x, y), "full", out=tmp_path / "f", draws=5)
    mode = fit.distribution.mean
    slopes, center = jacobian(toy_posterior(), mode, x), functional_call(toy_model(), mode, (x,))
    moved = torch.cat([(fit[2][name] - mode[name]).flatten() for name in mode])
    logits = center + slopes @ moved
    again = lv.load(tmp_path / "f", toy_model())
    for found in (fit, again):
        torch.testing.assert_close(found.predict(x, samples=True).samples[2], logits.softmax(1), rtol=1e-4, atol=1e-5)
    point = x.clone().requires_grad_()
    log_prob = list(fit.log_probs(point, y))[2]
    torch.testing.assert_close(log_prob, logits.log_softmax(1).gather(1, y[:, None])[:, 0], rtol=1e-3, atol=1e-4)
    assert bool(torch.autograd.grad(log_prob.sum(), point)[0].isfinite().all())
    torch.testing.assert_close(fit.predict(x, draws=5).probs, fit.predict(x).probs)


def test_a_sampled_noise_std_needs_the_mc_fisher():
    x = torch.randn(40, 2)
    posterior = lv.Posterior(
        nn.Linear(2, 1), lv.likelihoods.Gaussian(0.5, sampled=True), lv.priors.Gaussian(1.0), num_data=40
    )
    data = x, x.sum(1, keepdim=True) + 0.5 * torch.randn(40, 1)
    with pytest.raises(ValueError, match="mc"):
        laplace(posterior, data, "kfac")
    q = laplace(posterior, data, "kfac", fisher="mc").distribution
    assert 0.3 < float(q.variance["likelihood.log_std"]) * 2 * 40 < 3  # about 1/(2N)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "block"}, "one of diagonal, kfac, full"),
        ({"fisher": "true"}, '"exact", "mc"'),
        ({"temperature": 0.0}, "must be positive"),
        ({"predictive": "probit"}, 'choose "linearized" or "sampled"'),
        ({"fisher": "empirical"}, 'predictive="sampled"'),
        ({"structure": "full", "max_parameters": 40}, "above the limit of max_parameters=40"),
        ({"init": toy_model().state_dict(), "steps": 3}, "takes no steps"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        laplace(toy_posterior(), toy_data(), **options)


def test_priors_other_than_gaussian_are_refused():
    posterior = lv.Posterior(toy_model(), lv.likelihoods.Categorical(), lv.priors.Laplace(1.0), num_data=60)
    with pytest.raises(ValueError, match="Gaussian priors only; '0.weight' has Laplace"):
        laplace(posterior, toy_data())
