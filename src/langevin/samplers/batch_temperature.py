"""The nominal temperature of `SNGD` as a function of the batch size, and its inverse."""

from __future__ import annotations

import math

from langevin.core.arguments import COUNT, NATURAL, POSITIVE, validated


@validated(lr=POSITIVE, num_data=COUNT, batch_size=COUNT)
def temperature_of(lr: float, num_data: int, batch_size: int) -> float:
    """The nominal temperature of `SNGD`, T = (ε/2)(N/B − 1).

    >>> temperature_of(lr=0.02, num_data=1000, batch_size=10)
    0.99
    """
    if not 1 <= batch_size <= num_data:
        raise ValueError(f"batch_size must lie in 1 … num_data={num_data}; given batch_size={batch_size}.")
    return lr / 2 * (num_data / batch_size - 1)


@validated(temperature=NATURAL, lr=POSITIVE, num_data=COUNT)
def batch_size_for(temperature: float, lr: float, num_data: int) -> int:
    """The batch size for which the nominal temperature is about T: ⌈N/(2T/ε + 1)⌉.

    >>> batch_size_for(temperature=0.99, lr=0.02, num_data=1000)
    10
    """
    highest = temperature_of(lr, num_data, 1)
    if not 0 <= temperature <= highest:
        raise ValueError(
            f"With lr={lr} and num_data={num_data} batches of 1 … {num_data} give temperatures {highest:.3g} … 0; "
            f"given temperature={temperature}. "
            + (f"Take lr={2 * temperature / max(num_data - 1, 1):.3g} or more." if temperature > 0 else "")
        )
    return math.ceil(num_data / (2 * temperature / lr + 1) - 1e-9)
