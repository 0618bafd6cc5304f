"""VGG without BatchNorm."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from langevin.core.arguments import validated_init
from langevin.models.checks import check_images, check_positive

# The number of 3×3 convolutions in each of the five stages, by depth; each stage ends with 2×2 max-pooling.
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
CHANNELS = (1, 2, 4, 8, 8)  # of each stage, relative to the first


@validated_init()
class VGG(nn.Module):
    """VGG-11, 13, 16 or 19 with ReLU and without BatchNorm or dropout.

    Simonyan & Zisserman (2015), "Very deep convolutional networks for large-scale image recognition". The default has
    one dense layer after the convolutions, as is usual on CIFAR-10; the paper's network on ImageNet is
    `VGG(16, num_classes=1000, image_size=224, widths=(4096, 4096))`. Weights are initialized as in He et al.
    (2015): without normalization layers, smaller ones make the signal vanish. `channels` is for the first stage.

    Shapes: (batch, in_channels, image_size, image_size), image_size a multiple of 32, → (batch, num_classes).

    >>> import torch
    >>> VGG(11)(torch.zeros(3, 3, 32, 32)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        depth: int = 16,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        widths: Sequence[int] = (),
        channels: int = 64,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes, channels=channels)
        if depth not in STAGES:
            raise ValueError(f"depth={depth}: expected one of {', '.join(map(str, STAGES))}, for example VGG(depth=16)")
        if image_size < 32 or image_size % 32:
            raise ValueError(f"image_size={image_size}: expected a multiple of 32, for example VGG(image_size=32)")
        self.in_channels = in_channels
        self.image_size = image_size
        self.stages = nn.ModuleList()
        before = in_channels
        for repeats, factor in zip(STAGES[depth], CHANNELS, strict=True):
            stage = nn.Sequential()
            for _ in range(repeats):
                stage.extend([nn.Conv2d(before, factor * channels, 3, padding=1), nn.ReLU()])
                before = factor * channels
            self.stages.append(stage.append(nn.MaxPool2d(2)))
        self.dense = nn.ModuleList()
        features = before * (image_size // 32) ** 2
        for width in widths:
            self.dense.append(nn.Linear(features, width))
            features = width
        self.head = nn.Linear(features, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module is not self.head:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (batch, num_classes)."""
        check_images(x, self.in_channels, self.image_size)
        h = x
        for stage in self.stages:
            h = stage(h)
        h = h.flatten(1)
        for dense in self.dense:
            h = F.relu(dense(h))
        logits: Tensor = self.head(h)
        return logits
