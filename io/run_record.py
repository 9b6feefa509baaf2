"""`run.json`: what a run was asked to do, written once.

By the standard library, which writes the bytes of a name that is not UTF-8 as escapes and reads them again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infer.io import storage
from infer.io.errors import StateError
from infer.io.fingerprint import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
RESTART = "begin again with --restart, which discards what is saved"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """`run.json`."""

    run_id: str
    created: str
    """ISO 8601, UTC."""
    num_rows: int
    seed: int
    fingerprint: Fingerprint
    job: Mapping[str, Any]
    """What it was asked to do, by the names of the flags."""
    output: str
    format: int = FORMAT


def read_run(path: Path) -> RunRecord | None:
    """None where there is no run.

    Raises:
        StateError: it is damaged, or of a format that is not known here.
    """
    data = storage.read_bytes(path)
    if data is None:
        return None
    try:
        values = json.loads(data)
        if values.pop("sha256") != _digest(values):
            raise ValueError("its digest is another")
        # Before anything else in it is looked at: another format may have other fields.
        if (found := values["format"]) != FORMAT:
            raise StateError(f"what is saved is of format {found}, this infer has {FORMAT}: {path}", RESTART)
        return RunRecord(**{**values, "fingerprint": Fingerprint(**values["fingerprint"])})
    except StateError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StateError(f"what is saved is damaged: {path}", RESTART) from error


def write_run(path: Path, run: RunRecord) -> None:
    """Aside, and by a rename."""
    values = asdict(run)
    file = storage.NewFile(path.with_name(f"{path.name}.tmp"))
    try:
        # The standard library's JSON: it gives back names that are no UTF-8, and numbers of any size.
        file.write(json.dumps({**values, "sha256": _digest(values)}, indent=2).encode() + b"\n")
        file.commit()
        storage.rename(file.path, path, replace=True)
    except BaseException:
        file.discard()
        raise


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _digest(values: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
