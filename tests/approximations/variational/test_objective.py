"""The loss is an unbiased estimate of −ELBO/N, compared with closed forms."""

import math

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.approximations.distributions import LowRankGaussian
from langevin.approximations.variational.expected import expected_log_prob
from langevin.approximations.variational.objective import inverse_softplus
from langevin.core import random
from tests.conjugate import conjugate
from tests.helpers import toy_data, toy_posterior

SIGMAS = 4.5


def set_to(q, mean, std):
    """Set the parameters of a mean-field q for the conjugate problem."""
    params = q.trainable_parameters()
    with torch.no_grad():
        params["mean/weight"].copy_(mean.reshape(1, -1))
        params["rho/weight"].copy_(torch.tensor([inverse_softplus(float(s)) for s in std]).reshape(1, -1))


def estimates(value, count):
    rows = torch.stack([value(i) for i in range(count)]).double()
    return rows.mean(0), rows.std(0) / math.sqrt(count)


def near(mean, error, expected):
    assert bool(((mean - expected).abs() < SIGMAS * error).all()), (mean, error, expected)


@pytest.mark.parametrize("how", ["local", "flipout", "plain"])
def test_the_loss_is_an_unbiased_estimate_of_the_elbo_over_n(how):
    problem = conjugate()
    q = lv.MeanField(reparameterization=how).of(problem.posterior())
    mean, std = problem.mean + 0.1, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    set_to(q, mean, std)

    def loss(i):
        batch = random.random_subset(problem.num_data, 8, seed=1, chain=0, step=i)
        return q.loss(problem.x[batch], problem.y[batch]).detach()

    expected = -problem.elbo(mean, std.square().diag()) / problem.num_data
    found, error = estimates(loss, 1200)
    near(found, error, expected)
    assert float(error) < 0.05 * abs(expected)


@pytest.mark.parametrize("how", ["local", "plain"])
def test_the_mean_field_optimum_has_the_inverse_diagonal_precision_as_variance(how):
    problem = conjugate()
    q = lv.MeanField(reparameterization=how).of(problem.posterior())
    params = list(q.trainable_parameters().values())

    def gradient(i):
        return torch.cat([g.flatten() for g in torch.autograd.grad(q.loss(problem.x, problem.y), params)])

    set_to(q, problem.mean, problem.precision.diag() ** -0.5)
    near(*estimates(gradient, 800), torch.zeros(6))
    set_to(q, problem.mean, problem.covariance.diag() ** 0.5)  # the exact marginals are not the optimum
    found, error = estimates(gradient, 300)
    assert bool(((found / error)[3:] > SIGMAS).all())


def test_the_optimum_of_a_full_rank_family_is_the_posterior():
    problem = conjugate()
    q = lv.LowRank(rank=3).of(problem.posterior())
    params = q.trainable_parameters()
    noise_part = 0.5 * torch.linalg.eigvalsh(problem.covariance)[0]
    with torch.no_grad():
        params["mean/weight"].copy_(problem.mean[None])
        params["rho/weight"].fill_(inverse_softplus(float(noise_part.sqrt())))
        rest = problem.covariance - noise_part * torch.eye(3)
        params["factor/weight"].copy_(torch.linalg.cholesky(rest)[None])

    def gradient(i):
        grads = torch.autograd.grad(q.loss(problem.x, problem.y), list(params.values()))
        return torch.cat([g.flatten() for g in grads])

    torch.testing.assert_close(q.distribution().covariance().detach(), problem.covariance)
    near(*estimates(gradient, 800), torch.zeros(15))
    with torch.no_grad():
        params["factor/weight"].mul_(1.5)
    found, error = estimates(gradient, 300)
    assert float((found / error).abs().max()) > SIGMAS


def test_local_reparameterization_has_less_gradient_variance():
    x, y = toy_data()

    def variance(how):
        torch.manual_seed(0)
        q = lv.MeanField(init_std=0.3, reparameterization=how).of(toy_posterior())
        params = list(q.trainable_parameters().values())
        rows = [torch.cat([g.flatten() for g in torch.autograd.grad(q.loss(x, y), params)]) for _ in range(150)]
        return torch.stack(rows).var(0).sum()

    local, flipout, plain = variance("local"), variance("flipout"), variance("plain")
    assert local < 0.25 * plain
    assert flipout < 0.5 * plain


