"""Residual networks: ResNet with BatchNorm or filter response normalization, and ResNet++, which has neither.

All share one architecture: a stem, stages of residual blocks, global average pooling, a dense head. They differ in the
*unit* (convolution and normalization, or a weight-normalized convolution) and in the activation:

    basic block   y = act(shortcut(x) + unit₂(act(unit₁(x))))                      3×3, 3×3
    bottleneck    y = act(shortcut(x) + unit₃(act(unit₂(act(unit₁(x))))))          1×1, 3×3, 1×1
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from langevin.core.arguments import validated_init
from langevin.models.activations import Activation
from langevin.models.checks import check_images, check_positive

Unit = Callable[[int, int, int, int], nn.Module]
"""A convolution with its normalization, from (channels in, channels out, kernel size, stride)."""


class FilterResponseNorm(nn.Module):
    """Filter response normalization with its thresholded linear unit: max(γ·x/√(ν² + ε) + β, τ), by channel.

    ν² is the mean of x² over the positions of one example, so examples are independent. Singh & Krishnan (2020),
    "Filter response normalization layer".

    Shapes: (batch, channels, height, width) → the same.
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.tau = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalized."""
        gamma, beta, tau = (p.view(-1, 1, 1) for p in (self.gamma, self.beta, self.tau))
        nu2 = x.square().mean((-2, -1), keepdim=True)
        return torch.maximum(gamma * x * torch.rsqrt(nu2 + self.eps) + beta, tau)


class ConvNorm(nn.Module):
    """A convolution without activation, normalized: `norm="batch"` (then it has no bias) or `norm="frn"`.

    Shapes: (batch, c_in, height, width) → (batch, c_out, height/stride, width/stride).
    """

    def __init__(self, c_in: int, c_out: int, kernel_size: int, stride: int, norm: str) -> None:
        super().__init__()
        batch = norm == "batch"
        self.conv = nn.Conv2d(c_in, c_out, kernel_size, stride, kernel_size // 2, bias=not batch)
        self.norm = nn.BatchNorm2d(c_out) if batch else FilterResponseNorm(c_out)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        if self.conv.bias is not None:
            nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized convolution of x."""
        output: Tensor = self.norm(self.conv(x))
        return output


def weight_normalized(scale: Tensor, direction: Tensor) -> Tensor:
    """Return θ = s·φ/‖φ‖ for each output feature: scale s, (out,); direction φ, (out, …)."""
    norm = direction.flatten(1).square().sum(1).sqrt()
    return direction * (scale / norm).view(-1, *[1] * (direction.dim() - 1))


def _unit_directions(*shape: int) -> nn.Parameter:
    direction = torch.randn(shape)
    return nn.Parameter(direction / direction.flatten(1).norm(dim=1).view(-1, *[1] * (len(shape) - 1)))


