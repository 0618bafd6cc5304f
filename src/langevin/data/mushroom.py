"""The UCI mushroom data set."""

import csv

import torch
from torch.utils.data import TensorDataset

from langevin.core.arguments import validated
from langevin.data.checks import check_split
from langevin.data.files import fetch


@validated()
def mushroom(split: str = "train") -> TensorDataset:
    """Return the UCI mushrooms: 117 binary features, label 0 (edible) or 1 (poisonous).

    Schlimmer (1987), "Mushroom", UCI: 8,124 rows of 22 categorical variables, one-hot encoded (a missing value, "?",
    is a category). `split="all"` is every row in the original order, for bandits; "train" (6,499) and "test" (1,625)
    are our fixed random split.
    """
    check_split(split, "train", "test", "all")
    with fetch("mushroom/agaricus-lepiota.data").open(newline="", encoding="ascii") as stream:
        rows = [row for row in csv.reader(stream) if row]
    labels = torch.tensor([row[0] == "p" for row in rows], device="cpu").long()
    columns = []
    for column in zip(*(row[1:] for row in rows), strict=True):
        columns += [
            torch.tensor([value == category for value in column], device="cpu") for category in sorted(set(column))
        ]
    features = torch.stack(columns, dim=1).float()
    if split == "all":
        return TensorDataset(features, labels)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0), device="cpu")
    chosen = order[:6_499] if split == "train" else order[6_499:]
    return TensorDataset(features[chosen], labels[chosen])
