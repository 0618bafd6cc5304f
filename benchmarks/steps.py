"""What a step costs beside plain SGD: every sampler, in the engine of `lv.sample` and in a loop of one's own.

The figure is 1 + (our update with the prior − SGD's, each by itself)/(a whole step of SGD): both compute the same
gradient, whose time varies by more than the difference. Beside it stands the plain ratio of whole steps taken in turns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import peers
from benchmarks.timing import compare
from benchmarks.workloads import CNN_64, TIMED, TINY, WIDE, MakeSampler, Workload, plain_sgd, sampler_step
from langevin.core import random
from langevin.core.batches import Batch, Batches
from langevin.inference.one_chain import OneChain

Say = Callable[[str], None]
Row = dict[str, Any]
Step = Callable[[], Any]
_PER_ROUND = {TINY.key: 20, WIDE.key: 3, CNN_64.key: 3}


class _TheSameBatch(Batches):
    """What plain SGD is given too: fetching a batch is not part of the comparison."""

    def __init__(self, batch: Batch, num_data: int) -> None:
        self.batch, self.num_data = batch, num_data

    def fetch(self, chain: int, step: int) -> Batch:
        return self.batch


def engine_step(workload: Workload, make: MakeSampler) -> tuple[Step, Step]:
    """A whole step of a chain as `lv.sample` makes it, between two looks at its temperature; and its update alone."""
    posterior = workload.posterior()
    start = {name: p.detach().clone() for name, p in posterior.trainable_parameters().items()}
    batches = _TheSameBatch(workload.batch(), workload.num_data)
    chain = OneChain(posterior, [0], [start], batches, make, None, seed=0)

    def whole() -> None:
        chain.backward(whole=False)
        chain.advance()

    whole()
    return whole, chain.advance


def sgd_update(workload: Workload) -> Step:
    """The update of `torch.optim.SGD` alone."""
    model, (x, y) = workload.model(), workload.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return optimizer.step


def measure_steps(
    workload: Workload, names: list[str], threads: int, seconds: float, quick: bool, say: Say
) -> list[Row]:
    """Every sampler, and the peers, in alternation with plain SGD."""
    torch.set_num_threads(threads)
    whole: dict[str, Step] = {"SGD": plain_sgd(workload)}
    updates: dict[str, Step] = {"SGD": sgd_update(workload)}
    for name in names:
        whole[name], update = engine_step(workload, TIMED[name])
        if name != "BNPSGLD":  # whose update takes the statistics of a new forward pass
            updates[name] = update
        if workload is TINY:
            whole[f"{name}, own loop"] = sampler_step(workload, TIMED[name])
    if not quick:
        whole |= peers.torch_steps(workload)
    per_round = _PER_ROUND.get(workload.key, 1)
    turns = {"warm_up": 2 if per_round > 1 else 1, "least": 7 if per_round > 1 else 3}
    each = compare(updates, "SGD", seconds=seconds / 2, steps_per_round=10, **turns)
    rows = []
    for name, measured in compare(whole, "SGD", seconds=seconds, steps_per_round=per_round, **turns).items():
        row: Row = {"model": workload.key, "method": name, "threads": threads, **measured.as_dict()}
        if name in each:
            row["update"], row["sgd_update"] = each[name].seconds, each[name].baseline
            row["figure"] = round(1 + (row["update"] - row["sgd_update"]) / measured.baseline, 4)
        rows.append(row)
        figure = f"{row['figure']:.3f}, in turns " if "figure" in row else ""
        say(
            f"{workload.label}, {threads} thread{'s' * (threads > 1)}: {name} {figure}{measured.ratio:.2f} × SGD "
            f"[{measured.low:.2f}, {measured.high:.2f}]"
        )
    return rows


def measure_parts(say: Say) -> list[Row]:
    """What the parts of a step of the wide MLP cost, in steps of SGD, by processor time on one thread."""
    posterior, (x, y) = WIDE.posterior(), WIDE.batch()
    params = list(posterior.parameters())
    count = sum(p.numel() for p in params)
    numbers = torch.empty(count)

    def gradient(loss: Callable[..., Any]) -> Step:
        def step() -> None:
            for p in params:
                p.grad = None
            loss(x, y).backward()

        return step

    contenders: dict[str, Step] = {
        "SGD": plain_sgd(WIDE),
        "gradient of the likelihood": gradient(posterior.data_loss),
        "gradient of likelihood and prior, by autograd": gradient(posterior.loss),
        "normal deviates": partial(random.normal, count, seed=0, chain=0, step=0, out=numbers),
        "normal deviates of torch": numbers.normal_,
    }
    contenders["gradient of the likelihood"]()
    for name in ("SGLD", "pSGLD", "SGHMC", "SGNHT", "ATMC"):
        sampler = TIMED[name](params, num_data=WIDE.num_data, seed=0)
        sampler.fuse_prior(dict.fromkeys(params, 1e-4))
        contenders[f"update of {name}, with noise and prior"] = sampler.step
    measured = compare(contenders, "SGD", seconds=10.0, steps_per_round=2)
    rows = [{"part": name, "share": float(f"{row.processor:.3g}")} for name, row in measured.items()]
    say(f"parts of a step of {WIDE.label}: {rows}")
    return rows


def measure_numbers(say: Say) -> list[Row]:
    """Nanoseconds for a normal deviate, against torch's `normal_` in alternation, on one thread."""
    torch.set_num_threads(1)
    rows = []
    for dtype in (torch.float32, torch.float64):
        out = torch.empty(1 << 18, dtype=dtype)
        ours = partial(random.normal, out.numel(), seed=0, chain=0, step=0, out=out)
        measured = compare({"ours": ours, "torch": out.normal_}, "ours", seconds=3.0, steps_per_round=10)["torch"]
        each = measured.baseline / out.numel() * 1e9
        rows.append(
            {"dtype": str(dtype).removeprefix("torch."), "ns": round(each, 3), "faster": round(measured.ratio, 2)}
        )
    say(f"normal deviates: {rows}")
    return rows


def measure_large(say: Say) -> Row:
    """The update of fifty million weights, SGLD's against that of torch's SGD, on two threads."""
    torch.set_num_threads(2)
    params = [nn.Parameter(torch.zeros(5_000, 1_000)) for _ in range(10)]
    for p in params:
        p.grad = torch.zeros_like(p)
    ours = TIMED["SGLD"](params, num_data=1000, seed=0)
    others = copy.deepcopy(params)
    for p in others:
        p.grad = torch.zeros_like(p)
    sgd = torch.optim.SGD(others, lr=1e-6)
    measured = compare({"SGD": sgd.step, "SGLD": ours.step}, "SGD", seconds=8.0, steps_per_round=1)["SGLD"]
    row = {"weights": 50_000_000, **measured.as_dict()}
    say(f"50 million weights: SGLD's update {measured.ratio:.2f} × SGD's ({measured.seconds:.3f} s)")
    return row
