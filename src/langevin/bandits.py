"""Contextual bandits: an agent that acts on what it believes, and learns only from what it did.

Thompson sampling (Thompson 1933): draw weights from the posterior of what has been seen so far, take the action whose
reward they predict to be highest. The weights of a running chain are that draw, so a round is: act, remember, take a
few steps of the sampler. An optimizer instead of a sampler has to explore by chance (ε-greedy). Until it remembers a
whole mini-batch the agent acts at random and does not learn.

The posterior changes with every round, N with it; a metric that adapts goes on adapting. So the chain follows its
target at a distance, which the number of steps a round sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from langevin.core import random
from langevin.core.posterior import Posterior
from langevin.samplers import Sampler


class Bandit(Protocol):
    """Contexts that come in a random order, and rewards."""

    contexts: Tensor  # (contexts, features)
    num_actions: int

    def reward(self, context: int, action: int, generator: torch.Generator) -> float:
        """What an action brings, by chance."""
        ...

    def expected(self, context: int) -> Tensor:
        """The expected reward of every action, (actions,): what an oracle knows and regret is measured by."""
        ...


class MushroomBandit:
    """Eat a mushroom (action 1) or leave it (action 0).

    Leaving brings 0, a safe one +5, a poisonous one −35 or +5, with probability ½ each (Blundell et al. 2015).

    Args:
        features: of the mushrooms, (mushrooms, features).
        poisonous: 1 where it is, (mushrooms,).
    """

    num_actions = 2

    def __init__(self, features: Tensor, poisonous: Tensor) -> None:
        if len(features) != len(poisonous) or len(features) == 0:
            raise ValueError(f"{len(features)} mushrooms and {len(poisonous)} labels: expected as many of both.")
        self.contexts, self._poisonous = features, poisonous.bool()

    def reward(self, context: int, action: int, generator: torch.Generator) -> float:
        """What eating or leaving brings."""
        if action == 0:
            return 0.0
        unlucky = bool(torch.rand((), generator=generator) < 0.5)
        return -35.0 if self._poisonous[context] and unlucky else 5.0

    def expected(self, context: int) -> Tensor:
        """0 and +5, or 0 and −15."""
        return torch.tensor([0.0, -15.0 if self._poisonous[context] else 5.0])


@dataclass(frozen=True)
class Played:
    """What happened, round by round: which context came, what was done, what it brought, what it cost to the best."""

    contexts: Tensor
    actions: Tensor
    rewards: Tensor
    regrets: Tensor  # expected reward of the best action less that of the action taken

    @property
    def cumulative_regret(self) -> Tensor:
        """The sum of all regrets so far."""
        return self.regrets.cumsum(0)


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
    """Play a bandit with an agent that predicts rewards; the posterior's model is trained in place.

    Args:
        bandit: what is played.
        posterior: its model predicts the reward, (batch, 1), of a context with the action appended as one-hot.
        sampler: a sampler class with its options: `partial(lv.SGLD, lr=…)` for Thompson sampling, `partial(lv.SGD,
            lr=…)` with an epsilon for the greedy agent. N is the number of rounds that are remembered.
        rounds: how many.
        steps_per_round: of the sampler.
        batch_size: drawn at random from what is remembered; as many rounds are played at random first.
        buffer_size: how many of the last rounds are remembered.
        epsilon: probability of a random action.
        reward_scale: rewards are divided by this before the model sees them.
        seed: of the contexts, the rewards, the batches and the noise.
        progress: show a progress bar.
    """
    possible = min(rounds, steps_per_round, batch_size) >= 1 and buffer_size >= batch_size
    if not (possible and 0 <= epsilon <= 1 and reward_scale > 0):
        raise ValueError(
            f"play needs rounds, steps_per_round and batch_size of 1 or more, buffer_size ≥ batch_size, "
            f"0 ≤ epsilon ≤ 1 and a positive reward_scale; given {rounds=}, {steps_per_round=}, {batch_size=}, "
            f"{buffer_size=}, {epsilon=}, {reward_scale=}."
        )
    chance = torch.Generator().manual_seed(seed)
    one_hot = torch.eye(bandit.num_actions)
    inputs = torch.zeros(buffer_size, bandit.contexts.shape[1] + bandit.num_actions)
    targets = torch.zeros(buffer_size, 1)
    posterior.num_data = 1
    agent = sampler(list(posterior.trainable_parameters().values()), num_data=1, seed=seed, chain=0)
    agent.bind(posterior, (inputs, targets))
    order = torch.randint(len(bandit.contexts), (rounds,), generator=chance)
    actions, rewards, regrets = [], [], []
    for turn in tqdm(range(rounds), unit="round", disable=not progress, delay=1.0):
        context = int(order[turn])
        options = torch.cat([bandit.contexts[context].expand(bandit.num_actions, -1), one_hot], dim=1)
        with torch.no_grad():
            believed = posterior.model(options).flatten()
        action = int(believed.argmax())
        remembered = min(turn + 1, buffer_size)
        learns = remembered >= batch_size
        if float(torch.rand((), generator=chance)) < (epsilon if learns else 1.0):
            action = int(torch.randint(bandit.num_actions, (), generator=chance))
        reward = bandit.reward(context, action, chance)
        inputs[turn % buffer_size], targets[turn % buffer_size] = options[action], reward / reward_scale
        expected = bandit.expected(context)
        actions.append(action)
        rewards.append(reward)
        regrets.append(float(expected.max() - expected[action]))

        posterior.num_data = remembered
        for group in agent.param_groups:
            group["num_data"] = remembered
        for step in range(steps_per_round if learns else 0):
            number = turn * steps_per_round + step
            rows = random.random_subset(remembered, batch_size, seed=seed, chain=0, step=number)
            agent.zero_grad()
            posterior.loss(inputs[rows], targets[rows]).backward()  # type: ignore[no-untyped-call]
            agent.step()
    return Played(order, torch.tensor(actions), torch.tensor(rewards), torch.tensor(regrets))
