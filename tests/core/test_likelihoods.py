"""The likelihoods against torch.distributions, their gradients, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Normal
from torch.func import vmap
from torch.nn import functional

import langevin as lv
from langevin.core import random


def _outputs(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_heteroscedastic_gaussian_has_the_mean_and_scale_of_the_outputs():
    output, y = _outputs(7, 6), _outputs(7, 3, seed=1)
    likelihood = lv.likelihoods.HeteroscedasticGaussian()
    mean, scale = output[:, :3], functional.softplus(output[:, 3:]) + 1e-3
    torch.testing.assert_close(likelihood.log_prob(output, y), Normal(mean, scale).log_prob(y).sum(1))
    predicted, variance = likelihood.moments(output)
    torch.testing.assert_close(predicted, mean)
    torch.testing.assert_close(variance, scale.square())
    stacked = vmap(likelihood.log_prob, (0, None))(torch.stack([output, 2 * output]), y)
    torch.testing.assert_close(stacked[1], likelihood.log_prob(2 * output, y))


def _gamma(output):
    return torch.distributions.Gamma(output[:, 0].exp(), output[:, 1].exp(), validate_args=False)


CASES = {  # likelihood, outputs per example, and p(y | output) by other means
    "gaussian": (lv.likelihoods.Gaussian(0.3), 2, lambda o: stats.norm(o, 0.3)),
    "student": (lv.likelihoods.StudentT(0.3, df=5), 2, lambda o: stats.t(5, o, 0.3)),
    "poisson": (lv.likelihoods.Poisson(), 2, lambda o: stats.poisson(np.exp(o))),
    "negative binomial": (
        lv.likelihoods.NegativeBinomial(0.5, sampled=False),
        2,
        lambda o: stats.nbinom(2, 1 / (1 + 0.5 * np.exp(o))),
    ),
    "multi-label": (lv.likelihoods.MultiLabel(), 2, lambda o: stats.bernoulli(1 / (1 + np.exp(-o)))),
    "heteroscedastic": (
        lv.likelihoods.HeteroscedasticGaussian(),
        4,
        lambda o: stats.norm(o[:, :2], np.log1p(np.exp(o[:, 2:])) + 1e-3),
    ),
    "heteroscedastic student": (
        lv.likelihoods.HeteroscedasticStudentT(df=5),
        4,
        lambda o: stats.t(5, o[:, :2], np.log1p(np.exp(o[:, 2:])) + 1e-3),
    ),
    "any": (lv.likelihoods.Distribution(_gamma), 2, lambda o: stats.gamma(np.exp(o[:, 0]), scale=np.exp(-o[:, 1]))),
}


@pytest.mark.parametrize("name", CASES)
def test_log_prob_moments_and_cdf_are_those_of_the_distribution(name):
    likelihood, width, reference = CASES[name]
    output = _outputs(9, width).double()
    known = reference(output.numpy())
    y = torch.as_tensor(known.rvs(random_state=1)).double()
    density = getattr(known, "logpmf", None) if hasattr(known.dist, "pmf") else known.logpdf
    expected = torch.as_tensor(density(y.numpy())).reshape(9, -1).sum(1)
    torch.testing.assert_close(likelihood.log_prob(output, y), expected, rtol=1e-5, atol=1e-5)
    mean, variance = likelihood.moments(output)
    torch.testing.assert_close(mean, torch.as_tensor(known.mean()), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance, torch.as_tensor(known.var()), rtol=1e-6, atol=1e-6)
    found = likelihood.distribution(*likelihood.parameters_of(output))
    torch.testing.assert_close(found.cdf(y), torch.as_tensor(known.cdf(y.numpy())), rtol=1e-5, atol=1e-7)
    stacked = vmap(likelihood.log_prob, (0, None))(torch.stack([output, output + 1]), y)
    torch.testing.assert_close(stacked[1], likelihood.log_prob(output + 1, y))


@pytest.mark.parametrize(
    "name", ["gaussian", "student", "poisson", "negative binomial", "multi-label", "heteroscedastic"]
)
def test_the_fisher_is_the_mean_of_the_squared_scores_of_sampled_targets(name):
    likelihood, width, _ = CASES[name]
    output = _outputs(1, width).double().expand(50_000, width).contiguous().requires_grad_()
    y = likelihood.sample(output.detach(), random.Source(3, 0, 0, random.Stream.LABELS))
    (scores,) = torch.autograd.grad(likelihood.log_prob(output, y).sum(), output)
    fisher = likelihood.output_fisher(output[:1].detach())[0]
    products = scores[:, :, None] * scores[:, None, :]
    error = products.std(0) / math.sqrt(len(products))
    assert ((products.mean(0) - fisher).abs() < 4 * error).all()


def test_weights_by_predicted_scales_have_mean_1_and_no_gradient():
    likelihood = lv.likelihoods.HeteroscedasticGaussian()
    output = torch.tensor([[0.0, -2.0], [1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    y = torch.tensor([[0.3], [0.3], [0.3]])
    plain, weighted = likelihood.log_prob(output, y), likelihood.weighted_log_prob(output, y)
    _, scale = likelihood.parameters_of(output)
    assert (weighted / plain).tolist() == pytest.approx((scale / scale.mean()).flatten().tolist())
    (by_weights,) = torch.autograd.grad(weighted.sum(), output)
    (by_log_prob,) = torch.autograd.grad((plain * (weighted / plain).detach()).sum(), output)
    assert torch.allclose(by_weights, by_log_prob)


@pytest.mark.parametrize("shift", [False, True])
def test_tokens_are_sampled_with_their_probabilities(shift):
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]]).expand(20_000, 2, 3)
    labels = lv.likelihoods.Tokens(shift).sample(logits, random.Source(3, 0, 0, random.Stream.LABELS))
    last = logits[0, 0 if shift else 1].softmax(0)
    shares = functional.one_hot(labels[:, 1], 3).double().mean(0)
    torch.testing.assert_close(shares, last.double(), rtol=0, atol=0.015)
    assert (labels[:, 0] == -100).all() == shift


def test_ordinal_probabilities_are_differences_of_the_cumulative_ones():
    likelihood = lv.likelihoods.Ordinal(levels=4).double()
    output = 3 * _outputs(6, 1).double()
    below = torch.sigmoid(likelihood.cutpoints - output)
    expected = torch.cat([below, torch.ones(6, 1).double()], 1) - torch.cat([torch.zeros(6, 1).double(), below], 1)
    torch.testing.assert_close(likelihood.probs(output), expected)
    y = torch.tensor([0, 1, 2, 3, 3, 0])
    torch.testing.assert_close(likelihood.log_prob(output, y), expected.log().gather(1, y[:, None])[:, 0])
    assert torch.isfinite(likelihood.log_prob(torch.tensor([80.0, -80.0]), torch.tensor([0, 3]))).all()
    o = output.detach().requires_grad_()
    slopes = torch.stack([torch.autograd.grad(likelihood._log_probs(o)[:, k].sum(), o)[0][:, 0] for k in range(4)], 1)
    fisher = (expected * slopes.square()).sum(1)
    torch.testing.assert_close(likelihood.output_fisher(output).flatten(), fisher)
    posterior = lv.Posterior(torch.nn.Linear(2, 1), likelihood, num_data=6)
    assert {"likelihood.first", "likelihood.log_gaps"} < set(posterior.trainable_parameters())


def test_class_weights_multiply_the_log_probability_of_their_class():
    output, y = _outputs(5, 3), torch.tensor([0, 1, 2, 1, 0])
    plain = lv.likelihoods.Categorical().log_prob(output, y)
    weighted = lv.likelihoods.Categorical([1.0, 2.0, 0.5])
    expected = plain * torch.tensor([1.0, 2.0, 0.5, 2.0, 1.0])
    torch.testing.assert_close(weighted.log_prob(output, y), expected)
    torch.testing.assert_close(weighted.mean_energy(output, y), -expected.mean())
    torch.testing.assert_close(weighted.vectorised_mean_energy(output, y), -expected.mean())
    binary = lv.likelihoods.Bernoulli([3.0, 1.0])
    once = lv.likelihoods.Bernoulli().log_prob(output[:, 0], y > 0)
    torch.testing.assert_close(binary.log_prob(output[:, 0], y > 0), once * torch.tensor([3.0, 1.0, 1.0, 1.0, 3.0]))


def test_example_weights_come_with_the_targets():
    x, y, w = _outputs(40, 4), torch.arange(40) % 3, torch.rand(40, generator=torch.Generator().manual_seed(1)) + 0.5
    likelihood = lv.likelihoods.Weighted(lv.likelihoods.Categorical())
    model = torch.nn.Linear(4, 3)
    torch.testing.assert_close(
        likelihood.log_prob(model(x), (y, w)), w * lv.likelihoods.Categorical().log_prob(model(x), y)
    )
    posterior = lv.Posterior(model, likelihood, num_data=40)
    run = lv.sample(posterior, (x, (y, w)), lv.SGLD, lr=1e-2, steps=20, chains=2, seed=0, progress=False)
    assert run.predict(x).probs.shape == (40, 3)
    again = lv.likelihoods.LIKELIHOODS["weighted"](**likelihood.config())
    assert repr(again) == repr(likelihood)
    with pytest.raises(ValueError, match="one weight per example"):
        likelihood.validate(model(x), (y, w[:5]))
    with pytest.raises(ValueError, match="0 or more"):
        likelihood.validate(model(x), (y, -w))
    options = {"lr": 1e-2, "steps": 4, "batch_size": 2, "progress": False}
    with pytest.raises(ValueError, match=r"these have none. Write data = \(x, \(y, w\)\)"):
        lv.sample(posterior, (x, y), lv.SGLD, **options)
    for position in range(0, 40, 13):  # whatever the first batch is
        wrong = w.clone()
        wrong[position] = -1.0
        with pytest.raises(ValueError, match="0 or more"):
            lv.sample(posterior, (x, (y, wrong)), lv.SGLD, **options)


def test_parameters_outside_of_a_distributions_domain_are_a_sentence():
    likelihood = lv.likelihoods.Distribution(lambda out: torch.distributions.Gamma(out[:, 0], 1.0))
    with pytest.raises(ValueError, match=r"can't make a distribution.*functional.softplus\(out\)") as refused:
        likelihood.validate(torch.zeros(500, 1), torch.ones(500))
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lv.likelihoods.StudentT(0.1, df=2.0), r"Write StudentT\(scale=0.1, df=4.0\)"),
        (lambda: lv.likelihoods.NegativeBinomial(0.0), "dispersion must be positive"),
        (lambda: lv.likelihoods.Ordinal(2), "3 or more"),
        (lambda: lv.likelihoods.HeteroscedasticGaussian(0.0), "smallest scale must be positive"),
        (
            lambda: lv.likelihoods.HeteroscedasticStudentT(min_scale=0.0),
            r"Write HeteroscedasticStudentT\(min_scale=1e-3\)",
        ),
        (lambda: lv.likelihoods.HeteroscedasticStudentT(2.0), r"Write HeteroscedasticStudentT\(df=4.0\)"),
        (lambda: lv.likelihoods.Bernoulli([1.0]), "1 class weights for 2 classes"),
        (lambda: lv.likelihoods.Categorical([1.0, -1.0]), "0 or more"),
        (lambda: lv.likelihoods.Distribution(3), "takes a function"),
        (lambda: lv.likelihoods.Distribution(torch.nn.Linear(1, 1)), "parameters of its own"),
        (lambda: lv.likelihoods.Weighted(lv.likelihoods.Poisson(), std=1.0), "not both"),
    ],
)
def test_likelihoods_refuse_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("likelihood", "output", "target", "message"),
    [
        (lv.likelihoods.Poisson(), torch.zeros(3, 1), torch.tensor([0, -1, 2]), "needs counts.*found target -1"),
        (lv.likelihoods.Poisson(), torch.full((1, 1), 100.0), torch.tensor([2]), r"rate exp\(output\) overflows"),
        (lv.likelihoods.NegativeBinomial(), torch.zeros(2), torch.tensor([0.5, 1.0]), "needs counts.*found target 0.5"),
        (lv.likelihoods.Ordinal(3), torch.zeros(2), torch.tensor([0, 3]), r"levels 0 … 2.*Ordinal\(levels=4\)"),
        (
            lv.likelihoods.Ordinal(3),
            torch.zeros(2),
            torch.tensor([-1, 2]),
            r"Ordinal\(levels=4\) and targets y - \(-1\)",
        ),
        (lv.likelihoods.MultiLabel(), torch.zeros(2, 2), torch.tensor([[0, 1], [2, 0]]), "labels 0 and 1"),
        (lv.likelihoods.Categorical([1.0, 2.0]), torch.zeros(2, 3), torch.tensor([0, 2]), "2 class weights for 3"),
        (lv.likelihoods.Distribution(_gamma), torch.zeros(2, 2), torch.tensor([1.0, -1.0]), "outside the support"),
        (lv.likelihoods.Distribution(_gamma), torch.full((1, 2), 100.0), torch.ones(1), "not finite"),
    ],
)
def test_likelihoods_refuse_targets_and_outputs(likelihood, output, target, message):
    with pytest.raises(ValueError, match=message):
        likelihood.validate(output, target)


@pytest.mark.parametrize(
    ("output", "target", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4), r"nn\.Linear\(…, 2\)"),
        (torch.full((4, 2), math.inf), torch.randn(4), "overflow"),
        (torch.zeros(4, 2), torch.tensor([0.0, 1e-4, 2e-4, 0.0]), "Standardize them"),
        (torch.zeros(4, 2), torch.tensor([0.0, math.nan, 1.0, 2.0]), "finite targets"),
    ],
)
@pytest.mark.parametrize("make", [lv.likelihoods.HeteroscedasticGaussian, lv.likelihoods.HeteroscedasticStudentT])
def test_predicted_scales_refuse(make, output, target, message):
    with pytest.raises(ValueError, match=message):
        make().validate(output, target)


def test_one_example_far_from_a_confident_prediction_costs_a_logarithm_with_student_t_noise():
    """30 scales away: 450 nats with Gaussian noise, 5 log 30 = 17 or less with four degrees of freedom."""
    output, y = torch.tensor([[0.0, math.log(math.expm1(0.099))]]), torch.tensor([3.0])
    at_mode = torch.zeros(1)
    costs = []
    for likelihood in (lv.likelihoods.HeteroscedasticGaussian(), lv.likelihoods.HeteroscedasticStudentT()):
        costs.append(float(likelihood.log_prob(output, at_mode) - likelihood.log_prob(output, y)))
    assert costs[0] == pytest.approx(450, rel=1e-3)
    assert costs[1] == pytest.approx(2.5 * math.log1p(900 / 4), rel=1e-3)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "target", "message"),
    [
        (lv.likelihoods.Poisson(), 1, [0, 1, -2, 3], r"needs counts.*Gaussian\(std=0.5, sampled=True\).*target -2"),
        (lv.likelihoods.Ordinal(3), 1, [0, 1, 2, 4], r"write Ordinal\(levels=5\)"),
        (lv.likelihoods.Categorical([1.0, 2.0]), 3, [0, 1, 2, 0], r"class_weights=\[1.0, 1.0, 1.0\]"),
        (lv.likelihoods.HeteroscedasticGaussian(), 2, [0.0, 1.0, 2.0, 3.0], "overflows.*Standardize the inputs"),
    ],
)
def test_lv_sample_refuses_what_the_likelihood_can_not_have_before_the_first_step(likelihood, outputs, target, message):
    """Of all targets, though a mini-batch has one of them."""
    scale = 3e38 if isinstance(likelihood, lv.likelihoods.HeteroscedasticGaussian) else 1.0  # 6e38 is infinite
    x = torch.ones(4, 2, dtype=torch.float64) * scale
    posterior = lv.Posterior(torch.nn.Linear(2, outputs), likelihood, num_data=4)
    torch.nn.init.ones_(posterior.model.weight)
    with pytest.raises(ValueError, match=message):
        lv.sample(posterior, (x.float(), torch.tensor(target)), lv.SGLD, lr=1e-3, steps=5, batch_size=1, progress=False)