def conv_net():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, padding_mode="reflect"),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),  # a mean over positions, whose variance depends on their correlation
        nn.Flatten(),
        nn.Linear(4, 1),
    ).double()


def test_the_positions_of_a_convolution_share_one_draw_of_the_weights():
    x = torch.ones(4, 2, 6, 6, dtype=torch.float64) + 0.3 * torch.randn(4, 2, 6, 6, dtype=torch.float64)
    y = torch.zeros(4, 1, dtype=torch.float64)

    def data_loss(how):
        posterior = lv.Posterior(conv_net(), lv.likelihoods.Gaussian(0.1), lv.priors.Gaussian(1.0), num_data=4)
        q = lv.MeanField(init_std=0.5, reparameterization=how).of(posterior)
        return estimates(lambda i: q.data_loss(x, y).detach(), 800)

    (noisy, error), (plain, plain_error) = data_loss("local"), data_loss("plain")
    near(noisy, (error**2 + plain_error**2).sqrt(), plain)


def test_layer_noise_preserves_the_correlations_of_a_low_rank_family():
    problem = conjugate()
    q = lv.LowRank(rank=2, init_std=0.3).of(problem.posterior())
    now = q.distribution()
    expected = -problem.elbo(now.mean["weight"].flatten().detach(), now.covariance().detach()) / problem.num_data
    near(*estimates(lambda i: q.loss(problem.x, problem.y).detach(), 1200), expected)


def test_entropy_and_draws_agree_with_the_multivariate_normal():
    torch.manual_seed(1)
    q = LowRankGaussian(
        {"a": torch.randn(2, 2).double(), "b": torch.randn(()).double()},
        {"a": torch.rand(2, 2).double() + 0.1, "b": torch.rand(()).double() + 0.1},
        {"a": torch.randn(2, 2, 3).double(), "b": torch.randn(3).double()},
    )
    exact = torch.distributions.MultivariateNormal(torch.zeros(5).double(), q.covariance())
    torch.testing.assert_close(q.entropy(), exact.entropy())
    rows = torch.stack([torch.cat([t.flatten() for t in q.draw(0, i).values()]) for i in range(4000)])
    center = torch.cat([m.flatten() for m in q.mean.values()])
    near(rows.mean(0), rows.std(0) / math.sqrt(len(rows)), center)
    products = (rows - center)[:, :, None] * (rows - center)[:, None, :]
    near(products.mean(0), products.std(0) / math.sqrt(len(rows)), q.covariance())
    marginal = torch.cat([q.marginal_variance(name).flatten() for name in q.mean])
    torch.testing.assert_close(marginal, q.covariance().diag())


@pytest.mark.parametrize("prior", [lv.priors.Gaussian(0.6), lv.priors.Laplace(0.6), lv.priors.StudentT(4.0, 0.6)])
def test_kl_agrees_with_monte_carlo(prior):
    mean, std = torch.tensor([[0.5, -1.0, 0.0, 2.0]]).double(), torch.tensor([[0.3, 0.8, 0.5, 0.1]]).double()
    posterior = lv.Posterior(nn.Linear(4, 1, bias=False).double(), lv.likelihoods.Gaussian(1.0), prior, num_data=7)
    q = lv.MeanField().of(posterior)
    set_to(q, mean, std.flatten())
    normal = torch.distributions.Normal(mean, std)

    def by_draws(i):
        w = normal.sample()
        return normal.log_prob(w).sum() - prior.log_prob(w)

    expected, error = estimates(by_draws, 8000)
    if expected_log_prob(prior, mean, std.square()) is None:
        found, own = estimates(lambda i: q.kl().detach(), 1500)
        near(found, (own**2 + error**2).sqrt(), expected)
    else:
        near(q.kl().detach(), error, expected)
    if isinstance(prior, lv.priors.Gaussian):
        oracle = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 0.6)).sum()
        torch.testing.assert_close(q.kl().detach(), oracle)


