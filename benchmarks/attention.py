"""Times paged attention: the fastest backend of this machine beside the reference, for one shape of a step.

    python benchmarks/attention.py --batch 128 --context 400
    python benchmarks/attention.py --batch 1 --query-len 512 --context 1536 --dtype float32

Every layer has a cache of its own, as in a model, so that keys and values come from memory. Takes the median over all
layers and repeats.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch

from infer.kernels.attention_metadata import AttentionMetadata
from infer.kernels.backend import Backend, select_backend
from infer.kernels.paged_attention import paged_attention
from infer.kernels.store_kv import store_kv

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    options = parse_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype: torch.dtype = getattr(torch, options.dtype)
    sizes = {"head_dim": options.head_dim, "block_size": options.block_size}
    fastest = select_backend(device, dtype, **sizes)
    reference = select_backend(device, dtype, **sizes, preferred="reference")
    print(
        f"batch {options.batch}, {options.query_len} queries, context {options.context}, "
        f"{options.num_heads} heads on {options.num_kv_heads} of {options.head_dim}, {options.dtype}, "
        f"{torch.get_num_threads()} threads"
    )
    for backend, num_layers in ((fastest, options.layers), (reference, 1)):
        report(backend.name, options, dtype, measure(backend, options, dtype, device, num_layers))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128, help="sequences")
    parser.add_argument("--context", type=int, default=400, help="tokens of a sequence, its queries included")
    parser.add_argument("--query-len", type=int, default=1, help="queries of a sequence")
    parser.add_argument("--num-heads", type=int, default=9)
    parser.add_argument("--num-kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def measure(
    backend: Backend, options: argparse.Namespace, dtype: torch.dtype, device: torch.device, num_layers: int
) -> float:
    """Median seconds of a call, after one that compiles."""
    generator = torch.Generator().manual_seed(0)
    blocks_per_seq = -(-options.context // options.block_size)
    num_blocks = options.batch * blocks_per_seq + 1
    block_table = torch.randperm(num_blocks - 1, generator=generator).int().view(options.batch, blocks_per_seq) + 1
    positions = torch.arange(options.context)
    slots = block_table[:, positions // options.block_size].long() * options.block_size + positions % options.block_size
    metadata = AttentionMetadata(
        slot_mapping=slots[:, -options.query_len :].flatten().to(device),
        block_table=block_table.to(device),
        query_start_loc=(torch.arange(options.batch + 1) * options.query_len).int().to(device),
        seq_lens=torch.full((options.batch,), options.context, dtype=torch.int32, device=device),
        max_query_len=options.query_len,
        max_seq_len=options.context,
        num_decodes=options.batch if options.query_len == 1 else 0,
    )
    tokens = torch.randn(slots.numel(), options.num_kv_heads, options.head_dim, generator=generator)
    tokens = tokens.to(device, dtype)
    caches = []
    for _ in range(num_layers):
        cache = backend.allocate_kv_cache(
            num_blocks, options.block_size, options.num_kv_heads, options.head_dim, options.head_dim, dtype, device
        )
        store_kv(tokens, tokens, *cache, slots.flatten().to(device), backend=backend)
        caches.append(cache)
    query = torch.randn(options.batch * options.query_len, options.num_heads, options.head_dim, generator=generator)
    query = query.to(device, dtype)

    def attend(cache: tuple[torch.Tensor, torch.Tensor]) -> None:
        paged_attention(query, *cache, metadata, scale=options.head_dim**-0.5, backend=backend)

    attend(caches[0])
    return statistics.median(seconds_of(attend, cache, device) for _ in range(options.repeats) for cache in caches)


def seconds_of(
    attend: Callable[[tuple[torch.Tensor, torch.Tensor]], None],
    cache: tuple[torch.Tensor, torch.Tensor],
    device: torch.device,
) -> float:
    start = time.perf_counter()
    attend(cache)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def report(name: str, options: argparse.Namespace, dtype: torch.dtype, seconds: float) -> None:
    """GB/s count the keys and values once, GFLOP/s the products that the causal mask leaves."""
    num_bytes = 2 * options.batch * options.context * options.num_kv_heads * options.head_dim * dtype.itemsize
    keys_seen = options.query_len * options.context - options.query_len * (options.query_len - 1) // 2
    operations = 4 * options.batch * options.num_heads * options.head_dim * keys_seen
    print(f"{name:>9}  {seconds * 1e3:8.2f} ms  {num_bytes / seconds / 1e9:7.1f} GB/s  ", end="")
    print(f"{operations / seconds / 1e9:7.0f} GFLOP/s")


if __name__ == "__main__":
    main()
