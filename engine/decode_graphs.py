"""DecodeGraphs: steps in which every sequence has one token, recorded once a size and then launched as one.

A decode step is hundreds of kernels of a few microseconds each, and to launch them one by one takes longer than to run
them. A graph runs what was recorded, on the very same memory: so inputs are copied into static buffers, and a step is
padded to a size that has a graph. What pads it attends to the null block, and nobody looks at what comes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from infer.engine.batch import Batch
from infer.kernels.attention_metadata import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward = Callable[[Batch], torch.Tensor]
    Record = Callable[[Callable[[], None]], Callable[[], None]]
    """Runs what it is given, with its effects, and returns what runs it again on the same memory."""

_LEAST_SEQ_LEN = 512
"""Keys that are one split of the attention: shorter sequences need no graph of their own."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Static inputs, and the logits. Of each the first rows are used."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    shared_prefixes: torch.Tensor
    logits: torch.Tensor


class DecodeGraphs:
    """Recorded when a size is first needed."""

    def __init__(
        self, forward: Forward, record: Record, report: Callable[[str], None], *, max_num_seqs: int, max_blocks: int
    ) -> None:
        """`max_blocks` is the most that a sequence can have; `report` is told where nothing can be recorded."""
        self._forward = forward
        self._record: Record | None = record
        self._report = report
        self._max_num_seqs = max_num_seqs
        self._max_blocks = max_blocks
        self._buffers: _Buffers | None = None
        self._graphs: dict[tuple[int, int, int], Callable[[], None]] = {}
        """By padded number of sequences, bound of their lengths, and padded number of shared prefixes."""

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def execute(self, batch: Batch) -> torch.Tensor | None:
        """Logits `[num_logits, vocab_size]`, which the next step writes over; None where the step has to be run as it
        is."""
        metadata = batch.metadata
        num_seqs = metadata.seq_lens.shape[0]
        if self._record is None or metadata.num_decodes < num_seqs or num_seqs > self._max_num_seqs:
            return None
        num_groups = 0 if metadata.shared_prefixes is None else metadata.shared_prefixes.shape[0]
        if num_groups > self._max_num_seqs:
            return None
        size = min(padded_size(num_seqs), self._max_num_seqs)
        seq_len = max(_LEAST_SEQ_LEN, 1 << (metadata.max_seq_len - 1).bit_length())
        key = (size, seq_len, min(padded_size(num_groups), self._max_num_seqs))
        if self._buffers is None:
            self._buffers = self._allocate(batch)
        self._fill(self._buffers, batch, size, key[2])
        if key not in self._graphs:
            static = _static_batch(self._buffers, *key)
            logits = self._buffers.logits[:size]
            try:
                self._graphs[key] = self._record(partial(self._run, static, logits))
            except RuntimeError as error:
                # What cannot be recorded can be run; if it cannot, the step as it is will say so.
                self._record = None
                self._graphs.clear()
                self._report(f"decode steps are launched kernel by kernel, they cannot be recorded: {error}")
                return None
        else:
            self._graphs[key]()
        logits = self._buffers.logits[:num_seqs]
        is_all = batch.logits_indices.shape[0] == num_seqs
        return logits if is_all else logits.index_select(0, batch.logits_indices)

    def _run(self, static: Batch, logits: torch.Tensor) -> None:
        logits.copy_(self._forward(static))
        # Worked out from inputs that are others when the graph runs: by the graph itself.
        static.metadata.plans.clear()

    def _allocate(self, batch: Batch) -> _Buffers:
        device, size = batch.input_ids.device, self._max_num_seqs
        # One run as it is tells how wide the logits are.
        logits = self._forward(batch)

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return _Buffers(
            input_ids=zeros(1, size, dtype=torch.int64),
            position_ids=zeros(1, size, dtype=torch.int64),
            slot_mapping=zeros(size, dtype=torch.int64),
            block_table=zeros(size, self._max_blocks, dtype=torch.int32),
            query_start_loc=torch.arange(size + 1, dtype=torch.int32, device=device),
            seq_lens=zeros(size, dtype=torch.int32),
            shared_prefixes=zeros(size, 4, dtype=torch.int32),
            logits=logits.new_zeros(size, logits.shape[1]),
        )

    def _fill(self, buffers: _Buffers, batch: Batch, size: int, num_groups: int) -> None:
        metadata = batch.metadata
        num_seqs, num_blocks = metadata.block_table.shape
        pairs = [
            (buffers.input_ids[0], batch.input_ids[0]),
            (buffers.position_ids[0], batch.position_ids[0]),
            (buffers.slot_mapping, metadata.slot_mapping),
            (buffers.seq_lens, metadata.seq_lens),
        ]
        for static, tensor in pairs:
            static[:num_seqs].copy_(tensor)
        # Blocks behind a sequence's own are never looked at.
        buffers.block_table[:num_seqs, :num_blocks].copy_(metadata.block_table)
        if num_seqs < size:
            for tensor in (buffers.input_ids[0], buffers.position_ids[0], buffers.slot_mapping, buffers.block_table):
                tensor[num_seqs:size].zero_()
            buffers.seq_lens[num_seqs:size].fill_(1)
        if metadata.shared_prefixes is not None:
            found = metadata.shared_prefixes.shape[0]
            buffers.shared_prefixes[:found].copy_(metadata.shared_prefixes)
            # Of no sequence.
            buffers.shared_prefixes[found:num_groups].zero_()


def padded_size(num_seqs: int) -> int:
    """The size of graph for so many: powers of two up to 16, and then at most an eighth more than is needed."""
    if num_seqs <= 16:
        return 1 << (num_seqs - 1).bit_length() if num_seqs else 0
    step = 1 << (num_seqs.bit_length() - 4)
    return -(-num_seqs // step) * step


def num_graph_bytes(max_num_seqs: int, max_blocks: int, hidden_size: int, vocab_size: int, itemsize: int) -> int:
    """What graphs keep to themselves: their inputs, the activations and logits of the largest step, and some for each
    graph that the driver keeps. An estimate."""
    inputs = max_num_seqs * (max_blocks * 4 + 64)
    activations = max_num_seqs * (hidden_size * 32 + 2 * vocab_size) * itemsize
    num_sizes = len({padded_size(each) for each in range(1, max_num_seqs + 1)})
    return inputs + activations + num_sizes * (4 << 20)


def record_cuda_graph(pool: Any) -> Record:
    """Graphs of one memory pool: what one needs while it runs, the next may use as well."""

    def record(run: Callable[[], None]) -> Callable[[], None]:
        # Once as it is, on another stream, as torch asks: what is compiled or set up at first use cannot be recorded.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            run()
        return graph.replay

    return record


def _static_batch(buffers: _Buffers, size: int, max_seq_len: int, num_groups: int) -> Batch:
    metadata = AttentionMetadata(
        slot_mapping=buffers.slot_mapping[:size],
        block_table=buffers.block_table[:size],
        query_start_loc=buffers.query_start_loc[: size + 1],
        seq_lens=buffers.seq_lens[:size],
        max_query_len=1,
        max_seq_len=max_seq_len,
        num_decodes=size,
        shared_prefixes=buffers.shared_prefixes[:num_groups] if num_groups else None,
    )
    return Batch(
        input_ids=buffers.input_ids[:, :size],
        position_ids=buffers.position_ids[:, :size],
        metadata=metadata,
        logits_indices=buffers.query_start_loc[:size].to(torch.int64),
        sampling=(),
    )
