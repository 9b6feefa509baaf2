"""The kernels of each device: compiled, compared with the reference, and timed beside it.

In a process of its own (`python -m infer.engine.doctor_kernels cpu`): where the processor or a broken library answers
with a signal, that is a finding, and not the end of us.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from infer.engine.child_process import run_module
from infer.engine.finding import Finding, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from infer.kernels.backend import Backend

_NUM_SEQS, _CONTEXT, _BLOCK_SIZE = 32, 256, 16
_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM = 8, 2, 64
_TOLERANCE = 2e-2
"""Of bfloat16, which both round to."""
_REPEATS = 5


def look_at_kernels() -> Iterator[Finding]:
    import torch

    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        with TemporaryDirectory() as directory:
            done = run_module(__name__, device, temporary=Path(directory))
        if done.returncode:
            yield failure(device, done.returncode, done.stderr)
        else:
            yield from findings(device, json.loads(done.stdout.splitlines()[-1]))


def failure(device: str, returncode: int, stderr: str) -> Finding:
    """What to make of a child that measured nothing."""
    if returncode < 0:
        reason = f"the process was ended by {signal.Signals(-returncode).name}"
    else:
        reason = (stderr.strip().splitlines() or ["no reason was given"])[-1]
    hint = "use --attention-backend reference --no-fuse-kernels, which is slower, and report it"
    return Finding(f"{device} kernels", State.NOTE, f"do not work: {reason}", hint)


def findings(device: str, measured: dict[str, Any]) -> Iterator[Finding]:
    """What the child has measured, in words."""
    subject = f"{device} kernels"
    if measured["why_not"] is not None:
        hint = "pip install numba triton; until then attention and fused layers run on plain PyTorch"
        yield Finding(subject, State.NOTE, measured["why_not"], hint, measured)
        return
    ratio = measured["reference_seconds"] / measured["seconds"]
    if measured["error"] > _TOLERANCE:
        text = f"compute something else than the reference: {measured['error']:.3g} apart"
        yield Finding(subject, State.NOTE, text, "use --attention-backend reference, and report it", measured)
    else:
        text = (
            f"{measured['kind']}, ready in {measured['ready_seconds']:.1f} s; attention is {ratio:.1f} times as fast as"
        )
        yield Finding(subject, State.OK, f"{text} the reference", figures=measured)
    if measured["shares_openmp"] is False:
        text = (
            "this torch does not share its threads: kernels run on a pool of their own, and the two wait for each other"
        )
        yield Finding("openmp", State.NOTE, text, "the torch of PyPI or pytorch.org is built with GNU OpenMP")
    elif measured["shares_openmp"]:
        yield Finding("openmp", State.OK, "one pool of threads for torch's operators and our kernels")


def main() -> None:
    """Measure, and print one JSON object."""
    import torch

    from infer.kernels.backend import select_backend

    device, dtype = torch.device(sys.argv[1]), torch.bfloat16
    select = partial(select_backend, device, dtype, head_dim=_HEAD_DIM, block_size=_BLOCK_SIZE)
    backend = select()
    measured: dict[str, Any] = {"why_not": backend.fallback_reason}
    if backend.fallback_reason is None:
        started = time.perf_counter()
        attend, output = _attention(backend, device, dtype)
        measured["ready_seconds"] = time.perf_counter() - started
        slow, expected = _attention(select(preferred="reference"), device, dtype)
        measured |= _cpu_figures(dtype) if device.type == "cpu" else {"kind": backend.name, "shares_openmp": None}
        measured |= {
            "error": float((output.float() - expected.float()).abs().max()),
            "seconds": _least_seconds(attend, device),
            "reference_seconds": _least_seconds(slow, device),
        }
    print(json.dumps(measured))


def _cpu_figures(dtype: torch.dtype) -> dict[str, Any]:
    from infer.kernels.cpu.arithmetic import available_arithmetic
    from infer.kernels.cpu.threads import shares_openmp

    return {"kind": available_arithmetic(dtype)[0].value, "shares_openmp": shares_openmp()}


def _attention(
    backend: Backend, device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """A decode step's attention over random keys and values, and what it gives."""
    import torch

    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.paged_attention import paged_attention
    from infer.kernels.store_kv import store_kv

    generator = torch.Generator().manual_seed(0)
    blocks_per_seq = _CONTEXT // _BLOCK_SIZE
    num_blocks = _NUM_SEQS * blocks_per_seq + 1
    slots = torch.arange(_BLOCK_SIZE, num_blocks * _BLOCK_SIZE, device=device)
    pages = backend.allocate_kv_cache(
        num_blocks, _BLOCK_SIZE, _NUM_KV_HEADS, _HEAD_DIM, _HEAD_DIM, dtype, dtype, device
    )
    tokens = torch.randn(len(slots), _NUM_KV_HEADS, _HEAD_DIM, generator=generator).to(device, dtype)
    query = torch.randn(_NUM_SEQS, _NUM_HEADS, _HEAD_DIM, generator=generator).to(device, dtype)
    store_kv(tokens, tokens, pages, slots, backend=backend)
    metadata = AttentionMetadata(
        slot_mapping=slots.view(_NUM_SEQS, _CONTEXT)[:, -1].contiguous(),
        block_table=torch.arange(1, num_blocks, dtype=torch.int32, device=device).view(_NUM_SEQS, blocks_per_seq),
        query_start_loc=torch.arange(_NUM_SEQS + 1, dtype=torch.int32, device=device),
        seq_lens=torch.full((_NUM_SEQS,), _CONTEXT, dtype=torch.int32, device=device),
        max_query_len=1,
        max_seq_len=_CONTEXT,
        num_decodes=_NUM_SEQS,
    )

    def attend() -> torch.Tensor:
        return paged_attention(query, pages, metadata, scale=_HEAD_DIM**-0.5, backend=backend)

    return attend, attend()


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    import torch

    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


if __name__ == "__main__":
    main()
