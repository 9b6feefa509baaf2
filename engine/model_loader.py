"""Build the network from a directory of safetensors: transformers' own classes, our attention, ready to be run."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from infer.engine.checkpoint import check_architecture, check_sizes, check_tokenizer_class, read_model_config
from infer.engine.checkpoint_quantization import read_quantization
from infer.engine.errors import ModelError
from infer.engine.model_dtype import dtype_name, select_dtype, stored_dtype
from infer.engine.model_files import weight_files
from infer.engine.model_source import resolve_model
from infer.engine.panics import is_panic
from infer.engine.safetensors_header import read_safetensors_header
from infer.engine.stored_loading import forget_quantization, quantization_config
from infer.engine.stored_weights import make_ready
from infer.engine.transformers_logging import quiet_transformers
from infer.kernels.backend import select_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.checkpoint_quantization import CheckpointQuantization
    from infer.engine.config import DType, Quantization
    from infer.kernels.backend import Backend


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network in evaluation mode, without gradients, on its device, and what belongs to it."""

    name: str
    model: torch.nn.Module
    """A transformers causal language model."""
    config: Any
    """transformers' config of it."""
    generation_config: Any
    """transformers' generation config: the file's, else derived from `config`."""
    tokenizer: Any
    """transformers' tokenizer."""
    eos_token_ids: frozenset[int]
    """Every id that ends a text: of the generation config, the config and the tokenizer."""
    dtype: torch.dtype
    num_bytes: int
    """Of the weights in memory, tied ones once."""


def load_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: DType = "auto",
    quantization: Quantization = "auto",
    device: torch.device,
    attn_implementation: str,
    report: Callable[[str], None],
    on_weights: Callable[[int], None] = lambda num_bytes: None,
) -> LoadedModel:
    """Find the model that `name` stands for, fetched and converted where needed, and load it.

    Args:
        quantization: `auto` runs weights as the checkpoint has them, where that is faster or smaller; else they become
            numbers.
        attn_implementation: the name under which our attention is registered with transformers.
        report: told in one line each what takes long, and what is not as the checkpoint has it.
        on_weights: told how many bytes of weights there are, once they are found to be what they seem.

    Raises:
        ModelError: there is no such model, or the checkpoint is refused, incomplete or damaged.
    """
    directory = resolve_model(name, revision, report)
    raw_config = read_model_config(directory)
    tensors = [tensor for path in weight_files(directory) for tensor in read_safetensors_header(path)]
    check_architecture(raw_config)
    check_tokenizer_class(directory, raw_config)
    stored_form = read_quantization(raw_config, str(directory))
    check_sizes(raw_config, tensors, stored_form)
    stored = stored_dtype(raw_config, tensors)
    chosen = select_dtype(dtype, stored, device)
    if dtype == "auto" and chosen != stored:
        report(f"{name} runs in {dtype_name(chosen)}: its own {dtype_name(stored)} is not fast on this {device.type}")
    on_weights(sum(path.stat().st_size for path in weight_files(directory)))
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            if stored_form is not None:
                config.quantization_config = quantization_config(stored_form, tensors)
            model, loading = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=chosen,
                attn_implementation=attn_implementation,
                # Without a device map the weights stay where the files were read: on the CPU.
                device_map=None if device.type == "cpu" else device,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (MemoryError, torch.OutOfMemoryError, ModelError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        # A foreign checkpoint makes transformers fail in any way it likes.
        raise ModelError(f"{name} cannot be loaded: {_reason(error)}") from error
    # transformers fills them with random numbers.
    if missing := sorted(loading["missing_keys"]):
        raise ModelError(f"{name} lacks {len(missing)} of its weights: {_some(missing)}")
    if unused := sorted(loading["unexpected_keys"]):
        report(f"{name} has {len(unused)} weights that its config.json has no place for: {_some(unused)}")
    if stored_form is not None:
        forget_quantization(model)
        backend = _kernels(quantization, stored_form, device, chosen)
        num_kept = make_ready(model, backend)
        report(f"{name} has {stored_form.describe()} weights, {'run as they are' if num_kept else 'dequantised'}")
    return LoadedModel(
        name=name,
        model=model.eval().requires_grad_(False),
        config=model.config,
        generation_config=model.generation_config,
        tokenizer=tokenizer,
        eos_token_ids=_eos_token_ids(model.generation_config, model.config, tokenizer),
        dtype=chosen,
        num_bytes=sum(parameter.nbytes for parameter in model.parameters()),
    )


def _kernels(
    quantization: Quantization, stored_form: CheckpointQuantization, device: torch.device, dtype: torch.dtype
) -> Backend | None:
    """Those that multiply with weights as they are stored; None where numbers are faster, or asked for."""
    if quantization != "auto":
        return None
    backend = select_backend(device, dtype, head_dim=64, block_size=16)
    return backend if backend.name == "cpu" or stored_form.has_int8_tokens else None


def max_exact_model_len(config: Any) -> int | None:
    """How long sequences may become before what one computes depends on the others; None where it never does.

    transformers picks the frequencies of the rotary types `dynamic` and `longrope` by the greatest position of a
    forward pass, for all of it. Up to the original length nothing changes yet.
    """
    rope_parameters = getattr(config, "rope_parameters", None) or {}
    # A model whose layers differ has one set for each type of layer.
    sets = [rope_parameters] if "rope_type" in rope_parameters else rope_parameters.values()
    limits: list[int] = []
    for parameters in sets:
        rope_type = parameters["rope_type"] if parameters else "default"
        if rope_type == "dynamic":
            limits.append(config.max_position_embeddings)
        elif rope_type == "longrope":
            limits.append(parameters["original_max_position_embeddings"])
    return min(limits, default=None)


def _eos_token_ids(*sources: Any) -> frozenset[int]:
    ids: set[int] = set()
    for source in sources:
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            ids.update(eos if isinstance(eos, list | tuple) else [eos])
    return frozenset(ids)


def _reason(error: BaseException) -> str:
    if "ignore_mismatched_sizes" in str(error):
        return "its weights do not have the shapes that its config.json asks for"
    return shorten(f"{type(error).__name__}: {error}", 300)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