class WeightNormConv2d(nn.Module):
    """A convolution with weights s·φ/‖φ‖ per output channel: parameters `scale` (s), `direction` (φ) and `bias`.

    Salimans & Kingma (2016), "Weight normalization", in plain operations, so that `torch.func` and priors by name
    apply to s and φ. φ is initialized uniformly on the sphere and s at 1: the variance 1/fan-in that SELU requires.

    Shapes: (batch, c_in, height, width) → (batch, c_out, height/stride, width/stride).
    """

    def __init__(self, c_in: int, c_out: int, kernel_size: int, stride: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.stride = stride
        self.padding = kernel_size // 2
        self.scale = nn.Parameter(torch.ones(c_out))
        self.direction = _unit_directions(c_out, c_in, kernel_size, kernel_size)
        self.bias = nn.Parameter(torch.zeros(c_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x."""
        return F.conv2d(x, weight_normalized(self.scale, self.direction), self.bias, self.stride, self.padding)


class WeightNormLinear(nn.Module):
    """A dense layer with weights s·φ/‖φ‖ per output: parameters `scale`, `direction` and `bias`.

    Shapes: (batch, in_features) → (batch, out_features).
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(out_features))
        self.direction = _unit_directions(out_features, in_features)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of x."""
        return F.linear(x, weight_normalized(self.scale, self.direction), self.bias)


class IdentityShortcut(nn.Module):
    """He et al.'s shortcut A, without parameters: every `stride`-th position, zeros for the new channels.

    Shapes: (batch, c_in, height, width) → (batch, c_in + new_channels, height/stride, width/stride).
    """

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels = new_channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return x with fewer positions and more channels."""
        return F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class ResidualBlock(nn.Module):
    """act(shortcut(x) + branch(x)), the branch being units with the activation between them.

    Shapes: (batch, c_in, height, width) → (batch, c_out, height/stride, width/stride).
    """

    def __init__(self, units: list[nn.Module], shortcut: nn.Module | None, activation: Activation) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.shortcut = shortcut
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for x."""
        *inner, last = self.units
        h = x
        for unit in inner:
            h = self.activation(unit(h))
        return self.activation(last(h) + (x if self.shortcut is None else self.shortcut(x)))


class _ResidualNetwork(nn.Module, ABC):
    """The common architecture: stem, stages of blocks, global average pooling, head."""

    @abstractmethod
    def __init__(
        self,
        *,
        unit: Unit,
        activation: Activation,
        head: Callable[[int, int], nn.Module],
        in_channels: int,
        num_classes: int,
        width: int,
        repeats: tuple[int, ...],
        bottleneck: bool,
        imagenet_stem: bool,
        shortcut: str = "projection",
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes, width=width)
        self.in_channels = in_channels
        self.activation = activation
        self.imagenet_stem = imagenet_stem
        self.stem = unit(in_channels, width, 7, 2) if imagenet_stem else unit(in_channels, width, 3, 1)
        self.stages = nn.ModuleList()
        channels = width
        for i, blocks in enumerate(repeats):
            inner = width * 2**i
            outer = 4 * inner if bottleneck else inner
            stage = nn.Sequential()
            for j in range(blocks):
                stride = 2 if i > 0 and j == 0 else 1
                if bottleneck:
                    units = [unit(channels, inner, 1, 1), unit(inner, inner, 3, stride), unit(inner, outer, 1, 1)]
                else:
                    units = [unit(channels, outer, 3, stride), unit(outer, outer, 3, 1)]
                path: nn.Module | None = None
                if stride != 1 or channels != outer:
                    if shortcut == "identity":
                        path = IdentityShortcut(outer - channels, stride)
                    else:
                        path = unit(channels, outer, 1, stride)
                stage.append(ResidualBlock(units, path, activation))
                channels = outer
            self.stages.append(stage)
        self.head = head(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (batch, num_classes)."""
        check_images(x, self.in_channels)
        h = self.activation(self.stem(x))
        if self.imagenet_stem:
            h = F.max_pool2d(h, 3, stride=2, padding=1)
        for stage in self.stages:
            h = stage(h)
        logits: Tensor = self.head(h.mean((-2, -1)))
        return logits


def _normalized_unit(norm: str) -> tuple[Unit, Activation]:
    if norm not in ("batch", "frn"):
        raise ValueError(f'norm="{norm}": expected norm="batch" (with ReLU) or norm="frn" (with swish)')
    return (
        lambda c_in, c_out, k, stride: ConvNorm(c_in, c_out, k, stride, norm)
    ), F.relu if norm == "batch" else F.silu


def _blocks_per_stage(depth: int, width: int) -> int:
    if depth < 8 or depth % 6 != 2:
        raise ValueError(
            f"depth={depth}: a residual network for CIFAR has depth 6n + 2: 8, 14, 20, 32, 44, 56, 110, … For example "
            f"depth={max(6 * round((depth - 2) / 6), 6) + 2}, width={width}"
        )
    return (depth - 2) // 6


@validated_init()
class CifarResNet(_ResidualNetwork):
    """ResNet for CIFAR: depth 6n + 2, three stages of n basic blocks, width, 2·width and 4·width channels.

    He, Zhang, Ren & Sun (2016), "Deep residual learning for image recognition", section 4.2: that is
    `shortcut="identity"`, `norm="batch"`, `width=16`. `norm="frn"` is the network that Izmailov et al. (2021), "What
    are Bayesian neural network posteriors really like?", sample: filter response normalization, swish, biases.

    With BatchNorm the likelihood does not factorize over examples, so it defines no posterior; and in training mode
    `torch.func.vmap` does not support it (it updates running statistics in place). Use `norm="frn"` to sample.

    Shapes: (batch, in_channels, height, width), any size, → (batch, num_classes).

    >>> CifarResNet(8, norm="frn")(torch.zeros(3, 3, 32, 32)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        depth: int = 20,
        width: int = 16,
        norm: str = "batch",
        num_classes: int = 10,
        in_channels: int = 3,
        shortcut: str = "projection",
    ) -> None:
        unit, activation = _normalized_unit(norm)
        if shortcut not in ("identity", "projection"):
            raise ValueError(f'shortcut="{shortcut}": expected shortcut="identity" or shortcut="projection"')
        super().__init__(
            unit=unit,
            activation=activation,
            head=nn.Linear,
            in_channels=in_channels,
            num_classes=num_classes,
            width=width,
            repeats=(_blocks_per_stage(depth, width),) * 3,
            bottleneck=False,
            imagenet_stem=False,
            shortcut=shortcut,
        )


@validated_init()
class ResNet50(_ResidualNetwork):
    """ResNet-50 for ImageNet: four stages of 3, 4, 6 and 3 bottleneck blocks; 25,557,032 parameters.

    He, Zhang, Ren & Sun (2016), "Deep residual learning for image recognition", with the stride in the 3×3
    convolution, as in torchvision. The note on BatchNorm of `CifarResNet` applies.

    Shapes: (batch, in_channels, height, width), usually 224×224, → (batch, num_classes).
    """

    def __init__(self, num_classes: int = 1000, norm: str = "batch", in_channels: int = 3, width: int = 64) -> None:
        unit, activation = _normalized_unit(norm)
        super().__init__(
            unit=unit,
            activation=activation,
            head=nn.Linear,
            in_channels=in_channels,
            num_classes=num_classes,
            width=width,
            repeats=(3, 4, 6, 3),
            bottleneck=True,
            imagenet_stem=True,
        )


class _ResNetPP(_ResidualNetwork):
    """Base of both ResNet++: weight-normalized units, SELU, and small scales at the ends of residual branches."""

    @abstractmethod
    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        width: int,
        repeats: tuple[int, ...],
        imagenet: bool,
        bias: bool,
        branch_scale: float,
    ) -> None:
        if not branch_scale > 0:
            raise ValueError(
                f"branch_scale={branch_scale}: expected a small positive number, for example branch_scale=0.1 (at 0 "
                "the directions of those layers have no gradient)"
            )
        super().__init__(
            unit=lambda c_in, c_out, k, stride: WeightNormConv2d(c_in, c_out, k, stride, bias),
            activation=F.selu,
            head=WeightNormLinear,
            in_channels=in_channels,
            num_classes=num_classes,
            width=width,
            repeats=repeats,
            bottleneck=imagenet,
            imagenet_stem=imagenet,
        )
        for block in self.modules():
            if isinstance(block, ResidualBlock):
                last = block.units[-1]
                assert isinstance(last, WeightNormConv2d)
                nn.init.constant_(last.scale, branch_scale)


@validated_init()
class CifarResNetPP(_ResNetPP):
    """ResNet++ for CIFAR: depth 6n + 2, no BatchNorm, SELU, weight normalization, simplified Fixup.

    Heek & Kalchbrenner (2019), "Bayesian inference for large scale image classification", section 4; their network is
    the default, depth 56 and 32 filters. Weights are s·φ/‖φ‖ per output feature, in parameters named `….scale`,
    `….direction` and `….bias`, so that each can have its own prior. The scale of the last layer of each residual
    branch is initialized to `branch_scale` ("a small constant" in the paper). The paper does not state whether its
    convolutions have biases; here they do (`bias=True`).

    Shapes: (batch, in_channels, height, width), any size, → (batch, num_classes).

    >>> CifarResNetPP(8, width=4)(torch.zeros(3, 3, 32, 32)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        depth: int = 56,
        width: int = 32,
        num_classes: int = 10,
        in_channels: int = 3,
        bias: bool = True,
        branch_scale: float = 0.1,
    ) -> None:
        super().__init__(
            in_channels=in_channels,
            num_classes=num_classes,
            width=width,
            repeats=(_blocks_per_stage(depth, width),) * 3,
            imagenet=False,
            bias=bias,
            branch_scale=branch_scale,
        )


@validated_init()
class ResNetPP50(_ResNetPP):
    """ResNet++ for ImageNet: the 50 layers of `ResNet50` with the units of `CifarResNetPP`.

    Heek & Kalchbrenner (2019), "Bayesian inference for large scale image classification", section 4 and figure 1:
    conv 1×1, SELU, conv 3×3, SELU, conv 1×1, + x, SELU.

    Shapes: (batch, in_channels, height, width), usually 224×224, → (batch, num_classes).
    """

    def __init__(
        self,
        num_classes: int = 1000,
        in_channels: int = 3,
        width: int = 64,
        bias: bool = True,
        branch_scale: float = 0.1,
    ) -> None:
        super().__init__(
            in_channels=in_channels,
            num_classes=num_classes,
            width=width,
            repeats=(3, 4, 6, 3),
            imagenet=True,
            bias=bias,
            branch_scale=branch_scale,
        )
