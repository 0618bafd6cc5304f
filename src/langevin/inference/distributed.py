"""Two axes of processes, chains × data, on PyTorch's own engine (`torch.distributed`).

Processes along `chains` hold chains of their own and never wait for each other. Processes along `data` hold the same
chains: each computes the gradient on its part of the mini-batch, the average moves all of them alike, and the noise is
the same function of (seed, chain, step) everywhere, so that the replicas stay equal. A hash of the weights, compared
now and then, makes sure of it.

`torchrun` tells each process its rank by environment variables; nothing else has to be said.
"""

from __future__ import annotations

import atexit
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from langevin.errors import RunError

T = TypeVar("T")
_PATIENCE = timedelta(days=7)  # chains end at different times; a process that dies is noticed without it


@dataclass(frozen=True)
class Mesh:
    """How many processes there are along each axis.

    >>> Mesh.parse("chains=2,data=4")
    Mesh(chains=2, data=4)
    """

    chains: int = 1
    data: int = 1

    def __post_init__(self) -> None:
        for name, value in (("chains", self.chains), ("data", self.data)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"mesh: {name} must be an integer, 1 or more; given {value!r}. Write chains=2,data=2.")

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.chains * self.data

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """The mesh that "chains=2,data=2" means."""
        try:
            given = {name.strip(): int(number) for name, number in (part.split("=") for part in text.split(","))}
            if not set(given) <= {"chains", "data"}:
                raise ValueError
        except ValueError:
            raise ValueError(f"mesh={text!r} is not of the form chains=2,data=2.") from None
        return cls(**given)


class Replicas:
    """The processes that move the same chains together."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.group, self.rank, self.size = group, rank, size

    def average(self, values: Tensor) -> Tensor:
        """The mean over the replicas, the same on all."""
        values = values.clone()
        dist.all_reduce(values, group=self.group)
        return values / self.size

    def average_gradients(self, params: Sequence[Tensor]) -> None:
        """Average all gradients, in one message."""
        grads = [p.grad for p in params if p.grad is not None]
        mean = self.average(torch.cat([g.flatten() for g in grads]))
        for g, piece in zip(grads, torch.split(mean, [g.numel() for g in grads]), strict=True):
            g.copy_(piece.view_as(g))

    def any(self, wish: bool) -> bool:
        """Whether one of the replicas wishes so; the answer is the same on all."""
        flag = torch.tensor([float(wish)], device="cpu")
        dist.all_reduce(flag, group=self.group)
        return bool(flag.item() > 0)

    def check(self, params: Sequence[Tensor], step: int) -> None:
        """Raise unless the weights are the same, bit for bit, on all replicas."""
        mine = torch.tensor([weights_hash(params)], device="cpu")
        theirs = [torch.zeros_like(mine) for _ in range(self.size)]
        dist.all_gather(theirs, mine, group=self.group)
        hashes = [f"{int(h) % 2**64:016x}" for h in theirs]
        if len(set(hashes)) > 1:
            raise RunError(
                f"The replicas of a chain have drifted apart by step {step}: the hashes of their weights are "
                f"{', '.join(hashes)}. No sample was kept since they were equal; a processor or a memory that errs, or "
                f"a model whose gradient depends on the process, does that. Resume from the last checkpoint."
            )


class Place:
    """Where this process stands in a mesh."""

    def __init__(self, mesh: Mesh, rank: int = 0, replicas: Replicas | None = None) -> None:
        self.mesh, self.rank, self.replicas = mesh, rank, replicas
        self.alone = mesh.size == 1
        self.leads = rank == 0
        self.writes = rank % mesh.data == 0  # one of the replicas of a chain

    def blocks(self, count: int) -> list[list[int]]:
        """Which of so many chains each row of processes has."""
        bounds = [count * i // self.mesh.chains for i in range(self.mesh.chains + 1)]
        return [list(range(a, b)) for a, b in pairwise(bounds)]

    def chains_of(self, count: int) -> list[int]:
        """Those of this process."""
        return self.blocks(count)[self.rank // self.mesh.data]

    def first(self, function: Callable[[], T]) -> T:
        """Call a function in the first process and send its JSON-serializable result, or its error, to all."""
        if self.alone:
            return function()
        result: Any = None
        message = None
        if self.leads:
            try:
                result = function()
            except Exception as error:
                _broadcast_json([None, str(error)])
                raise
        result, message = _broadcast_json([result, message] if self.leads else None)
        if message is not None:
            raise RunError(message)
        return result  # type: ignore[no-any-return]

    def wait_for_all(self) -> None:
        """Wait until every process is here."""
        if not self.alone:
            dist.barrier()

    def device(self, device: torch.device) -> torch.device:
        """The device of that kind which belongs to this process."""
        if self.alone or device.type != "cuda":
            return device
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("cuda", torch.cuda.current_device())


ALONE = Place(Mesh())


def place(mesh: Mesh | str | None, chains: int, device_type: str) -> Place:
    """Where this process stands; without a mesh, as the environment says.

    Under `torchrun` as many processes as divide the chains go along that axis, the rest along `data`, unless
    LANGEVIN_MESH says otherwise. A mesh of one process is this one, whatever the environment says.
    """
    world = dist.get_world_size() if dist.is_initialized() else _launched()
    if mesh is None:
        mesh = os.environ.get("LANGEVIN_MESH") if world > 1 else Mesh()
    if mesh is None:
        along = math.gcd(world, chains)
        mesh = Mesh(along, world // along)
    if isinstance(mesh, str):
        mesh = Mesh.parse(mesh)
    if mesh.size == 1:
        return ALONE
    if mesh.size != world:
        raise ValueError(
            f"A mesh of chains={mesh.chains} × data={mesh.data} takes {mesh.size} processes; there are {world}. Start "
            f"them with torchrun --nproc-per-node {mesh.size}."
        )
    if mesh.chains > chains:
        raise ValueError(
            f"The mesh has places for {mesh.chains} chains, the run has {chains}. Write mesh="
            f"'chains={chains},data={mesh.size // chains}', or sample more chains."
        )
    return _placed(mesh, device_type)


def place_posterior(
    posterior: nn.Module, mesh: Mesh | str | None, chains: int, device: torch.device | str | None
) -> Place:
    """Where this process stands; the posterior is moved to its device."""
    wanted = next(posterior.parameters()).device if device is None else named_device(device)
    found = place(mesh, chains, wanted.type)
    posterior.to(found.device(wanted))
    return found


def named_device(device: torch.device | str) -> torch.device:
    """The device of this name, if there is one."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f'device={device!r} can\'t be used: {reason}. Write device="cpu", or leave it out.') from None
    return found


