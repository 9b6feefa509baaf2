"""Which files of a model directory are read, and that each is what its name says and lies where it seems to lie.

Weights are safetensors. A pickle runs code when it is read, whatever it is called, and whoever names it: an index of
shards, too.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from infer.engine.errors import ModelError
from infer.engine.plain_json import read_json_object

if TYPE_CHECKING:
    from collections.abc import Iterator

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
PICKLE_HINT = (
    "where you trust them, convert them once: python -c "
    "\"from transformers import AutoModelForCausalLM as M; M.from_pretrained('IN').save_pretrained('OUT')\""
)
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SAFETENSORS = ".safetensors"
_READ_SUFFIXES = (".json", ".jinja", ".txt", ".model", _SAFETENSORS)
_TEMPLATES = "additional_chat_templates"
_DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")


def check_model_files(directory: Path) -> None:
    """Whether what is read of a model directory are files of that directory.

    A link in a directory from somewhere else can lead to any file of this machine's user, who would send it to the
    model as a part of each prompt. Within the directory it may lead anywhere, and within the hub's cache, which is made
    of links. Weights may be a link: nothing else passes for them.

    Raises:
        ModelError: names the file.
    """
    roots = None
    for path in _read_files(directory):
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is no regular file")
        if path.suffix == _SAFETENSORS or not path.is_symlink():
            continue
        roots = roots or _roots(directory)
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in roots):
            raise ModelError(
                f"{path} is a link out of the model's directory: {target}", hint="where you trust it, copy the file"
            )


def weight_files(directory: Path) -> list[Path]:
    """The weights of a model directory: the one file, or those that the index of shards names.

    Raises:
        ModelError: there are none, or only pickles, or the index names something else than files beside it.
    """
    for path in sorted(directory.glob(f"*{_SAFETENSORS}")):
        if _DISTRIBUTED.fullmatch(path.name):
            raise ModelError(
                f"a distributed checkpoint is not run: {path}", hint="save it as a whole, with save_pretrained"
            )
    if (directory / _WEIGHTS).is_file():
        return [directory / _WEIGHTS]
    if (directory / _INDEX).is_file():
        return _shards(directory)
    for path in sorted(directory.iterdir()):
        refuse_pickle(path)
    raise ModelError(f"there is no {_WEIGHTS} in {directory}", hint="a .gguf file is passed by its own name")


def refuse_pickle(path: Path) -> None:
    """Refuse a file whose name says that reading it runs what is in it.

    Raises:
        ModelError: with how to convert it.
    """
    if path.suffix.lower() in _PICKLES:
        raise ModelError(f"pickled weights are not loaded, for they can run code: {path}", hint=PICKLE_HINT)


def _shards(directory: Path) -> list[Path]:
    index = directory / _INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map of tensors and their files")
    names = weight_map.values()
    for name in names:
        if not isinstance(name, str) or not name or Path(name).name != name or "\0" in name:
            raise ModelError(f"{index} names what is no file beside it: {name!r:.80}")
        refuse_pickle(directory / name)
        if not name.endswith(_SAFETENSORS):
            raise ModelError(f"{index} names what is no {_SAFETENSORS} file: {name!r:.80}")
        if not (directory / name).is_file():
            raise ModelError(f"{index} names a file that is not there: {name}", hint="download the model again")
    return [directory / name for name in sorted(set(names))]


def _read_files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.suffix in _READ_SUFFIXES and not path.is_dir():
            yield path
    yield from sorted((directory / _TEMPLATES).glob("*.jinja"))


def _roots(directory: Path) -> list[Path]:
    # Imported here: most models have no links.
    from huggingface_hub.constants import HF_HUB_CACHE

    own, hub = directory.resolve(), Path(HF_HUB_CACHE).resolve()
    return [own, hub] if own.is_relative_to(hub) else [own]
