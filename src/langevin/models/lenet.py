"""LeNet-5."""

from torch import Tensor, nn

from langevin.core.arguments import validated_init
from langevin.models.activations import Activation, activation_named
from langevin.models.checks import check_images, check_positive


@validated_init()
class LeNet5(nn.Module):
    """LeNet-5: two 5×5 convolutions (6 and 16 channels) with pooling, then dense layers of 120, 84 and num_classes.

    LeCun, Bottou, Bengio & Haffner (1998), "Gradient-based learning applied to document recognition", in its
    present form: the second convolution is fully connected to all 6 maps, pooling has no weights and the last layer is
    dense (61,706 parameters). `activation="tanh", pool="average"` is closest to the paper; the default is ReLU and
    max-pooling.

    Shapes: (batch, in_channels, 28, 28), padded to 32 by the first convolution, → (batch, num_classes).

    >>> import torch
    >>> LeNet5()(torch.zeros(3, 1, 28, 28)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 10,
        activation: str | Activation = "relu",
        pool: str = "max",
        image_size: int = 28,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes)
        pools: dict[str, Activation] = {"max": nn.MaxPool2d(2), "average": nn.AvgPool2d(2)}
        if pool not in pools:
            raise ValueError(f'pool="{pool}": expected pool="max" or pool="average"')
        if image_size not in (28, 32):
            raise ValueError(f"image_size={image_size}: LeNet5 takes images of 28×28 or 32×32; use CNN for other sizes")
        self.in_channels = in_channels
        self.image_size = image_size
        self.activation = activation_named(activation)
        self.pool = pools[pool]
        self.conv1 = nn.Conv2d(in_channels, 6, 5, padding=(32 - image_size) // 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.dense1 = nn.Linear(16 * 5 * 5, 120)
        self.dense2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (batch, num_classes)."""
        check_images(x, self.in_channels, self.image_size)
        h = self.pool(self.activation(self.conv1(x)))
        h = self.pool(self.activation(self.conv2(h)))
        h = self.activation(self.dense1(h.flatten(1)))
        h = self.activation(self.dense2(h))
        logits: Tensor = self.head(h)
        return logits
