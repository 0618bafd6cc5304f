import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.distributions import Normal

import langevin as lv
from langevin.core.parameters import public_name
from tests.helpers import toy_data, toy_model, toy_posterior


def test_the_likelihood_is_rescaled_and_the_prior_counts_once():
    """The mean of Û over a partition into batches is U, and `loss` is Û/N."""
    x, y = toy_data()
    posterior = toy_posterior()
    log_likelihood = torch.log_softmax(posterior.model(x), 1).gather(1, y[:, None]).sum()
    log_prior = sum(Normal(0.0, 1.0).log_prob(p).sum() for p in posterior.parameters())
    energy = -log_likelihood - log_prior
    torch.testing.assert_close(posterior.loss(x, y) * 60, energy)
    batches = [posterior.loss(x[i : i + 10], y[i : i + 10]) * 60 for i in range(0, 60, 10)]
    torch.testing.assert_close(torch.stack(batches).mean(), energy)


def test_the_weight_multiplies_only_the_likelihood():
    x, y = toy_data()
    full, half = toy_posterior(), toy_posterior(weight=0.5)
    prior = full.log_prior() / 60
    torch.testing.assert_close(half.loss(x, y) + prior, 0.5 * (full.loss(x, y) + prior))


@pytest.mark.parametrize(
    ("prior", "reference"),
    [
        (lv.priors.Gaussian(0.7), stats.norm(scale=0.7)),
        (lv.priors.Laplace(0.7), stats.laplace(scale=0.7)),
        (lv.priors.StudentT(df=4.0, scale=0.7), stats.t(4.0, scale=0.7)),
    ],
)
def test_priors_agree_with_scipy(prior, reference):
    theta = torch.randn(3, 4, dtype=torch.float64)
    assert float(prior.log_prob(theta)) == pytest.approx(float(reference.logpdf(theta.numpy()).sum()))


@pytest.mark.parametrize("d", [1, 2])
def test_group_laplace_is_normalized(d):
    prior = lv.priors.GroupLaplace(scale=0.5)
    if d == 1:
        total, _ = integrate.quad(lambda s: math.exp(prior.log_prob(torch.tensor([s], dtype=torch.float64))), -20, 20)
    else:
        total, _ = integrate.dblquad(
            lambda a, b: math.exp(prior.log_prob(torch.tensor([[a, b]], dtype=torch.float64))),
            -8,
            8,
            -8,
            8,
            epsabs=1e-4,
        )
    assert total == pytest.approx(1.0, abs=1e-3)


def test_the_groups_of_group_laplace_are_rows():
    w = torch.randn(3, 2, 2, 2)
    expected = w.flatten(1).norm(dim=1).sum() / 5.0
    constant = lv.priors.GroupLaplace(5.0).log_prob(torch.zeros(3, 2, 2, 2))
    torch.testing.assert_close(constant - lv.priors.GroupLaplace(5.0).log_prob(w), expected)


def test_the_energy_of_unit_direction():
    phi = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    assert float(lv.priors.UnitDirection().log_prob(phi)) == pytest.approx(-1.5 * 9)


@pytest.mark.parametrize(
    "prior", [lv.priors.Laplace(), lv.priors.GroupLaplace(), lv.priors.UnitDirection(), lv.priors.StudentT()]
)
def test_gradients_are_finite_where_a_prior_is_not_smooth(prior):
    w = torch.zeros(3, 4, requires_grad=True)
    prior.log_prob(w).backward()
    assert torch.equal(w.grad, torch.zeros(3, 4))


def test_priors_match_parameter_names_without_wrapper_prefixes():
    prior = {"*.bias": lv.priors.Gaussian(2.0), "*": lv.priors.Gaussian(1.0)}
    posterior = toy_posterior()
    posterior = lv.Posterior(toy_model(), lv.likelihoods.Categorical(), prior, num_data=60)
    expected = sum(
        (lv.priors.Gaussian(2.0) if name.endswith("bias") else lv.priors.Gaussian(1.0)).log_prob(p)
        for name, p in posterior.model.named_parameters()
    )
    torch.testing.assert_close(posterior.log_prior(), expected)
    assert public_name("model.module._orig_mod.0.weight") == "0.weight"
    with pytest.raises(ValueError, match="No pattern matches the parameter '0.bias'"):
        lv.Posterior(toy_model(), lv.likelihoods.Categorical(), {"*.weight": lv.priors.Gaussian()}, num_data=60)


