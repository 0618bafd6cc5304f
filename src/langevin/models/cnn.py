"""The two convolutional networks of the papers on MNIST."""

from torch import Tensor, nn
from torch.nn import functional as F

from langevin.core.arguments import validated_init
from langevin.models.checks import check_images, check_positive


@validated_init()
class CNN(nn.Module):
    """Two convolutions with ReLU and max-pooling, 32 and 64 channels, then a dense layer of 1,024 units.

    Palacci & Hess (2018), "Scalable Natural Gradient Langevin Dynamics in Practice". The paper gives no kernel size;
    the default is 5×5 with zero padding, as in the TensorFlow tutorial of the time (3,274,634 parameters on MNIST).
    `channels` and `width` set the size.

    Shapes: (batch, in_channels, image_size, image_size) → (batch, num_classes).

    >>> import torch
    >>> CNN(image_size=8)(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 10,
        image_size: int = 28,
        kernel_size: int = 5,
        channels: tuple[int, int] = (32, 64),
        width: int = 1024,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes, width=width)
        if len(channels) != 2 or min(channels) < 1:
            raise ValueError(f"channels={channels}: expected two positive integers, for example CNN(channels=(32, 64))")
        first, second = channels
        if image_size < 4 or kernel_size % 2 == 0:
            raise ValueError(
                f"image_size={image_size}, kernel_size={kernel_size}: expected images of at least 4 pixels a side and "
                "an odd kernel, for example CNN(image_size=28, kernel_size=5)"
            )
        self.in_channels = in_channels
        self.image_size = image_size
        self.conv1 = nn.Conv2d(in_channels, first, kernel_size, padding=kernel_size // 2)
        self.conv2 = nn.Conv2d(first, second, kernel_size, padding=kernel_size // 2)
        self.dense = nn.Linear(second * (image_size // 4) ** 2, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (batch, num_classes)."""
        check_images(x, self.in_channels, self.image_size)
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        logits: Tensor = self.head(F.relu(self.dense(h.flatten(1))))
        return logits


@validated_init()
class StridedCNN(nn.Module):
    """Three 3×3 convolutions of 10 channels, stride 2, with ReLU, then a dense layer; no biases.

    Smith, Duckworth, Le et al. (2018), "Stochastic natural gradient descent draws posterior samples in function
    space", section 6.4: 1,890 + 1,600 = 3,490 parameters on MNIST, few enough for the full Fisher matrix. Zero padding
    of 1 gives the 4×4 positions that the paper's 1,600 implies.

    Shapes: (batch, in_channels, image_size, image_size) → (batch, num_classes).

    >>> import torch
    >>> StridedCNN(image_size=8)(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """

    def __init__(self, in_channels: int = 1, num_classes: int = 10, image_size: int = 28, channels: int = 10) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes, image_size=image_size, channels=channels)
        self.in_channels = in_channels
        self.image_size = image_size
        sizes = [in_channels, channels, channels, channels]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(sizes[i], sizes[i + 1], 3, stride=2, padding=1, bias=False) for i in range(3)
        )
        side = -(-image_size // 8)
        self.head = nn.Linear(channels * side**2, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (batch, num_classes)."""
        check_images(x, self.in_channels, self.image_size)
        h = x
        for convolution in self.convolutions:
            h = F.relu(convolution(h))
        logits: Tensor = self.head(h.flatten(1))
        return logits