def is_main_process() -> bool:
    """Whether this process prints for all that were launched with it."""
    return os.environ.get("RANK", "0") == "0"


def _launched() -> int:
    """The number of processes that torchrun, or what acts like it, has launched."""
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return int(os.environ["WORLD_SIZE"])
    return 1


def _broadcast_json(value: Any) -> Any:
    """What the first process gives, in all; as JSON in a tensor, since nothing is ever unpickled."""
    data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device="cpu")
    length = torch.tensor([len(data)], device="cpu")
    dist.broadcast(length, 0)
    if dist.get_rank() != 0:
        data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    dist.broadcast(data, 0)
    return json.loads(bytes(data.tolist()))


@cache
def _placed(mesh: Mesh, device_type: str) -> Place:
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        _join("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
    grid = init_device_mesh(device_type, (mesh.chains, mesh.data), mesh_dim_names=("chains", "data"))
    rank = dist.get_rank()
    replicas = Replicas(grid.get_group("data"), rank % mesh.data, mesh.data) if mesh.data > 1 else None
    return Place(mesh, rank, replicas)


def _join(backend: str) -> None:
    """Begin the process group. What is said in it is kept apart from what was said before torchrun restarted it: the
    addresses of processes that are dead would be found there.
    """
    from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

    store, rank, world = next(rendezvous("env://", timeout=_PATIENCE))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"langevin-{attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_PATIENCE)
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@torch.no_grad()
def weights_hash(params: Sequence[Tensor]) -> int:
    """A 64-bit hash of the weights' bits, Σᵢ wᵢ·bitsᵢ modulo 2⁶⁴ with odd wᵢ, computed where they are."""
    total = torch.zeros((), dtype=torch.int64, device=params[0].device)
    for n, p in enumerate(params):
        bits = p.detach().contiguous().view(-1).view(torch.int32).to(torch.int64)
        places = torch.arange(len(bits), device=bits.device)
        total += (bits * ((places * 0x9E3779B1 + n * 0x85EBCA6B) * 2 + 1)).sum()
    return int(total)
