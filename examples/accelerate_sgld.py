"""SGLD under Accelerate: `prepare` wraps the posterior, the sampler and the loader as it wraps any model's.

python examples/accelerate_sgld.py          or: accelerate launch examples/accelerate_sgld.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv


def main(steps: int = 3000, burn_in: int = 1000, thin: int = 50) -> float:
    """Sample, predict the test digits, return the accuracy."""
    accelerator = Accelerator()
    train, (x, y) = lv.data.digits("train").tensors, lv.data.digits("test").tensors
    posterior = lv.Posterior(
        lv.models.MLP(64, 10, widths=(50,)), lv.Categorical(), lv.Gaussian(std=1.0), num_data=len(train[0])
    )
    sampler = lv.SGLD(posterior.parameters(), lr=0.1, num_data=len(train[0]), seed=0)
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True)
    posterior, sampler, loader = accelerator.prepare(posterior, sampler, loader)

    total, kept, step = torch.zeros(len(y), 10), 0, 0
    while step < steps:
        for batch in loader:
            sampler.zero_grad()
            accelerator.backward(posterior(*batch))  # posterior(x, y) is its loss
            sampler.step()
            step += 1
            if step > burn_in and step % thin == 0:
                with torch.no_grad():
                    model = accelerator.unwrap_model(posterior).model
                    total += model(x.to(accelerator.device)).softmax(1).cpu()
                kept += 1
            if step == steps:
                break
    accuracy = float((total.argmax(1) == y).float().mean())
    accelerator.print(f"{kept} samples, accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
