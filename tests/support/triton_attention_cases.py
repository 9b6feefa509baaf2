"""Attention and the store as models of several sizes launch them, for `triton_resources`."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch

from infer.kernels import triton as triton_kernels
from infer.kernels.attention_metadata import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

META = torch.device("meta")
CACHE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
BLOCK_SIZE = 16


def cases() -> dict[str, Callable[[], object]]:
    """By name: operator, dtype, d(head_dim), g(query heads of a KV head), and what else differs from the plain."""
    cases: dict[str, Callable[[], object]] = {}
    sizes = [(64, 1), (64, 3), (64, 4), (64, 8), (80, 4), (96, 4), (128, 1), (128, 3), (128, 4), (128, 8), (256, 4)]
    for operator, query_len in (("decode", 1), ("shared", 1), ("prefill", 2048), ("chunk", 8)):
        attend = partial(_attend, query_len=query_len, is_shared=operator == "shared")
        for head_dim, group_size in sizes:
            name = f"{operator} bf16 d{head_dim} g{group_size}"
            cases[name] = partial(attend, head_dim=head_dim, group_size=group_size)
        for head_dim, cache_dtype in product((64, 128, 256), CACHE_DTYPES):
            name = f"{operator} bf16 d{head_dim} g4 {cache_dtype}"
            cases[name] = partial(attend, head_dim=head_dim, group_size=4, cache_dtype=CACHE_DTYPES[cache_dtype])
        for head_dim in (64, 128, 256):
            name = f"{operator} fp32 d{head_dim} g4"
            cases[name] = partial(attend, head_dim=head_dim, group_size=4, dtype=torch.float32)
        cases |= {
            f"{operator} fp16 d128 g4": partial(attend, head_dim=128, group_size=4, dtype=torch.float16),
            f"{operator} bf16 d192/128 g1": partial(attend, head_dim=192, value_head_dim=128, group_size=1),
            f"{operator} bf16 d128 g4 window": partial(attend, head_dim=128, group_size=4, sliding_window=4096),
            f"{operator} bf16 d256 g2 window softcap": partial(
                attend, head_dim=256, group_size=2, sliding_window=4096, softcap=50.0
            ),
            f"{operator} bf16 d64 g8 window sinks": partial(
                attend, head_dim=64, group_size=8, sliding_window=128, has_sinks=True
            ),
        }
    for head_dim in (64, 128):
        cases[f"store bf16 d{head_dim}"] = partial(_store, head_dim)
    for cache_dtype in CACHE_DTYPES:
        cases[f"store bf16 d128 {cache_dtype}"] = partial(_store, 128, CACHE_DTYPES[cache_dtype])
    return cases


SHOWN_IN = {
    "count_entries_kernel": ("shared bf16 d128 g4", "decode bf16 d128 g4 window"),
    "write_entries_kernel": ("shared bf16 d128 g4", "decode bf16 d128 g4 window"),
    "write_tiles_kernel": ("prefill bf16 d128 g4",),
    "merge_slots_kernel": ("shared bf16 d64 g4", "shared bf16 d128 g4", "shared bf16 d256 g4", "shared fp32 d128 g4"),
}

QUICK = [
    ("decode bf16 d64 g3", 80),
    ("decode bf16 d128 g8", 90),
    ("decode bf16 d128 g4 fp8", 80),
    ("shared bf16 d128 g4", 90),
    ("prefill bf16 d128 g4", 80),
    ("prefill bf16 d128 g4", 90),
    ("prefill bf16 d128 g4 int8", 90),
    ("store bf16 d128", 90),
    ("store bf16 d128 fp8", 80),
]


def _attend(
    query_len: int,
    is_shared: bool,
    head_dim: int,
    group_size: int,
    value_head_dim: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    sliding_window: int = 0,
    softcap: float = 0.0,
    has_sinks: bool = False,
) -> None:
    """A step of 64 sequences, each with `query_len` queries and a context of 4096."""
    num_seqs, num_kv_heads, context = 64, 8, 4096
    num_heads = num_kv_heads * group_size
    num_tokens = num_seqs * query_len
    metadata = AttentionMetadata(
        slot_mapping=torch.empty(num_tokens, dtype=torch.int64, device=META),
        block_table=torch.empty(num_seqs, context // BLOCK_SIZE, dtype=torch.int32, device=META),
        query_start_loc=torch.empty(num_seqs + 1, dtype=torch.int32, device=META),
        seq_lens=torch.empty(num_seqs, dtype=torch.int32, device=META),
        max_query_len=query_len,
        max_seq_len=context,
        num_decodes=num_seqs if query_len == 1 else 0,
        shared_prefixes=torch.empty(2, 4, dtype=torch.int32, device=META) if is_shared else None,
    )
    triton_kernels.paged_attention(
        torch.empty(num_tokens, num_heads, head_dim, dtype=dtype, device=META),
        triton_kernels.allocate_kv_cache(
            1024, BLOCK_SIZE, num_kv_heads, head_dim, value_head_dim or head_dim, dtype, cache_dtype or dtype, META
        ),
        metadata,
        scale=head_dim**-0.5,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=torch.empty(num_heads, dtype=dtype, device=META) if has_sinks else None,
    )


def _store(head_dim: int, cache_dtype: torch.dtype | None = None, dtype: torch.dtype = torch.bfloat16) -> None:
    num_tokens, num_kv_heads = 512, 8
    key, value = torch.empty(2, num_tokens, num_kv_heads, head_dim, dtype=dtype, device=META)
    pages = triton_kernels.allocate_kv_cache(
        1024, BLOCK_SIZE, num_kv_heads, head_dim, head_dim, dtype, cache_dtype or dtype, META
    )
    triton_kernels.store_kv(key, value, pages, torch.empty(num_tokens, dtype=torch.int64, device=META))
