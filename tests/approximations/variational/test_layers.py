"""The noise added to layer outputs has, for each example, the covariance of the outputs under drawn weights."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from langevin.approximations.variational.layers import find_noisy_layers, noise_in

LAYERS = {
    "linear": (nn.Linear(3, 2), (3,), True),
    "linear, flipout": (nn.Linear(3, 2), (3,), False),
    "linear at positions": (nn.Linear(3, 2), (2, 3), True),
    "without bias": (nn.Linear(3, 2, bias=False), (3,), False),
    "convolution": (nn.Conv1d(2, 2, 2, stride=2, padding=1), (2, 4), True),
    "groups, dilation, circular": (
        nn.Conv2d(2, 4, 2, groups=2, dilation=2, padding=1, padding_mode="circular"),
        (2, 2, 2),
        True,
    ),
}


@pytest.mark.parametrize(("module", "shape", "local"), LAYERS.values(), ids=LAYERS.keys())
@torch.no_grad()
def test_the_covariance_is_that_of_drawn_weights_and_examples_are_uncorrelated(module, shape, local):
    torch.manual_seed(0)
    module = module.double()
    x = torch.randn(2, *shape, dtype=torch.float64) + 0.5
    std = {name: 0.2 + 0.5 * torch.rand_like(p) for name, p in module.named_parameters()}
    names = list(std)

    def output(*weights):
        return functional_call(module, dict(zip(names, weights, strict=True)), (x,)).flatten(1)

    jacobians = jacrev(output, argnums=tuple(range(len(names))))(*(p.detach() for p in module.parameters()))
    scaled = torch.cat([(j * std[n]).flatten(2) for n, j in zip(names, jacobians, strict=True)], dim=2)
    expected = torch.block_diag(*(rows @ rows.T for rows in scaled))

    layers = find_noisy_layers(module, names)
    clean = module(x).flatten()
    draws = []
    for _ in range(1500):
        with noise_in(layers, std, 2, local):
            draws.append(module(x).flatten() - clean)
    rows = torch.stack(draws)
    products = rows[:, :, None] * rows[:, None, :]
    error = products.std(0) / math.sqrt(len(rows)) + 1e-12
    assert float(((products.mean(0) - expected).abs() / error).max()) < 4.7
    assert float((rows.mean(0) / (rows.std(0) / math.sqrt(len(rows)))).abs().max()) < 4.5
