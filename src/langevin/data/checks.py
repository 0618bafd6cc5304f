"""Validation of options of the data sets."""


def check_split(split: str, *allowed: str) -> None:
    """Refuse a split that is not allowed; by default "train" and "test" are allowed."""
    choices = " or ".join(f'split="{name}"' for name in allowed or ("train", "test"))
    if f'split="{split}"' not in choices.split(" or "):
        raise ValueError(f'split="{split}": expected {choices}')


def check_size(size: int | None, available: int) -> None:
    """Refuse a number of examples outside 1 … available."""
    if size is not None and not 1 <= size <= available:
        raise ValueError(f"size={size}: expected 1 to {available} examples, or size=None for all {available}")
