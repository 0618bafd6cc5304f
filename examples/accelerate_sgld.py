"""SGLD under Accelerate: `prepare` wraps the posterior, the sampler and the loader as it wraps any model's.

    python examples/accelerate_sgld.py          or: accelerate launch examples/accelerate_sgld.py

A recorder collects the weights after burn-in; what it recorded is a run, with predictions and diagnostics.
"""

from __future__ import annotations

from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv


def main(steps: int = 3000, burn_in: int = 1000, thin: int = 50) -> float:
    """Sample, predict the test digits, return the accuracy."""
    accelerator = Accelerator()
    train, (x, y) = lv.data.digits("train").tensors, lv.data.digits("test").tensors
    posterior = lv.Posterior(
        lv.models.MLP(64, 10, widths=(50,)),
        lv.likelihoods.Categorical(),
        lv.priors.Gaussian(std=1.0),
        num_data=len(train[0]),
    )
    posterior.model.load_state_dict(lv.find_map(posterior, train))  # else burn-in takes far longer at this rate
    sampler = lv.SGLD(posterior.parameters(), lr=5e-3, num_data=len(train[0]), seed=0)
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True)
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
            if step == steps:
                break

    run = recorder.run()
    prediction = run.predict(x)
    accuracy = float((prediction.labels.cpu() == y).float().mean())
    accelerator.print(run.verdict())  # a loop of one's own has no thermometer, and SGLD takes long to mix: lv.sample
    accelerator.print(f"{run}: accuracy {accuracy:.1%}, mean confidence {prediction.confidence.mean():.1%}")
    return accuracy


if __name__ == "__main__":
    main()
