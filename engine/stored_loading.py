"""transformers' loader made to fill the modules of `stored_weights.py`: as one more quantisation method of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from infer.engine.stored_layers import replace_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from infer.engine.checkpoint_quantization import CheckpointQuantization
    from infer.engine.safetensors_header import StoredTensor

_METHOD = "infer-stored"


def quantization_config(quantization: CheckpointQuantization, tensors: Sequence[StoredTensor]) -> dict[str, Any]:
    """What a transformers config says as `quantization_config`, so that its loader replaces the quantised layers."""
    _register()
    return {"quant_method": _METHOD, "quantization": quantization, "tensors": tuple(tensors)}


def forget_quantization(model: Any) -> None:
    """Take what the loader noted off a loaded model: its layers are ordinary ones."""
    model.hf_quantizer.remove_quantization_config(model)


@cache
def _register() -> None:
    # Imported here: only quantised checkpoints need it.
    from transformers.quantizers import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    @register_quantization_config(_METHOD)
    class _Config(QuantizationConfigMixin):  # type: ignore[misc]
        def __init__(
            self, quantization: CheckpointQuantization, tensors: tuple[StoredTensor, ...], **_: object
        ) -> None:
            self.quant_method = _METHOD
            self.quantization = quantization
            self.tensors = tensors

    @register_quantizer(_METHOD)
    class _Quantizer(HfQuantizer):  # type: ignore[misc]
        def _process_model_before_weight_loading(self, model: torch.nn.Module, **_: object) -> None:
            replace_layers(model, self.quantization_config.quantization, self.quantization_config.tensors)

        def is_serializable(self) -> bool:
            return False

        @property
        def is_trainable(self) -> bool:
            return False