def test_kl_without_a_closed_form_has_gradients():
    posterior = lv.Posterior(nn.Linear(4, 1).double(), lv.likelihoods.Gaussian(1.0), lv.priors.StudentT(), num_data=7)
    q = lv.LowRank(rank=2).of(posterior)
    q.kl().backward()
    assert all(bool((p.grad != 0).all()) for p in q.trainable_parameters().values())


def test_the_warm_up_scales_kl_and_ends_at_one():
    x, y = toy_data()
    q = lv.MeanField(kl_warmup=4).of(toy_posterior())
    kl = float(q.kl().detach())
    for step, share in [(0, 0.25), (1, 0.5), (3, 1.0), (100, 1.0)]:
        q.set_step(step)
        torch.manual_seed(0)
        loss = float(q.loss(x, y).detach())
        torch.manual_seed(0)
        assert loss - float(q.data_loss(x, y).detach()) == pytest.approx(share * kl / 60, rel=1e-4)


def test_a_weighted_likelihood_with_several_draws():
    x, y = toy_data()
    torch.manual_seed(0)
    double = lv.MeanField(draws=2).of(toy_posterior(weight=2.0)).data_loss(x, y)
    torch.manual_seed(0)
    single = lv.MeanField().of(toy_posterior())
    torch.testing.assert_close(double, single.data_loss(x, y) + single.data_loss(x, y))  # 2 × the mean of two


def test_a_tied_mean_is_one_scalar_per_layer():
    q = lv.MeanField(tied_mean=True).of(toy_posterior())
    params = q.trainable_parameters()
    assert [n for n in params if n.startswith("mean/")] == ["mean/0", "mean/2"]
    assert params["mean/0"].shape == ()
    mean = {name: m.detach() for name, m in q.distribution().mean.items()}
    assert mean["0.weight"].shape == (5, 4)
    assert len({float(v) for name in ("0.weight", "0.bias") for v in mean[name].flatten()}) == 1


def test_a_sampled_noise_std_has_variational_parameters():
    posterior = lv.Posterior(
        nn.Linear(2, 1), lv.likelihoods.Gaussian(0.5, sampled=True), lv.priors.Gaussian(1.0), num_data=9
    )
    q = lv.MeanField().of(posterior)
    q.loss(torch.randn(9, 2), torch.randn(9, 1)).backward()
    assert float(q.trainable_parameters()["rho/likelihood.log_std"].grad.abs()) > 0


class Twice(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.inner, self.out, self.call = nn.Linear(4, 4), nn.Linear(4, 3), call

    def forward(self, x):
        return self.out(self.call(self.inner, x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer, x: layer(layer(x)), "'inner' is used twice"),
        (lambda layer, x: nn.functional.linear(x, layer.weight), "'inner' was not called"),
        (lambda layer, x: layer(x.repeat(2, 1))[: len(x)], "'inner' is given 120 rows for a batch of 60"),
    ],
)
def test_unsupported_uses_of_a_layer_are_refused_with_a_remedy(call, message):
    x, y = toy_data()
    with pytest.raises(ValueError, match=message) as error:
        lv.MeanField().of(toy_posterior(Twice(call))).loss(x, y)
    assert 'reparameterization="plain"' in str(error.value)
    assert math.isfinite(float(lv.MeanField(reparameterization="plain").of(toy_posterior(Twice(call))).loss(x, y)))


def test_tied_weights_are_drawn_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    q = lv.MeanField().of(toy_posterior(model))
    assert [layer.name for layer in q._layers] == ["3"]
    q.loss(*toy_data()).backward()


def test_gradients_are_finite_for_an_input_of_zeros():
    posterior = lv.Posterior(
        nn.Linear(4, 3, bias=False), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=8
    )
    q = lv.MeanField().of(posterior)
    q.loss(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)).backward()
    assert all(bool(p.grad.isfinite().all()) for p in q.trainable_parameters().values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lv.MeanField(init_std=0.0), "init_std=0.0"),
        (lambda: lv.MeanField(reparameterization="global"), 'choose "local"'),
        (lambda: lv.MeanField(draws=0), "at least one draw"),
        (lambda: lv.LowRank(rank=0).of(toy_posterior()), "rank from 1 to 43"),
        (lambda: lv.LowRank(rank=44).of(toy_posterior()), "rank from 1 to 43"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
