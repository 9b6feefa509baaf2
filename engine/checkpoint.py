"""A checkpoint's files, read as plain JSON and judged before transformers sees them.

transformers acts on a config: it imports code that `auto_map` names and fetches kernels that an attention
implementation names. Nothing of that kind gets past this file, and no pickle.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FORBIDDEN = re.compile(r"auto_map|_?(attn|experts)_implementation.*|fusion_config|transformers_weights")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICKLE_HINT = (
    "where you trust them, convert them once: python -c "
    "\"from transformers import AutoModelForCausalLM as M; M.from_pretrained('IN').save_pretrained('OUT')\""
)
_MODALITIES = ("vision_config", "audio_config", "speech_config")


def read_model_config(directory: Path) -> dict[str, Any]:
    """Read and judge `config.json` of a model directory, and the tokenizer's, without importing transformers.

    Raises:
        ModelError: it is missing or no JSON, it names code to be run, or the checkpoint is of a kind that is not run.
    """
    config = _read_json(directory / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{directory / 'config.json'} names no model_type: {config.get('model_type')}")
    _refuse_code(config, directory / "config.json")
    if (directory / "tokenizer_config.json").is_file():
        _refuse_code(_read_json(directory / "tokenizer_config.json"), directory / "tokenizer_config.json")
    if (directory / "adapter_config.json").is_file():
        raise ModelError(
            f"{directory} holds an adapter, which is not run", hint="merge it into its model and save the result"
        )
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ModelError(
            f"{directory} is a quantised checkpoint, which is not run yet: {method}",
            hint="pass the unquantised checkpoint, or a .gguf file",
        )
    for modality in _MODALITIES:
        if modality in config:
            raise ModelError(
                f"{config['model_type']} is not a text-only model: its config has a {modality}",
                hint="pass a text-only checkpoint of this family",
            )
    return config


def check_architecture(config: dict[str, Any]) -> None:
    """Refuse what transformers has no causal language model for.

    Raises:
        ModelError: names the model type or architecture.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type = config["model_type"]
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if known is None:
        raise ModelError(
            f"transformers has no causal language model of this type: {model_type}",
            hint="a newer transformers may have it; encoders and encoder-decoders are not run",
        )
    classes = known if isinstance(known, tuple) else (known,)
    architectures = config.get("architectures") or []
    for architecture in architectures if isinstance(architectures, list) else [architectures]:
        if architecture not in classes:
            raise ModelError(
                f"the checkpoint is a {architecture}, not a causal language model",
                hint=f"the architecture of this type that is run: {', '.join(classes)}",
            )


def safetensors_files(directory: Path) -> list[Path]:
    """The weights of a model directory.

    Raises:
        ModelError: there are none, or only pickles.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        for path in sorted(directory.iterdir()):
            refuse_pickle(path)
        raise ModelError(
            f"there are no .safetensors files in {directory}", hint="a .gguf file is passed by its own name"
        )
    return files


def refuse_pickle(path: Path) -> None:
    """Refuse a file whose name says that reading it runs what is in it.

    Raises:
        ModelError: with how to convert it.
    """
    if path.suffix in _PICKLES:
        raise ModelError(f"pickled weights are not loaded, for they can run code: {path}", hint=_PICKLE_HINT)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"there is no {path.name} in {path.parent}", hint="pass the model's directory") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is no JSON object but a {type(content).__name__}")
    return content


def _refuse_code(config: dict[str, Any], path: Path) -> None:
    for key in _keys(config):
        if _FORBIDDEN.fullmatch(key):
            raise ModelError(
                f"{path} names code to be loaded with the model, which is never done: {key!r}",
                hint=f"where transformers itself knows the architecture, delete {key!r} from a local copy",
            )


def _keys(value: Any) -> Iterator[str]:
    """Every key at every depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)