def test_log_prob_of_likelihoods_agrees_with_torch():
    logits, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(
        lv.likelihoods.Categorical().log_prob(logits, y), torch.distributions.Categorical(logits=logits).log_prob(y)
    )
    z, b = torch.randn(6, 1), torch.tensor([0, 1, 1, 0, 1, 0])
    torch.testing.assert_close(
        lv.likelihoods.Bernoulli().log_prob(z, b), torch.distributions.Bernoulli(logits=z[:, 0]).log_prob(b.float())
    )
    out, t = torch.randn(6, 2), torch.randn(6, 2)
    torch.testing.assert_close(lv.likelihoods.Gaussian(0.3).log_prob(out, t), Normal(out, 0.3).log_prob(t).sum(1))
    dense, labels = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    expected = -nn.functional.cross_entropy(dense, labels, reduction="none").sum((1, 2))
    torch.testing.assert_close(lv.likelihoods.Categorical().log_prob(dense, labels), expected)


def test_sampled_noise_belongs_to_the_posterior_not_to_the_model():
    posterior = lv.Posterior(
        nn.Linear(2, 1), lv.likelihoods.Gaussian(0.5, sampled=True), lv.priors.Gaussian(), num_data=5
    )
    assert "likelihood.log_std" in posterior.trainable_parameters()
    assert len(list(posterior.model.parameters())) == 2
    x, y = torch.randn(5, 2), torch.randn(5)  # a target of shape (5,) and outputs (5, 1) must not broadcast
    posterior.loss(x, y).backward()
    assert torch.isfinite(posterior.likelihood.log_std.grad)
    torch.testing.assert_close(
        posterior.likelihood.log_prob(posterior.model(x), y), Normal(posterior.model(x)[:, 0], 0.5).log_prob(y)
    )


def test_any_object_with_log_prob_is_a_likelihood():
    class Poisson:
        def log_prob(self, output, target):
            return torch.distributions.Poisson(output[:, 0].exp()).log_prob(target)

    posterior = lv.Posterior(nn.Linear(2, 1), Poisson(), lv.priors.Gaussian(), num_data=5)
    assert posterior.loss(torch.randn(5, 2), torch.ones(5)).shape == ()


def test_inputs_may_be_tuples_and_dicts():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(2, 3)

        def forward(self, a, b):
            return self.w(a + b)

    posterior = lv.Posterior(Two(), lv.likelihoods.Categorical(), lv.priors.Gaussian(), num_data=4)
    a, b, y = torch.randn(4, 2), torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    assert torch.equal(posterior.loss((a, b), y), posterior.loss({"b": b, "a": a}, y))


def test_a_subset_of_the_parameters_can_be_sampled():
    model = toy_model()
    posterior = toy_posterior(model, sampled="2.*")
    assert list(posterior.trainable_parameters()) == ["2.weight", "2.bias"]
    assert set(posterior.fixed_tensors()) == {"0.weight", "0.bias"}
    with pytest.raises(ValueError, match=r"sampled=\['head.\*'\] matches no parameter"):
        toy_posterior(sampled="head.*")


