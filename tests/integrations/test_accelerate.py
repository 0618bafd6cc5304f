"""Accelerate as a real client: it prepares posterior and sampler, and saves and loads their state."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from tests.helpers import toy_data, toy_posterior


def prepared():
    accelerator = Accelerator(cpu=True)
    posterior = toy_posterior()
    sampler = lv.SGLD(posterior.parameters(), lr=1e-2, num_data=60, seed=4)
    loader = DataLoader(TensorDataset(*toy_data()), batch_size=20)
    return accelerator, *accelerator.prepare(posterior, sampler, loader)


def epochs(accelerator, posterior, sampler, loader, count):
    for _ in range(count):
        for x, y in loader:
            sampler.zero_grad()
            accelerator.backward(posterior(x, y))
            sampler.step()
    return torch.cat([p.detach().flatten() for p in posterior.parameters()]).clone()


def test_sgld_under_accelerate_and_resumed(tmp_path):
    accelerator, *parts = prepared()
    epochs(accelerator, *parts, 2)
    accelerator.save_state(str(tmp_path / "state"))
    whole = epochs(accelerator, *parts, 2)

    accelerator, *parts = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    assert torch.equal(epochs(accelerator, *parts, 2), whole)

    accelerator, *parts = prepared()
    assert not torch.equal(epochs(accelerator, *parts, 2), whole)
