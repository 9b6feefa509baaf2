"""A checkpoint's files, read as plain JSON and judged before transformers sees them.

transformers acts on a config: it imports code that `auto_map` names, fetches kernels that an attention implementation
names, reads other files that `configuration_files` names, and gives its attributes other names by `attribute_map`.
Nothing of that kind gets past this file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infer.engine.checkpoint_quantization import read_quantization
from infer.engine.errors import ModelError
from infer.engine.model_files import check_model_files
from infer.engine.plain_json import read_json_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from infer.engine.checkpoint_quantization import CheckpointQuantization
    from infer.engine.safetensors_header import StoredTensor

_FORBIDDEN = re.compile(
    r"auto_map|custom_pipelines|_?(attn|experts)_implementation.*|fusion_config|transformers_weights|attribute_map"
    r"|configuration_files|gguf_file|tokenizer_object|init_inputs|sub_configs.*|__.*"
)
"""Names of code, of other files to be read, of arguments, and of what Python itself keeps in an object."""
_ALLOWED = re.compile(r"__type|__float__")
"""How older tokenizers mark a special token."""
_SPECIAL_TOKENS = "special_tokens_map.json"
_JUDGED = ("tokenizer_config.json", "generation_config.json", _SPECIAL_TOKENS)
_FILE_LISTS = ("fast_tokenizer_files",)
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_TALL = ("vocab_size", "intermediate_size")
"""Of matrices that every architecture has, as wide as the model."""
_MODALITIES = ("vision_config", "audio_config", "speech_config")


def read_model_config(directory: Path) -> dict[str, Any]:
    """Read and judge `config.json` of a model directory, and the tokenizer's, without importing transformers.

    Raises:
        ModelError: it is missing or no JSON, it names code to be run, or the checkpoint is of a kind that is not run.
    """
    path = directory / "config.json"
    try:
        config = read_json_object(path)
    except FileNotFoundError as error:
        raise ModelError(f"there is no {path.name} in {directory}", hint="pass the model's directory") from error
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} names no model_type: {config.get('model_type')}")
    check_model_files(directory)
    _refuse_code(config, path)
    for other in (directory / name for name in _JUDGED):
        if other.is_file():
            _refuse_code(read_json_object(other), other)
    if (directory / "adapter_config.json").is_file():
        raise ModelError(
            f"{directory} holds an adapter, which is not run", hint="merge it into its model and save the result"
        )
    read_quantization(config, str(directory))
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
    _refuse_replaced_methods(config)
    classes = known if isinstance(known, tuple) else (known,)
    architectures = config.get("architectures") or []
    for architecture in architectures if isinstance(architectures, list) else [architectures]:
        if architecture not in classes:
            raise ModelError(
                f"the checkpoint is a {architecture}, not a causal language model",
                hint=f"the architecture of this type that is run: {', '.join(classes)}",
            )


def check_tokenizer_class(directory: Path, config: dict[str, Any]) -> None:
    """Refuse a `tokenizer_class` that is none: transformers takes whatever it exports itself under that name, and has
    it read the directory, a model class with its pickles for one.

    Raises:
        ModelError: names it.
    """
    from transformers import PreTrainedTokenizerBase
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    path = directory / "tokenizer_config.json"
    for source, settings in ((path, read_json_object(path) if path.is_file() else {}), ("config.json", config)):
        name = settings.get("tokenizer_class")
        if name is None:
            continue
        found = tokenizer_class_from_name(name) if isinstance(name, str) else object
        # Of a name that it does not know transformers makes a plain tokenizer.
        if found is not None and not (isinstance(found, type) and issubclass(found, PreTrainedTokenizerBase)):
            raise ModelError(f"{source} names as tokenizer_class what is no tokenizer: {name!r:.80}")


def check_sizes(
    config: dict[str, Any], tensors: Sequence[StoredTensor], quantization: CheckpointQuantization | None = None
) -> None:
    """Refuse a config that asks for more than its weights are: transformers would build it before it looks.

    Raises:
        ModelError: with both figures.
    """
    num_layers = max((_whole(config, name) for name in _LAYERS), default=0)
    if num_layers > len(tensors):
        raise ModelError(f"config.json asks for {num_layers:,} layers, the weights are {len(tensors):,} tensors")
    num_elements = sum(
        tensor.num_elements if quantization is None else quantization.num_weights(tensor) for tensor in tensors
    )
    width = max(_whole(config, name) for name in _WIDTHS)
    for name in _TALL:
        if (size := _whole(config, name)) * width > num_elements:
            asked = f"{name} {size:,} by {width:,}"
            raise ModelError(f"config.json asks for {asked}, the weights are {num_elements:,} numbers")


def _whole(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    return value if type(value) is int else 0


def _refuse_code(content: dict[str, Any], path: Path) -> None:
    for key, value in _items(content):
        # Some older tokenizers were saved with an empty list of arguments.
        if _FORBIDDEN.fullmatch(key) and not _ALLOWED.fullmatch(key) and (key, value) != ("init_inputs", []):
            raise ModelError(
                f"{path} names code to be loaded with the model, which is never done: {key!r:.80}",
                hint=f"where transformers itself knows the architecture, delete {key!r:.80} from a local copy",
            )
        if key in _FILE_LISTS or (path.name == _SPECIAL_TOKENS and key.endswith("_file")):
            for name in value if isinstance(value, list) else [value]:
                if not isinstance(name, str) or Path(name).name != name:
                    raise ModelError(f"{path} names what is no file beside it: {name!r:.80}")


def _refuse_replaced_methods(config: dict[str, Any]) -> None:
    """A config becomes an object whose attributes are the file's keys: its methods are not to be given away."""
    from transformers import CONFIG_MAPPING

    for key in config:
        if callable(getattr(CONFIG_MAPPING[config["model_type"]], key, None)):
            raise ModelError(f"config.json has a key that is the name of a method: {key!r:.80}")


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key at every depth, with its value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _items(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _items(inner)
