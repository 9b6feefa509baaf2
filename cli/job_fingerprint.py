"""What the answers of a job depend on, field by field, by the names that its user knows."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version
from typing import TYPE_CHECKING

from infer.cli.flags import flag
from infer.engine.sampling_params import SamplingParams
from infer.io.fingerprint import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.cli.config import JobConfig
    from infer.cli.job_plan import JobPlan

LOADED_DTYPE = "dtype of the model"
LOADED = (LOADED_DTYPE,)
"""Hard fields that are known when the model is loaded."""

_VERSIONS = {"infer": "infer-batch", "torch": "torch", "transformers": "transformers", "pyarrow": "pyarrow"}


def job_fingerprint(
    config: JobConfig,
    plan: JobPlan,
    digests: Sequence[str],
    model: Mapping[str, object],
    loaded: Mapping[str, str] | None = None,
) -> Fingerprint:
    """The fingerprint of a job: `digests` are those of the input's files, `model` those of the model.

    `loaded` is what is known of a model that is loaded: the hard fields `LOADED`, and soft ones.
    """
    loaded = loaded or {}
    hard: dict[str, object] = {"input files": len(digests)}
    hard |= {f"input file {number}": digest for number, digest in enumerate(digests, 1)}
    # What stands in no file, and yet in its rows.
    hard |= {f"path of input file {number}": dict(each) for number, each in enumerate(plan.source.partitions, 1)}
    hard |= {"rows": plan.source.num_rows, "columns read": list(plan.columns)}
    hard |= {flag(each.name): getattr(plan.prompt, each.name) for each in fields(plan.prompt)}
    hard |= {flag(each.name): _plain(config.sampling.get(each.name)) for each in fields(SamplingParams)}
    hard |= {"--seed": config.seed, "--seed-by": config.seed_by, "--row-params": config.row_params}
    hard |= {
        flag(name): getattr(config.engine, name)
        for name in ("dtype", "quantization", "kv_cache_dtype", "max_model_len")
    }
    hard |= model
    hard |= {"columns kept": plan.schema.kept.names, "--prefix": plan.schema.prefix}
    hard |= {"result columns": [f"{each.name}: {each.type}" for each in plan.schema.results]}
    hard |= {name: value for name, value in loaded.items() if name in LOADED}
    soft = versions() | {name: value for name, value in loaded.items() if name not in LOADED}
    return Fingerprint(hard, soft)


def versions() -> dict[str, str]:
    """Of what may round differently from one to the next."""
    return {name: version(distribution) for name, distribution in _VERSIONS.items()}


def _plain(value: object) -> object:
    """As JSON gives it back."""
    if isinstance(value, tuple):
        return list(value)
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value
