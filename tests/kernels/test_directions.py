"""The compiled moves of MCLMC are those in torch operations, to rounding."""

from __future__ import annotations

import pytest
import torch

from langevin.samplers import directions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("metric", [False, True])
@pytest.mark.parametrize("drift", [False, True])
def test_compiled_moves(dtype: torch.dtype, metric: bool, drift: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    u, theta, g, z = (torch.randn(3, 57, dtype=dtype) for _ in range(4))
    directions.normalize(u)
    root = torch.rand(3, 57, dtype=dtype) + 0.1 if metric else None
    time = torch.tensor([[0.3], [30.0], [1e-3]], dtype=torch.float64)
    half = torch.tensor([[0.5], [0.01], [2.0]], dtype=torch.float64) if drift else None
    nu = torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float64)

    def moved() -> list[torch.Tensor]:
        own_u, own_theta = u.clone(), theta.clone()
        change = directions.kick_and_drift(own_u, own_theta, g, root, time, half)
        kicked = own_u.clone()
        directions.refresh(own_u, z, nu)
        return [kicked, own_u, own_theta, change]

    compiled = moved()
    monkeypatch.setattr(directions, "_native", lambda *_: False)
    reference = moved()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for got, expected in zip(compiled, reference, strict=True):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(torch.linalg.vector_norm(compiled[1], dim=1), torch.ones(3, dtype=dtype))
