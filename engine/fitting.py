"""Settings that are known only once the model and the machine are: device, attention backend, longest row, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from infer.engine.decode_graphs import num_graph_bytes
from infer.engine.errors import ConfigError
from infer.engine.kv_cache import fit_num_blocks
from infer.engine.memory import available_bytes
from infer.engine.model_loader import max_exact_model_len
from infer.kernels.backend import select_backend

_MOST_UNASKED_SWAP_BYTES = 4 << 30
_MOST_UNASKED_SWAP_CACHES = 4
"""As much as the cache itself, so many times: more is never swapped out at once."""

if TYPE_CHECKING:
    from infer.engine.config import EngineConfig
    from infer.engine.kv_cache import KVCacheSpec
    from infer.kernels.backend import Backend


def choose_device(name: str) -> torch.device:
    """The device `name` stands for; `auto` is a GPU where there is one.

    Raises:
        ConfigError: it is no device, or not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device must be auto, cpu or cuda: {name}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda: {name}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"no CUDA device is available: {name}", hint="use --device cpu")
    return device


def choose_backend(config: EngineConfig, device: torch.device, spec: KVCacheSpec) -> Backend:
    """One backend for the layers of all shapes: the fastest that serves every one of them.

    Raises:
        ConfigError: the one asked for cannot serve them.
    """
    shapes = {(layer.head_dim, layer.value_head_dim) for layer in spec.layers}
    backends = []
    for head_dim, value_head_dim in sorted(shapes):
        try:
            backend = select_backend(
                device,
                spec.dtype,
                head_dim=head_dim,
                value_head_dim=value_head_dim,
                block_size=config.block_size,
                cache_dtype=spec.cache_dtype,
                preferred=config.attention_backend,
            )
        except ValueError as error:
            raise ConfigError(str(error), hint="use --attention-backend auto") from error
        backends.append(backend)
    return next((backend for backend in backends if backend.fallback_reason), backends[0])


def fit_model_len(config: EngineConfig, model_config: Any) -> tuple[int, str]:
    """The longest sequence allowed, and why it is shorter than the model's own limit, where it is.

    Raises:
        ConfigError: `max_model_len` asks for more than the model can do.
    """
    limit: int = model_config.max_position_embeddings
    reason = ""
    exact = max_exact_model_len(model_config)
    if exact is not None and exact < limit:
        limit, reason = exact, " (longer ones would need another rotary table for all rows of a step)"
    if config.max_model_len is not None:
        if config.max_model_len > limit:
            raise ConfigError(f"max_model_len must be at most {limit}{reason}: {config.max_model_len}")
        limit, reason = config.max_model_len, ""
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < limit:
        limit, reason = config.max_num_batched_tokens, " (without chunked prefill a row must fit one step)"
    return limit, reason


def num_step_bytes(
    config: EngineConfig, model_config: Any, dtype: torch.dtype, backend_name: str, max_model_len: int
) -> int:
    """What a full step needs besides weights and cache: activations, logits and their float32 copies; and recorded
    steps, where there are some. An estimate."""
    activations = config.max_num_batched_tokens * model_config.hidden_size * 32 * dtype.itemsize
    num_logits = config.max_num_seqs + (0 if config.speculative == "off" else config.max_num_draft_tokens)
    num_bytes = int(activations + num_logits * model_config.vocab_size * (dtype.itemsize + 3 * 4))
    if config.records_decodes_by(backend_name):
        max_blocks = -(-max_model_len // config.block_size)
        sizes = (model_config.hidden_size, model_config.vocab_size, dtype.itemsize)
        num_bytes += num_graph_bytes(config.max_num_seqs, max_blocks, *sizes)
    return num_bytes


def fit_cache_sizes(
    config: EngineConfig,
    spec: KVCacheSpec,
    device: torch.device,
    *,
    num_step_bytes: int,
    num_reserved_bytes: int,
    max_model_len: int,
    num_requests: int | None,
    max_request_tokens: int | None,
) -> tuple[int, int]:
    """Blocks of the cache, and of the swap space in host memory, for so many requests of so many tokens.

    On a CPU both come out of one memory, of which `num_reserved_bytes` have been taken for the cache already. Swap
    space that was asked for is put aside first; else it is what is left.

    Raises:
        ConfigError: there is no memory for them.
    """
    available = available_bytes(device) + num_reserved_bytes
    room = int(available * config.memory_utilization) - num_step_bytes
    is_shared = device.type == "cpu"
    host_room = room if is_shared else int(available_bytes(torch.device("cpu")) * config.memory_utilization)
    reserved = _reserved_swap_bytes(config, host_room)
    if reserved > max(0, host_room):
        raise ConfigError(
            f"no memory for the swap space: {config.swap_space} GiB are asked for, {host_room / 2**30:.1f} are left",
            hint="lower --swap-space",
        )
    num_blocks = fit_num_blocks(
        spec,
        room - reserved if is_shared else room,
        num_blocks=config.num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        num_requests=num_requests,
        max_request_tokens=max_request_tokens,
        keep_prefixes=config.enable_prefix_caching,
    )
    cache_bytes = num_blocks * spec.num_bytes_per_block
    swap_bytes = reserved
    if config.swap_space is None and config.preemption_mode != "recompute" and not reserved:
        left = host_room - cache_bytes if is_shared else host_room // 8
        swap_bytes = min(_MOST_UNASKED_SWAP_BYTES, _MOST_UNASKED_SWAP_CACHES * cache_bytes, left)
    return num_blocks, swap_bytes // spec.num_bytes_per_block


def _reserved_swap_bytes(config: EngineConfig, host_room: int) -> int:
    if config.swap_space is not None:
        return int(config.swap_space * 2**30)
    return min(_MOST_UNASKED_SWAP_BYTES, max(0, host_room) // 8) if config.keeps_prefixes_on_host else 0
