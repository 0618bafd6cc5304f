"""Logistic regression."""

from torch import Tensor, nn

from langevin.core.arguments import validated_init


@validated_init()
class LogisticRegression(nn.Module):
    """Logistic regression: one dense layer, whose output is the logits.

    With `out_features=1` the output is one logit per example, shape (batch,), for a Bernoulli likelihood; otherwise it
    is (batch, out_features), for a categorical one. Smith, Duckworth, Le et al. (2018), "Stochastic natural
    gradient descent draws posterior samples in function space", use 64 inputs, one output and no bias:
    `LogisticRegression(64, bias=False)`.

    Shapes: (batch, …) with in_features values per example, flattened → (batch,) or (batch, out_features).

    >>> import torch
    >>> LogisticRegression(64, bias=False)(torch.zeros(3, 64)).shape
    torch.Size([3])
    """

    def __init__(self, in_features: int, out_features: int = 1, bias: bool = True) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"in_features={in_features}, out_features={out_features}: expected positive integers, for example "
                "LogisticRegression(64) for two classes, LogisticRegression(64, 10) for ten"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.linear = nn.Linear(in_features, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (batch,) or (batch, out_features), of inputs x, (batch, …)."""
        h = x.flatten(1)
        if h.shape[1] != self.in_features:
            raise ValueError(
                f"an input of shape {tuple(x.shape)} has {h.shape[1]} values per example; this model expects "
                f"{self.in_features}. For this input: LogisticRegression(in_features={h.shape[1]}, …)"
            )
        logits: Tensor = self.linear(h)
        return logits.squeeze(1) if self.out_features == 1 else logits
