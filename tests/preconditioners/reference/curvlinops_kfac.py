"""Writes curvlinops.json: Ā ⊗ G of every layer of a small network, computed by curvlinops-for-pytorch.

    pip install curvlinops-for-pytorch
    python tests/preconditioners/reference/curvlinops_kfac.py

In a separate environment: curvlinops requires torchvision.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn


def model_and_data():
    """Weights and data from a formula, independent of random generators."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2, stride=2, padding=1, bias=True),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2, dilation=2, bias=True),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(2, 4),
        nn.Tanh(),
        nn.Linear(4, 3),
    ).double()
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.sin(torch.arange(parameter.numel()) * 1.7 + k).reshape(parameter.shape) * 0.6)
    x = torch.cos(torch.arange(8 * 2 * 4 * 4, dtype=torch.float64) ** 1.1).reshape(8, 2, 4, 4)
    return model, x, torch.arange(8) % 3


def main() -> None:
    from importlib.metadata import version

    from curvlinops import KFACLinearOperator

    model, x, y = model_and_data()
    kfac = KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(reduction="mean"),
        list(model.parameters()),
        [(x, y)],
        fisher_type="empirical",
        kfac_approx="expand",
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    kfac.compute_kronecker_factors()
    names = [str(index) for index, module in enumerate(model) if isinstance(module, nn.Conv2d | nn.Linear)]
    products = [torch.kron(kfac._gradient_covariances[name], kfac._input_covariances[name]).tolist() for name in names]
    text = json.dumps({"curvlinops": version("curvlinops-for-pytorch"), "products": products})
    (Path(__file__).parent / "curvlinops.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
