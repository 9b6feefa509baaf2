"""Times paged attention: the fastest backend of this machine beside the reference, for one shape of a step.

    python benchmarks/attention.py --batch 128 --context 400
    python benchmarks/attention.py --batch 1 --query-len 512 --context 1536 --dtype float32
    python benchmarks/attention.py --batch 16 --context 4000 --kv-cache-dtype auto int8 fp8
    python benchmarks/attention.py --batch 128 --context 700 --prefix 600 --prefixes 16
    python benchmarks/attention.py --device cuda --batch 256 --context 900 --num-heads 32 --num-kv-heads 8 --head-dim 64

Every layer has a cache of its own, as in a model, so that keys and values come from memory. Caches of several dtypes
take turns, and so do attending to prefixes once for all that share them, and not. Takes the median over all layers and
repeats. On a GPU the layers of a step are replayed as one CUDA graph, and the shares are of what it does in a copy and
in a product of large matrices; reading a shared prefix once for all can be above the first.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from infer.kernels.attention_metadata import AttentionMetadata
from infer.kernels.backend import Backend, select_backend
from infer.kernels.paged_attention import paged_attention
from infer.kernels.store_kv import store_kv

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.kv_pages import KVPages

CACHE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def main() -> None:
    options = parse_arguments()
    device = torch.device(options.device)
    dtype: torch.dtype = getattr(torch, options.dtype)
    sizes = {"head_dim": options.head_dim, "block_size": options.block_size}
    fastest = select_backend(device, dtype, **sizes)
    reference = select_backend(device, dtype, **sizes, preferred="reference")
    print(
        f"batch {options.batch}, {options.query_len} queries, context {options.context}, "
        f"{options.num_heads} heads on {options.num_kv_heads} of {options.head_dim}, {options.dtype}, "
        f"{torch.get_num_threads()} threads"
    )
    limits = measure_limits(device, dtype) if device.type == "cuda" else None
    for backend, num_layers in ((fastest, options.layers), (reference, 1)):
        cases = {name: Case(backend, options, dtype, name, device, num_layers) for name in options.kv_cache_dtype}
        if options.prefix:
            cases |= {f"{name} shared": case.with_shared_prefixes(options) for name, case in list(cases.items())}
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(options.repeats):
            for name, case in cases.items():
                seconds[name] += case.seconds()
        for name, case in cases.items():
            report(f"{backend.name} {name}", options, case.num_bytes, statistics.median(seconds[name]), limits)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default_device)
    parser.add_argument("--batch", type=int, default=128, help="sequences")
    parser.add_argument("--context", type=int, default=400, help="tokens of a sequence, its queries included")
    parser.add_argument("--query-len", type=int, default=1, help="queries of a sequence")
    parser.add_argument("--prefix", type=int, default=0, help="tokens that sequences share, at their beginning")
    parser.add_argument("--prefixes", type=int, default=1, help="by how many different ones; neighbours share one")
    parser.add_argument("--num-heads", type=int, default=9)
    parser.add_argument("--num-kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--kv-cache-dtype", nargs="+", choices=["auto", *CACHE_DTYPES], default=["auto"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


class Case:
    """The attention of a step over the caches of several layers, compiled when it is made."""

    def __init__(
        self,
        backend: Backend,
        options: argparse.Namespace,
        dtype: torch.dtype,
        kv_cache_dtype: str,
        device: torch.device,
        num_layers: int,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        block_size, num_kv_heads, head_dim = options.block_size, options.num_kv_heads, options.head_dim
        blocks_per_seq = -(-options.context // block_size)
        num_blocks = options.batch * blocks_per_seq + 1
        block_table = torch.randperm(num_blocks - 1, generator=generator).int().view(options.batch, blocks_per_seq) + 1
        if options.prefix:
            shared = options.prefix // block_size
            block_table[:, :shared] = block_table[_first_sharers(options), :shared]
        positions = torch.arange(options.context)
        slots = block_table[:, positions // block_size].long() * block_size + positions % block_size
        metadata = AttentionMetadata(
            slot_mapping=slots[:, -options.query_len :].flatten().to(device),
            block_table=block_table.to(device),
            query_start_loc=(torch.arange(options.batch + 1) * options.query_len).int().to(device),
            seq_lens=torch.full((options.batch,), options.context, dtype=torch.int32, device=device),
            max_query_len=options.query_len,
            max_seq_len=options.context,
            num_decodes=options.batch if options.query_len == 1 else 0,
        )
        tokens = torch.randn(slots.numel(), num_kv_heads, head_dim, generator=generator).to(device, dtype)
        query = torch.randn(options.batch * options.query_len, options.num_heads, head_dim, generator=generator)
        query = query.to(device, dtype)
        sizes = (num_blocks, block_size, num_kv_heads, head_dim, head_dim)
        cache_dtype = CACHE_DTYPES.get(kv_cache_dtype, dtype)
        self._device = device
        self._caches = [backend.allocate_kv_cache(*sizes, dtype, cache_dtype, device) for _ in range(num_layers)]
        for pages in self._caches:
            store_kv(tokens, tokens, pages, slots.flatten().to(device), backend=backend)
        num_bytes_per_block = sum(tensor[0].nbytes for tensor in self._caches[0].tensors())
        self.num_bytes = options.batch * options.context * num_bytes_per_block / block_size

        def attend(pages: KVPages, metadata: AttentionMetadata) -> None:
            paged_attention(query, pages, metadata, scale=head_dim**-0.5, backend=backend)

        self._metadata = metadata
        self._captured: torch.cuda.CUDAGraph | None = None
        # The reference asks the device for the lengths.
        self._is_capturable = backend.name == "triton"
        self._attend: Callable[[KVPages, AttentionMetadata], None] = attend
        attend(self._caches[0], metadata)

    def with_shared_prefixes(self, options: argparse.Namespace) -> Case:
        """On the same caches."""
        case = copy.copy(self)
        firsts = torch.unique(_first_sharers(options))
        ends = torch.cat([firsts[1:], torch.tensor([options.batch])])
        blocks = torch.full_like(firsts, options.prefix // options.block_size)
        groups = torch.stack([firsts, ends, torch.zeros_like(firsts), blocks], dim=1).int().to(self._device)
        case._captured = None
        case._metadata = replace(self._metadata, shared_prefixes=groups)
        self._attend(self._caches[0], case._metadata)
        return case

    def seconds(self) -> list[float]:
        """Of a call, for each layer; of a graph of them all, by their number."""
        if self._device.type == "cuda" and self._is_capturable:
            return [cuda_seconds(self._graph().replay) / len(self._caches)]
        return [self._seconds_of(pages) for pages in self._caches]

    def _graph(self) -> torch.cuda.CUDAGraph:
        if self._captured is None:
            torch.cuda.synchronize()
            self._captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._captured):
                for pages in self._caches:
                    self._attend(pages, self._metadata)
            self._captured.replay()
        return self._captured

    def _seconds_of(self, pages: KVPages) -> float:
        if self._device.type == "cuda":
            return cuda_seconds(lambda: self._attend(pages, self._metadata))
        start = time.perf_counter()
        self._attend(pages, self._metadata)
        return time.perf_counter() - start


def cuda_seconds(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def measure_limits(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes and operations a second: of a copy of 1 GiB, read and written, and of a product of matrices of 8192."""
    source, target = torch.zeros(2, 2**30, dtype=torch.uint8, device=device)
    matrix = torch.randn(8192, 8192, device=device).to(dtype)
    copy_seconds = [cuda_seconds(lambda: target.copy_(source)) for _ in range(10)]
    product_seconds = [cuda_seconds(lambda: matrix @ matrix) for _ in range(10)]
    return 2**31 / statistics.median(copy_seconds), 2 * 8192**3 / statistics.median(product_seconds)


def _first_sharers(options: argparse.Namespace) -> torch.Tensor:
    """Of each sequence, the first that has the same prefix."""
    prefix = torch.arange(options.batch) * options.prefixes // options.batch
    return torch.searchsorted(prefix, prefix)


def report(
    name: str,
    options: argparse.Namespace,
    num_bytes: float,
    seconds: float,
    limits: tuple[float, float] | None,
) -> None:
    """GB/s count the keys and values once a sequence, GFLOP/s the products that the causal mask leaves."""
    keys_seen = options.query_len * options.context - options.query_len * (options.query_len - 1) // 2
    operations = 4 * options.batch * options.num_heads * options.head_dim * keys_seen
    bytes_share, operations_share = ("", "")
    if limits is not None:
        bytes_share = f" {num_bytes / seconds / limits[0]:5.0%}"
        operations_share = f" {operations / seconds / limits[1]:5.0%}"
    print(f"{name:>18}  {seconds * 1e3:8.3f} ms  {num_bytes / seconds / 1e9:7.1f} GB/s{bytes_share}  ", end="")
    print(f"{operations / seconds / 1e9:7.0f} GFLOP/s{operations_share}")


if __name__ == "__main__":
    main()
