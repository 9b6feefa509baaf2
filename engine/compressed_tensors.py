"""compressed-tensors' description of how a checkpoint was quantised, as llm-compressor writes it and vLLM reads it.

    quantization_config: {quant_method, format, config_groups: {name: {targets, weights, input_activations,
                          output_activations, format}}, ignore, kv_cache_scheme, ...}
    weights, activations: {num_bits, type, symmetric, strategy, group_size, dynamic, actorder, ...}

Symmetric int8 weights are run: with activations as they are, or rounded to int8 token by token as they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMATS = ("int-quantized", "pack-quantized")
_STRATEGIES = ("tensor", "channel", "group")


@dataclass(frozen=True, slots=True)
class Int8Scheme:
    """What all quantised layers have in common."""

    is_packed: bool
    """Whether weights lie four to an int32."""
    strategy: str
    """`tensor`, `channel` or `group`: what shares a scale: all weights, a row, or `group_size` columns of one."""
    group_size: int
    """1 where there are no groups."""
    has_int8_tokens: bool

    def describe(self) -> str:
        groups = f" in groups of {self.group_size}" if self.strategy == "group" else f" by {self.strategy}"
        return f"{'W8A8' if self.has_int8_tokens else 'W8A16'}{groups}"


def read_compressed_tensors(config: Mapping[str, Any], source: str) -> Int8Scheme:
    """What a `quantization_config` says.

    Raises:
        ModelError: something that is not run; names it.
    """
    for name in ("kv_cache_scheme", "transform_config"):
        if config.get(name):
            raise _refusal(source, f"a {name}: {config[name]}")
    sparsity = config.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise _refusal(source, f"sparse weights: {sparsity}")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise _refusal(source, f"no config_groups: {groups}")
    schemes = {_read_group(group, config.get("format"), source) for group in groups.values()}
    if len(schemes) > 1:
        raise _refusal(source, f"several schemes: {'; '.join(sorted(scheme.describe() for scheme in schemes))}")
    return schemes.pop()


def _read_group(group: Mapping[str, Any], common_format: Any, source: str) -> Int8Scheme:
    weight_format = group.get("format") or common_format
    weights, tokens = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict):
        raise _refusal(source, f"no weights in a group of its config_groups: {weights}")
    if weights.get("type") != "int" or weights.get("num_bits") != 8:
        raise _refusal(source, f"weights of {weights.get('num_bits')} bits of the type {weights.get('type')}")
    if weight_format not in _FORMATS:
        raise _refusal(source, f"weights in the format {weight_format}")
    if weights.get("symmetric") is not True:
        raise _refusal(source, "asymmetric weights")
    strategy, group_size = weights.get("strategy"), weights.get("group_size")
    if strategy is None:
        strategy = "group" if group_size else "tensor"
    if strategy not in _STRATEGIES:
        raise _refusal(source, f"weights scaled by {strategy}")
    if weights.get("actorder") in ("group", True):
        raise _refusal(source, f"columns ordered by activations: {weights['actorder']}")
    if strategy != "group":
        group_size = 1
    if type(group_size) is not int or group_size < 1:
        raise _refusal(source, f"groups of the size {group_size}")
    if group.get("output_activations"):
        raise _refusal(source, f"quantised outputs: {group['output_activations']}")
    if tokens:
        _check_tokens(tokens, source)
        if strategy == "group":
            raise _refusal(source, f"int8 activations with weights scaled by groups of {group_size}")
    return Int8Scheme(weight_format == "pack-quantized", strategy, group_size, bool(tokens))


def _check_tokens(tokens: Any, source: str) -> None:
    if not isinstance(tokens, dict):
        raise _refusal(source, f"input_activations {tokens}")
    if tokens.get("type") != "int" or tokens.get("num_bits") != 8:
        raise _refusal(source, f"activations of {tokens.get('num_bits')} bits of the type {tokens.get('type')}")
    if tokens.get("dynamic") is not True:
        raise _refusal(source, "static scales of activations")
    if tokens.get("symmetric") is not True:
        raise _refusal(source, "asymmetric activations")
    if tokens.get("strategy") != "token":
        raise _refusal(source, f"activations scaled by {tokens.get('strategy')}")


def _refusal(source: str, found: str) -> ModelError:
    return ModelError(
        f"{source} is quantised by compressed-tensors in a way that is not run, with {found[:200]}",
        hint="run are symmetric int8 weights, with dynamic int8 activations by token or none; or the unquantised model",
    )
