"""Contextual bandits, played by Thompson sampling or an ε-greedy agent.

Thompson sampling (Thompson 1933): draw weights from the posterior given all rounds so far, and take the action with the
highest predicted reward. The current weights of a running chain are that draw, so a round is: act, store the outcome,
take a few steps of the sampler. An optimizer instead of a sampler explores by random actions (ε-greedy). Until the
replay buffer contains one mini-batch, actions are random and the agent does not learn.

The posterior and N change with every round, and an adaptive preconditioner keeps adapting, so the chain lags behind its
target; `steps_per_round` controls the lag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from langevin.core import random
from langevin.core.arguments import COUNT, POSITIVE, SEED, validated
from langevin.core.posterior import Posterior
from langevin.core.progress import tqdm
from langevin.samplers import Sampler


class Bandit(Protocol):
    """A contextual bandit: contexts and rewards."""

    contexts: Tensor  # (contexts, features)
    num_actions: int

    def reward(self, context: int, action: int, generator: torch.Generator) -> float:
        """A random reward of an action."""
        ...

    def expected(self, context: int) -> Tensor:
        """The expected reward of every action, (actions,), from which regret is computed."""
        ...


class MushroomBandit:
    """Eat a mushroom (action 1) or leave it (action 0).

    The reward is 0 for leaving, +5 for an edible mushroom, and −35 or +5, with probability ½ each, for a poisonous one
    (Blundell et al. 2015).

    Args:
        features: (mushrooms, features).
        poisonous: 1 if poisonous, else 0, (mushrooms,).
    """

    num_actions = 2

    @validated()
    def __init__(self, features: Tensor, poisonous: Tensor) -> None:
        if len(features) != len(poisonous) or len(features) == 0:
            raise ValueError(
                f"{len(features)} mushrooms and {len(poisonous)} labels: give one label for each, and at least one."
            )
        self.contexts, self._poisonous = features, poisonous.bool()

    def reward(self, context: int, action: int, generator: torch.Generator) -> float:
        """A random reward of eating (1) or leaving (0)."""
        if action == 0:
            return 0.0
        unlucky = bool(torch.rand((), generator=generator, device="cpu") < 0.5)
        return -35.0 if self._poisonous[context] and unlucky else 5.0

    def expected(self, context: int) -> Tensor:
        """(0, +5) if edible, (0, −15) if poisonous."""
        return torch.tensor([0.0, -15.0 if self._poisonous[context] else 5.0], device="cpu")


@dataclass(frozen=True)
class Played:
    """The history of a game, one entry per round."""

    contexts: Tensor
    actions: Tensor
    rewards: Tensor
    regrets: Tensor  # expected reward of the best action minus that of the chosen one

    @property
    def cumulative_regret(self) -> Tensor:
        """The sum of regrets up to each round."""
        return self.regrets.cumsum(0)


@validated(rounds=COUNT, steps_per_round=COUNT, batch_size=COUNT, buffer_size=COUNT, seed=SEED, reward_scale=POSITIVE)
def play(
    bandit: Bandit,
    posterior: Posterior,
    sampler: Callable[..., Sampler],
    *,
    rounds: int,
    steps_per_round: int = 1,
    batch_size: int = 64,
    buffer_size: int = 4096,
    epsilon: float = 0.0,
    reward_scale: float = 1.0,
    seed: int = 0,
    progress: bool = True,
) -> Played:
    """Play a bandit with an agent that predicts rewards; the posterior's model is updated in place.

    Args:
        bandit: contexts and rewards.
        posterior: its model predicts the reward, (batch, 1), of a context with the action appended as one-hot.
        sampler: a sampler class with its options: `partial(lv.SGLD, lr=…)` for Thompson sampling, `partial(lv.SGD,
            lr=…)` with an epsilon for the ε-greedy agent. N is the number of rounds in the replay buffer.
        rounds: number of rounds.
        steps_per_round: sampler steps per round.
        batch_size: of mini-batches from the replay buffer; the first batch_size − 1 actions are random.
        buffer_size: size of the replay buffer, which contains the last rounds.
        epsilon: probability of a random action.
        reward_scale: rewards are divided by this before the model sees them.
        seed: random seed of contexts, rewards, mini-batches and noise.
        progress: show a progress bar.
    """
    possible = min(rounds, steps_per_round, batch_size) >= 1 and buffer_size >= batch_size
    if not (possible and 0 <= epsilon <= 1 and reward_scale > 0):
        raise ValueError(
            f"play needs rounds, steps_per_round and batch_size of 1 or more, buffer_size ≥ batch_size, "
            f"0 ≤ epsilon ≤ 1 and a positive reward_scale; given {rounds=}, {steps_per_round=}, {batch_size=}, "
            f"{buffer_size=}, {epsilon=}, {reward_scale=}."
        )
    if lacking := [name for name in ("contexts", "num_actions", "reward", "expected") if not hasattr(bandit, name)]:
        raise ValueError(f"bandit={type(bandit).__name__} has no {lacking[0]}; see lv.bandits.MushroomBandit.")
    generator = torch.Generator().manual_seed(seed)
    one_hot = torch.eye(bandit.num_actions, device="cpu")
    inputs = torch.zeros(buffer_size, bandit.contexts.shape[1] + bandit.num_actions, device="cpu")
    targets = torch.zeros(buffer_size, 1, device="cpu")
    posterior.num_data = 1
    try:
        agent = sampler(list(posterior.trainable_parameters().values()), num_data=1, seed=seed, chain=0)
    except TypeError as error:
        raise ValueError(f"The sampler can't be made: {error}. Write partial(lv.SGLD, lr=1e-2).") from error
    agent.bind(posterior, (inputs, targets))
    order = torch.randint(len(bandit.contexts), (rounds,), generator=generator, device="cpu")
    actions, rewards, regrets = [], [], []
    for turn in tqdm(range(rounds), unit="round", disable=not progress, delay=1.0):
        context = int(order[turn])
        options = torch.cat([bandit.contexts[context].expand(bandit.num_actions, -1), one_hot], dim=1)
        with torch.no_grad():
            predicted = posterior.model(options).flatten()
        action = int(predicted.argmax())
        stored = min(turn + 1, buffer_size)
        learns = stored >= batch_size
        if float(torch.rand((), generator=generator, device="cpu")) < (epsilon if learns else 1.0):
            action = int(torch.randint(bandit.num_actions, (), generator=generator, device="cpu"))
        reward = bandit.reward(context, action, generator)
        inputs[turn % buffer_size], targets[turn % buffer_size] = options[action], reward / reward_scale
        expected = bandit.expected(context)
        actions.append(action)
        rewards.append(reward)
        regrets.append(float(expected.max() - expected[action]))

        posterior.num_data = stored
        for group in agent.param_groups:
            group["num_data"] = stored
        for step in range(steps_per_round if learns else 0):
            number = turn * steps_per_round + step
            rows = random.random_subset(stored, batch_size, seed=seed, chain=0, step=number)
            agent.zero_grad()
            posterior.loss(inputs[rows], targets[rows]).backward()  # type: ignore[no-untyped-call]
            agent.step()
    return Played(order, *(torch.tensor(each, device="cpu") for each in (actions, rewards, regrets)))
