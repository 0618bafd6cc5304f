"""Validation of inputs and options of the networks."""

from torch import Tensor


def check_images(x: Tensor, channels: int, size: int | None = None) -> None:
    """Refuse inputs that are not (batch, channels, height, width); `size` is height and width, None allows any."""
    expected = (channels, size, size) if size else (channels,)
    if x.dim() != 4 or tuple(x.shape[1 : 1 + len(expected)]) != expected:
        side = str(size) if size else "any"
        raise ValueError(
            f"an input of shape {tuple(x.shape)}: this network expects (batch, channels, height, width) = "
            f"(any, {channels}, {side}, {side}). Match in_channels= (and image_size=, if the network has it) to your "
            "images; add a missing channel axis with x.unsqueeze(1)"
        )


def check_positive(**numbers: int) -> None:
    """Refuse options that are not positive."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}={number}: expected a positive integer, for example {name}=10")
