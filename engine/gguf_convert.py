"""A GGUF file becomes a directory of safetensors once, its quantised matrices as they are; later starts read that."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from infer.engine.cache_dir import build_once, converted_dir
from infer.engine.checkpoint_quantization import gguf_config
from infer.engine.errors import ModelError
from infer.engine.gguf_header import GgufHeader, read_gguf_header
from infer.engine.gguf_rules import INDIVIDUAL_DIGITS, check_converted, check_gguf
from infer.engine.panics import is_panic

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_CONVERSION = 2
"""Raised when a conversion writes something else than before, so that old results are not taken for new ones."""


def converted_path(name: str, sha256: str) -> Path:
    """Where the safetensors made from the GGUF file with this digest are, or will be."""
    return converted_dir() / f"{name}-{sha256[:16]}-{_CONVERSION}"


def convert_gguf(path: Path, target: Path, report: Callable[[str], None]) -> Path:
    """Return `target`, the safetensors directory of a GGUF file, after converting it if that was not done yet.

    Raises:
        ModelError: the file is damaged, or holds something that conversion would leave out.
    """

    def build(directory: Path) -> None:
        header = read_gguf_header(path)
        check_gguf(header, str(path))
        report(f"converting {path.name} to safetensors, once")
        try:
            _convert(path, header, directory)
        except ModelError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            # A parser of foreign files fails in any way it likes.
            raise ModelError(
                f"{path} cannot be converted: {shorten(f'{type(error).__name__}: {error}', 300)}"
            ) from error

    if not target.is_dir():
        build_once(target, build)
        report(f"converted {path.name}: {_num_bytes(target) / 1e6:.0f} MB in {target}")
    return target


def _convert(path: Path, header: GgufHeader, target: Path) -> None:
    # Imported here: a start that finds its model converted does not need them this early.
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer

    from infer.engine.gguf_weights import read_gguf_weights
    from infer.engine.transformers_logging import quiet_transformers

    # transformers also reads what lies beside the file; in here there is nothing else.
    with TemporaryDirectory() as alone, quiet_transformers():
        Path(alone, "model.gguf").symlink_to(path.absolute())
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", local_files_only=True)
        _restore_pre_tokenizer(tokenizer, header)
        tokenizer.save_pretrained(target)
        config = AutoConfig.from_pretrained(alone, gguf_file="model.gguf", local_files_only=True)
        check_converted(header, config, str(path))
        dtype = _stored_dtype(header)
        model = _without_memory(config, dtype)
        weights = read_gguf_weights(path, header, config, _shapes(model), dtype)
        save_file(weights.tensors, target / "model.safetensors", metadata={"format": "pt"})
        model.config.architectures = [type(model).__name__]
        if weights.block_types:
            model.config.quantization_config = gguf_config(weights.block_types)
        model.config.save_pretrained(target)
        model.generation_config.save_pretrained(target)


def _without_memory(config: Any, dtype: torch.dtype) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _shapes(model: Any) -> dict[str, torch.Size]:
    """Of its weights, shared ones once."""
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _restore_pre_tokenizer(tokenizer: Any, header: GgufHeader) -> None:
    if header.metadata.get("tokenizer.ggml.pre") in INDIVIDUAL_DIGITS:
        from tokenizers import pre_tokenizers

        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


def _stored_dtype(header: GgufHeader) -> torch.dtype:
    """The type of the file's matrices; bfloat16, in which models are trained, beside those in quantised blocks."""
    import torch

    matrices = {tensor.type_name for tensor in header.tensors if len(tensor.shape) > 1}
    if matrices <= {"F16"}:
        return torch.float16
    # Of the two, float32 holds both exactly.
    return torch.float32 if matrices <= {"F16", "F32"} else torch.bfloat16


def _num_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())
