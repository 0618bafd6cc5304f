"""Bandits: expected rewards, agents that learn, N as the number of rounds in the replay buffer."""

from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.bandits import MushroomBandit, play

FEATURES = torch.eye(2).repeat(50, 1)  # the first kind is edible, the second poisonous
POISONOUS = torch.tensor([0, 1]).repeat(50)


class Table(nn.Module):
    """One reward for every pair of kind and action."""

    def __init__(self):
        super().__init__()
        self.rewards = nn.Parameter(torch.zeros(2, 2))

    def forward(self, x):
        return torch.einsum("nk,ka,na->n", x[:, :2], self.rewards, x[:, 2:])[:, None]


def agent(num_data=1):
    return lv.Posterior(Table(), lv.likelihoods.Gaussian(1.0), lv.priors.Gaussian(2.0), num_data=num_data)


def test_rewards_have_their_expectations():
    bandit, generator = MushroomBandit(FEATURES, POISONOUS), torch.Generator().manual_seed(0)
    for context, action in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        rewards = torch.tensor([bandit.reward(context, action, generator) for _ in range(4000)])
        error = 20 / 4000**0.5 if (context, action) == (1, 1) else 0
        assert abs(float(rewards.mean() - bandit.expected(context)[action])) <= 4 * error


def test_thompson_sampling_learns_what_to_eat():
    played = play(
        MushroomBandit(FEATURES, POISONOUS),
        agent(),
        partial(lv.SGLD, lr=0.2),
        rounds=400,
        steps_per_round=2,
        batch_size=32,
        reward_scale=5.0,
        progress=False,
    )
    first, last = played.regrets[:100].mean(), played.regrets[-100:].mean()
    assert last < first / 3
    assert torch.equal(played.cumulative_regret[-1], played.regrets.sum())


def test_num_data_is_the_number_of_rounds_in_the_buffer():
    """At most the buffer's size, in the loss and in the noise."""
    posterior, seen = agent(), []

    class Watched(lv.SGLD):
        def step(self, closure=None):
            seen.append((posterior.num_data, self.param_groups[0]["num_data"]))
            return super().step(closure)

    bandit = MushroomBandit(FEATURES, POISONOUS)
    sampler = partial(Watched, lr=1e-3)
    play(bandit, posterior, sampler, rounds=12, batch_size=4, buffer_size=8, reward_scale=20.0, progress=False)
    assert seen == [(n, n) for n in (4, 5, 6, 7, 8, 8, 8, 8, 8)]


def test_a_game_is_determined_by_its_seed_and_epsilon_explores():
    def actions(seed, epsilon):
        sampler = partial(lv.SGD, lr=1e-6)
        options = {"rounds": 300, "batch_size": 8, "epsilon": epsilon, "seed": seed, "progress": False}
        return play(MushroomBandit(FEATURES, POISONOUS), agent(), sampler, **options).actions[8:].double()

    assert torch.equal(actions(1, 0.5), actions(1, 0.5))
    assert not torch.equal(actions(1, 0.5), actions(2, 0.5))
    # with almost no learning the greedy action hardly changes, and half of the actions are uniform
    shares = torch.stack([actions(seed, 0.5).mean() for seed in range(3)])
    assert float(torch.minimum(shares, 1 - shares).mean()) > 0.15


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"batch_size": 0}, {"epsilon": 1.5}, {"reward_scale": 0.0}, {"buffer_size": 3}]
)
def test_bad_input(options):
    given = {"rounds": 10, "batch_size": 4, **options}
    with pytest.raises(ValueError, match="play needs|must be"):
        play(MushroomBandit(FEATURES, POISONOUS), agent(), partial(lv.SGLD, lr=0.1), **given)
    with pytest.raises(ValueError, match="one label for each"):
        MushroomBandit(FEATURES, POISONOUS[:3])
