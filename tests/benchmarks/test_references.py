"""The references of the autopilot: the same posterior, written twice."""

import math

import pytest
import torch

from benchmarks import references


@pytest.mark.parametrize("name", ["curve, 1-8-1", "breast cancer, 30-5-1"])
def test_energies_differ_from_the_library_by_a_constant(name):
    problem = references.problems()[name]()
    posterior = problem.posterior().double()
    x, y = (t.double() for t in problem.train)
    size = sum(p.numel() for p in posterior.parameters())
    theta = torch.randn(3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    differences = []
    for own, energy in zip(theta, problem.energy(theta), strict=True):
        torch.nn.utils.vector_to_parameters(own, posterior.parameters())
        differences.append(float(posterior.loss(x, y).detach()) * posterior.num_data - float(energy))
    assert differences == pytest.approx([differences[0]] * 3, abs=1e-3)  # the library has 0.2 in single precision


def test_a_reference_that_has_not_converged_judges_nothing():
    row = {"rhat": 1.0, "iterations": 1000, "mean": 0.05, "spread": 0.2, "ratio": 1.0, "seconds": 1.0}
    rows = {"a": row, "b": row | {"rhat": 1.03}, "c": row | {"spread": 0.1}, "d": row | {"mean": math.nan}}
    lines = references.table(rows).splitlines()[2:]
    assert [line.split(" | ")[6] for line in lines] == ["mean only", "unknown: HMC has not converged", "yes", "no"]
