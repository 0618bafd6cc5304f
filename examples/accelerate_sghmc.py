"""SGHMC under Accelerate: `prepare` wraps the posterior, the sampler and the loader as it wraps any model's.

    python examples/accelerate_sghmc.py          or: accelerate launch examples/accelerate_sghmc.py

A recorder collects the weights after burn-in, and reads the temperature; what it recorded is a run, with predictions,
diagnostics and a verdict.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv


def patients() -> tuple[TensorDataset, TensorDataset]:
    """Measurements of 569 tumours, standardized, and whether each is benign; three quarters are for training."""
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, torch.tensor(y), test_size=0.25, random_state=0)
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def main(steps: int = 6_000, burn_in: int = 1_000, thin: int = 20) -> lv.Run:
    """Sample, predict the test part, print the verdict."""
    torch.manual_seed(0)
    accelerator = Accelerator()
    train, test = patients()
    posterior = lv.Posterior(lv.models.MLP(30, 2, widths=(10,)), lv.likelihoods.Categorical(), num_data=len(train))
    posterior.model.load_state_dict(lv.find_map(posterior, train, progress=False))  # burn-in is shorter from there
    # All data fit into a batch: the noise of smaller ones would heat stiff directions and ask for a far smaller lr, and
    # exact gradients need little friction. lr is that of lv.find_lr(…, lv.SGHMC, momentum=0.98, batch_size=len(train)).
    sampler = lv.SGHMC(posterior.parameters(), lr=0.027, momentum=0.98, num_data=len(train), seed=0)
    loader = DataLoader(train, batch_size=len(train))
    wrapped, optimizer, loader = accelerator.prepare(posterior, sampler, loader)
    recorder = lv.Recorder(posterior, sampler)  # of the objects themselves, not of what wraps them

    step = 0
    while step < steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = wrapped(*batch)  # a posterior's forward(x, y) is its loss
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step > burn_in and step % thin == 0:
                recorder.record(step, loss=float(loss.detach()))

    run = recorder.run()
    x, y = test.tensors
    prediction = run.predict(x)
    accuracy = float((prediction.labels.cpu() == y).float().mean())
    accelerator.print(run.verdict(x))
    accelerator.print(f"{run}: accuracy {accuracy:.1%}, mean confidence {prediction.confidence.mean():.1%}")
    return run


if __name__ == "__main__":
    main()