def bad_model(layer):
    return nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: toy_posterior(n=0), "num_data is the number of training examples"),
        (lambda: toy_posterior(n=2.5), "num_data is the number of training examples"),
        (lambda: toy_posterior(n=True), "num_data is the number of training examples"),
        (lambda: toy_posterior(toy_model().half()), "rounding swallows the noise"),
        (lambda: toy_posterior(toy_model().requires_grad_(False)), "no trainable parameter"),
        (lambda: toy_posterior(weight=-1.0), "weight of the likelihood must be positive"),
        (lambda: toy_posterior(allow=["noise"]), "batchnorm"),
        (lambda: lv.Posterior(toy_model(), object(), lv.priors.Gaussian(), num_data=1), "has no log_prob"),
        (lambda: lv.Posterior(toy_model(), lv.likelihoods.Categorical(), object(), num_data=1), "has no log_prob"),
        (lambda: lv.priors.PerParameter({"*": 3}), "has no log_prob"),
        (lambda: lv.priors.Gaussian(0.0), "std must be positive"),
        (lambda: lv.priors.StudentT(df=-1.0), "df must be positive"),
        (lambda: lv.likelihoods.Gaussian(0.0), "standard deviation must be positive"),
        (lambda: lv.cyclical(0), "at least one step"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_num_data_has_no_default():
    with pytest.raises(TypeError, match="num_data"):
        lv.Posterior(toy_model(), lv.likelihoods.Categorical(), lv.priors.Gaussian())


@pytest.mark.parametrize(
    ("likelihood", "output", "target", "message"),
    [
        (
            lv.likelihoods.Categorical(),
            torch.zeros(4, 3),
            torch.tensor([0, 1, 5, 2]),
            "labels must lie in 0 … 2; found label 5",
        ),
        (lv.likelihoods.Categorical(), torch.zeros(4, 3), torch.tensor([0, -100, 1, 2]), "found label -100"),
        (lv.likelihoods.Categorical(), torch.zeros(4, 3), torch.zeros(4, 3), "integer class labels"),
        (lv.likelihoods.Categorical(), torch.zeros(4, 3), torch.zeros(4), "integer class labels"),
        (lv.likelihoods.Bernoulli(), torch.zeros(4, 3), torch.zeros(4), "one logit per example"),
        (lv.likelihoods.Bernoulli(), torch.zeros(4), torch.zeros(5), "same number of values"),
        (lv.likelihoods.Gaussian(1.0), torch.zeros(4, 2), torch.zeros(4), "same number of values"),
    ],
)
def test_bad_targets_are_refused(likelihood, output, target, message):
    with pytest.raises(ValueError, match=message):
        likelihood.log_prob(output, target)


def test_a_likelihood_that_reduces_over_the_batch_is_refused():
    class Summed:
        def log_prob(self, output, target):
            return -nn.functional.cross_entropy(output, target, reduction="sum")

    posterior = lv.Posterior(toy_model(), Summed(), lv.priors.Gaussian(), num_data=60)
    with pytest.raises(ValueError, match="one value per example"):
        posterior.loss(*toy_data())


@pytest.mark.parametrize(("layer", "kind"), [(nn.BatchNorm1d(5), "batchnorm"), (nn.Dropout(0.5), "dropout")])
def test_batchnorm_and_dropout_give_a_warning(layer, kind):
    with pytest.warns(UserWarning, match="Layer '1'"):
        posterior = toy_posterior(bad_model(layer))
    assert [layer.kind for layer in posterior.incompatible_layers()] == [kind]
    assert not toy_posterior(bad_model(layer).eval()).incompatible_layers()
    assert not toy_posterior(bad_model(nn.Dropout(0.0))).incompatible_layers()


def test_default_priors_of_models():
    net = lv.models.make("resnet++", depth=8, width=4)
    prior = lv.priors.default(net)
    for name, _ in net.named_parameters():
        kind = {"scale": lv.priors.GroupLaplace(5.0), "direction": lv.priors.UnitDirection()}.get(
            name.rpartition(".")[2]
        )
        assert prior.for_parameter(name) == (kind or lv.priors.Gaussian(1.0)), name
    assert lv.priors.resnetpp(b=2.0).for_parameter("x.scale") == lv.priors.GroupLaplace(2.0)
    prior = lv.priors.default(lv.models.LeNet5())
    model = lv.models.LeNet5()
    for name, parameter in model.named_parameters():
        expected = math.sqrt(2 / parameter[0].numel()) if parameter.dim() > 1 else 1.0
        assert prior.for_parameter(name).std == pytest.approx(expected)
    assert prior.for_parameter("likelihood.log_std") == lv.priors.Gaussian(1.0)


def test_a_fan_in_prior_preserves_the_scale_of_activations():
    """Activations of networks drawn from it neither explode nor vanish with depth."""
    model = lv.models.MLP(100, 100, widths=(100,) * 8, bias=False)
    prior = lv.priors.fan_in(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(prior.for_parameter(name).std * torch.randn(p.shape, generator=generator))
    x = torch.randn(200, 100, generator=generator)
    assert 0.5 < float(model(x).std() / x.std()) < 3.0


class Wider(lv.priors.Gaussian):
    """A custom prior that subclasses the library's."""

    def log_prob(self, parameter):
        return -parameter.abs().sum()


@pytest.mark.parametrize("width", [5, 9000])  # concatenated, and one pass per tensor
@pytest.mark.parametrize(
    "prior",
    [
        lv.priors.Gaussian(0.3),
        {"0.*": lv.priors.Gaussian(0.3), "*": lv.priors.Gaussian(2.0)},
        {"0.*": lv.priors.Laplace(0.3), "*": lv.priors.Gaussian(2.0)},
        lv.priors.StudentT(),
        Wider(0.5),
    ],
)
def test_loss_and_forward_agree_in_value_gradient_and_curvature(prior, width):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double()
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), prior, num_data=60, weight=0.5)
    x, y = toy_data(dtype=torch.float64)
    params = list(posterior.parameters())
    outcomes = []
    for function in (posterior.loss, posterior):
        loss = function(x, y)
        grads = torch.autograd.grad(loss, params, create_graph=True)
        along = sum((g * torch.linspace(0, 1, g.numel()).view_as(g)).sum() for g in grads)
        outcomes.append([loss, *grads, *torch.autograd.grad(along, params)])
    for ours, plain in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)


def test_no_label_is_silently_ignored():
    with pytest.raises(ValueError, match="-100"):
        lv.likelihoods.Categorical().mean_energy(torch.zeros(2, 3), torch.tensor([0, -100]))
