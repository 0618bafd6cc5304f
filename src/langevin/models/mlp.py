"""The multilayer perceptron."""

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from langevin.core.arguments import validated_init
from langevin.models.activations import Activation, activation_named


@validated_init()
class MLP(nn.Module):
    """A multilayer perceptron: dense layers with an activation between them, none after the last.

    `widths` are the numbers of hidden units; `widths=()` is a linear model. `activation` is a name ("relu", "tanh",
    "silu", …) or a function of a tensor. The network of Smith, Duckworth, Le et al. (2018), "Stochastic natural
    gradient descent draws posterior samples in function space", is `MLP(10, 10, widths=(40,))`.

    Shapes: (batch, …) with in_features values per example, flattened → (batch, out_features).

    >>> import torch
    >>> MLP(64, 10, widths=(50, 50))(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        widths: Sequence[int] = (100,),
        activation: str | Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(widths, int):
            raise ValueError(
                f"widths is the number {widths}; expected one number for each hidden layer: widths=({widths},)"
            )
        sizes = [in_features, *widths, out_features]
        if min(sizes) < 1:
            raise ValueError(
                f"in_features={in_features}, out_features={out_features}, widths={tuple(widths)}: expected positive "
                "integers, for example MLP(784, 10, widths=(100, 100))"
            )
        self.in_features = in_features
        self.activation = activation_named(activation)
        self.layers = nn.ModuleList(nn.Linear(m, n, bias=bias) for m, n in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (batch, out_features), of inputs x, (batch, …)."""
        h = x.flatten(1)
        if h.shape[1] != self.in_features:
            raise ValueError(
                f"an input of shape {tuple(x.shape)} has {h.shape[1]} values per example; this network expects "
                f"{self.in_features}. For this input: MLP(in_features={h.shape[1]}, …)"
            )
        *hidden, last = self.layers
        for layer in hidden:
            h = self.activation(layer(h))
        output: Tensor = last(h)
        return output
