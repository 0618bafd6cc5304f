"""What is peculiar about models of Hugging Face: adapters (PEFT), quantized weights, padding.

They are known by what they have, so that neither transformers nor peft is imported here.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from langevin.core.batches import tensor_digest


class LoRALayer(NamedTuple):
    """The factors of the change ΔW = scaling · B A of an adapted layer, by their names in the model."""

    a: str
    b: str
    inputs: int
    rank: int
    scaling: float


def is_adapted(model: nn.Module) -> bool:
    """Whether this is a model with adapters of PEFT, also one that is wrapped."""
    return any(isinstance(getattr(module, "peft_config", None), Mapping) for module in model.modules())


def lora_layers(model: nn.Module) -> Iterator[LoRALayer]:
    """The layers with LoRA factors."""
    for name, module in model.named_modules():
        factors, scaling = getattr(module, "lora_A", None), getattr(module, "scaling", None)
        if not isinstance(factors, nn.ModuleDict) or not isinstance(scaling, Mapping):
            continue
        for adapter in factors:
            place = "{}.lora_{}.{}.weight" if name else "{}lora_{}.{}.weight"
            factor: Any = factors[adapter]
            rank, inputs = len(factor.weight), factor.weight[0].numel()
            a, b = (place.format(name, which, adapter) for which in "AB")
            yield LoRALayer(a, b, inputs, rank, float(scaling[adapter]))


def backbone_digest(tensors: Mapping[str, Tensor]) -> str:
    """Tells the frozen weights of a model from others."""
    return tensor_digest([tensors[name] for name in sorted(tensors)])


def refuse_model(model: nn.Module) -> None:
    """Raise for adapters that do not take part in the forward pass, and for trainable quantized weights."""
    for name, module in model.named_modules():
        if getattr(module, "merged_adapters", None) and hasattr(module, "unmerge"):
            raise ValueError(
                f"The adapter of {name!r} is merged into the weights of the layer, so that its own parameters do "
                f"nothing. Take it out again: model.unmerge_adapter()."
            )
        if getattr(module, "disable_adapters", False) is True and hasattr(module, "enable_adapters"):
            raise ValueError(
                f"The adapter of {name!r} is disabled, so that its parameters do nothing. Write "
                f"model.enable_adapter_layers()."
            )
    for name, parameter in model.named_parameters():
        marked = hasattr(parameter, "quant_state") or hasattr(parameter, "SCB")  # of bitsandbytes, in 4 and 8 bits
        if parameter.requires_grad and (marked or not (parameter.is_floating_point() or parameter.is_complex())):
            raise ValueError(
                f"Parameter {name!r} is quantized ({type(parameter).__name__}), and a sampler can't move it. Freeze "
                f"the base model and sample an adapter in float32: peft.get_peft_model(model, LoraConfig(…))."
            )


def how_to_unfreeze(model: nn.Module) -> str:
    """What to do if a model has no trainable parameter."""
    if is_adapted(model):
        return "An adapter that is loaded is frozen: PeftModel.from_pretrained(…, is_trainable=True)."
    return "Unfreeze some with parameter.requires_grad_(True); after merge_and_unload() there is no adapter any more."


def refuse_padding(model: nn.Module, x: Any) -> None:
    """Raise for a causal model whose inputs are padded on the left and have no positions of their own."""
    mask = x.get("attention_mask") if isinstance(x, Mapping) else None
    if not isinstance(mask, Tensor) or mask.dim() != 2 or "position_ids" in x or not _is_causal(model):
        return
    kept = mask != 0
    if bool((~kept[:, 0] & kept.any(1)).any()):
        raise ValueError(
            "Sequences are padded on the left, where a causal model without position_ids counts its positions: they "
            'would be shifted. Write tokenizer.padding_side = "right", or give position_ids.'
        )


def _is_causal(model: nn.Module) -> bool:
    """Whether this is a decoder of transformers: its kind has a causal language model and no masked one."""
    kinds = {getattr(getattr(module, "config", None), "model_type", None) for module in model.modules()} - {None, ""}
    if not kinds or "transformers" not in sys.modules:
        return False
    from transformers.models.auto import modeling_auto as auto

    causal, masked = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return any(kind in causal and kind not in masked for kind in kinds)


def shared_frozen(model: nn.Module) -> dict[int, Any]:
    """A memo for `copy.deepcopy`: frozen parameters of the copy have the memory of the original ones.

    They are objects of their own, so that moving the copy to another device or precision leaves the original as it is.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            continue
        plain = type(parameter) is nn.Parameter
        alias = nn.Parameter(parameter.detach(), requires_grad=False) if plain else copy.copy(parameter)
        if type(alias) is type(parameter):  # a quantized weight that can't be aliased is copied
            memo[id(parameter)] = alias
    return memo


class Watch:
    """Tells whether frozen parameters that are shared with the user's model have been changed since."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._seen = [(name, tensor, tensor._version) for name, tensor in parameters.items()]

    def __reduce__(self) -> Any:
        return Watch, ({},)  # a copy, or what was pickled, shares nothing

    def check(self) -> None:
        """Raise if one has changed."""
        for name, tensor, version in self._seen:
            if tensor._version != version:
                raise ValueError(
                    f"The frozen parameter {name!r} of the model was changed after sampling; samples share it with the "
                    f"model, so their predictions would be others. Change a copy instead: copy.deepcopy(model)."
                )
