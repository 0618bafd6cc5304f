import pytest
import torch

from langevin.diagnostics.temperature import Thermometer


@pytest.mark.parametrize("chains", [None, 3])
def test_the_temperature_is_the_mean_over_weights_not_over_tensors(chains):
    """N (θ−a)·g/dim, of tensors of different sizes, by hand; and the same of each tensor."""
    stack = () if chains is None else (chains,)
    params = [torch.randn(*stack, 2, 3), torch.randn(*stack, 1)]
    thermometer = Thermometer([torch.zeros_like(p) for p in params], num_data=7, stacked=chains is not None)
    for p in params:
        p.grad = torch.randn_like(p)
    rows = torch.cat([(p * p.grad).reshape(chains or 1, -1) for p in params], 1).double()
    torch.testing.assert_close(thermometer.measure(params), 7 * rows.mean(1))
    torch.testing.assert_close(thermometer.measure_each(params), torch.stack([7 * rows[:, :6].mean(1), 7 * rows[:, 6]]))
