"""A GGUF file becomes a directory of safetensors once; every later start reads that."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from infer.engine.cache_dir import build_once, converted_dir
from infer.engine.errors import ModelError
from infer.engine.gguf_header import GgufHeader, read_gguf_header
from infer.engine.gguf_rules import INDIVIDUAL_DIGITS, check_converted, check_gguf
from infer.engine.panics import is_panic

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_CONVERSION = 1
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
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from infer.engine.transformers_logging import quiet_transformers

    # transformers also reads what lies beside the file; in here there is nothing else.
    with TemporaryDirectory() as alone, quiet_transformers():
        Path(alone, "model.gguf").symlink_to(path.absolute())
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", local_files_only=True)
        _restore_pre_tokenizer(tokenizer, header)
        tokenizer.save_pretrained(target)
        config = AutoConfig.from_pretrained(alone, gguf_file="model.gguf", local_files_only=True)
        check_converted(header, config, str(path))
        # The loader's own bar cannot be switched off. What goes wrong is an exception, not a line on standard error.
        with redirect_stderr(StringIO()):
            model, loading = AutoModelForCausalLM.from_pretrained(
                alone,
                config=config,
                gguf_file="model.gguf",
                dtype=_stored_dtype(header),
                quantization_config=GgufConfig(dequantize=True),
                local_files_only=True,
                output_loading_info=True,
            )
        if missing := sorted(loading["missing_keys"]):
            raise ModelError(f"{path} lacks {len(missing)} tensors of its architecture: {', '.join(missing[:3])}")
        # It describes the file that was read, not the dense weights that are written.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(target)


def _restore_pre_tokenizer(tokenizer: Any, header: GgufHeader) -> None:
    if header.metadata.get("tokenizer.ggml.pre") in INDIVIDUAL_DIGITS:
        from tokenizers import pre_tokenizers

        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


def _stored_dtype(header: GgufHeader) -> torch.dtype:
    """The type of the file's matrices; bfloat16, in which models are trained, for those in quantised blocks."""
    import torch

    matrices = {tensor.type_name for tensor in header.tensors if len(tensor.shape) > 1}
    if matrices <= {"F16"}:
        return torch.float16
    # Of the two, float32 holds both exactly.
    return torch.float32 if matrices <= {"F16", "F32"} else torch.bfloat16


def _num_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())
