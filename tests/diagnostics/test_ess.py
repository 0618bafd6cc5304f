import math

import pytest
import torch

from langevin.core.statistics import effective_sample_size
from tests.diagnostics.chains import autoregressive


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_ess_of_an_autoregressive_chain(rho):
    """The autocorrelation time of AR(1) is (1 + ρ)/(1 − ρ)."""
    ess = effective_sample_size(autoregressive(rho)) / 20_000
    exact = (1 - rho) / (1 + rho)
    error = float(ess.std() / math.sqrt(20))
    assert abs(float(ess.mean()) - exact) < 4 * error + 0.05 * exact


def test_the_ess_of_a_constant_is_zero():
    assert float(effective_sample_size(torch.ones(50))) == 0.0
    with pytest.raises(ValueError, match="at least 4 draws"):
        effective_sample_size(torch.ones(3))
