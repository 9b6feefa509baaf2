"""The user's home directory, which a job of cron or a container's user may not have."""

from __future__ import annotations

from pathlib import Path

from infer.engine.errors import ConfigError


def expand_home(path: str) -> Path:
    """`path`, where a `~` at the beginning is the home directory.

    Raises:
        ConfigError: there is none.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"no home directory is known for: {path}",
            "set HOME, or for the cache of models INFER_HOME, to a directory",
        ) from error
