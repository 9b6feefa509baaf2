"""Fetch a checkpoint from the Hugging Face hub: safetensors and what belongs to them, never a pickle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from infer.engine.checkpoint import read_model_config
from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

_ALLOWED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
_NESTED = "*/*"
"""Other formats and originals live in sub-folders; the checkpoint itself is at the top."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(name: str) -> bool:
    """Whether `name` is written like `organisation/model`, or like an old id of one word."""
    return _HUB_ID.fullmatch(name) is not None


def fetch_from_hub(hub_id: str, revision: str | None, report: Callable[[str], None]) -> Path:
    """Return the snapshot's directory in the hub's own cache. One that is complete there needs no network.

    Raises:
        ModelError: no such model or revision, no access to it, no network, or a config that is refused.
    """
    # Imported here: only models from the hub need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    allowed, ignored = list(_ALLOWED), [_NESTED]
    try:
        # The config alone comes first: what it has refused is not worth gigabytes.
        read_model_config(Path(snapshot_download(hub_id, revision=revision, allow_patterns=["config.json"])))
        try:
            files = snapshot_download(
                hub_id, revision=revision, allow_patterns=allowed, ignore_patterns=ignored, dry_run=True
            )
        except DryRunError:
            files = []  # The hub cannot be reached; the cache may still have it all.
        if num_bytes := sum(file.file_size or 0 for file in files if file.will_download):
            report(f"fetching {hub_id} from the hub: {num_bytes / 1e6:,.0f} MB")
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=allowed, ignore_patterns=ignored))
    except ModelError:
        raise
    except Exception as error:
        # Its transport errors belong to whichever HTTP library the hub's client is built on.
        raise _hub_error(error, hub_id, revision) from error


def _hub_error(error: Exception, hub_id: str, revision: str | None) -> ModelError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return ModelError(
            f"{hub_id} is open only to those who accepted its terms",
            hint=f"accept them at https://huggingface.co/{hub_id}, then log in with `hf auth login`",
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelError(
            f"neither a directory here nor a public model of the hub: {hub_id}",
            hint="`infer models list` shows the built-in models; for a private one log in with `hf auth login`",
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelError(f"{hub_id} has no revision of this name: {revision}")
    return ModelError(
        f"{hub_id} is not in the hub's cache and cannot be fetched: {str(error).splitlines()[0].removeprefix('Got: ')}",
        hint="check the network and HF_HUB_OFFLINE, or pass a model directory; `infer models list` shows what is here",
    )
