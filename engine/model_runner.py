"""ModelRunner: one plan in, the logits of the tokens that sample out. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.engine.attention import PagedAttention
from infer.engine.decode_graphs import DecodeGraphs, record_cuda_graph
from infer.engine.host_cache import HostCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.batch import Batch
    from infer.engine.kv_cache import KVCache
    from infer.engine.scheduler_output import SchedulerOutput


class ModelRunner:
    """Owns the network and the tensors of the KV cache."""

    def __init__(self, model: torch.nn.Module, kv_cache: KVCache, host_cache: HostCache | None = None) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._host_cache = host_cache or HostCache(kv_cache, 0)
        self.decode_graphs: DecodeGraphs | None = None
        """Made of this runner's `forward`, where steps are recorded."""

    def copy_before(self, output: SchedulerOutput) -> None:
        """Make the copies that a step relies on: what it writes over goes to host memory first."""
        self._host_cache.copy_out(output.transfers.out)
        self._kv_cache.copy_blocks(output.transfers.within)
        self._host_cache.copy_in(output.transfers.back)

    def copy_after(self, output: SchedulerOutput) -> None:
        """Make the copies of what a step has filled."""
        self._host_cache.copy_out(output.transfers.filled)

    def release_host_cache(self) -> None:
        """Give its memory back; nobody may need what it holds."""
        self._host_cache.release()

    def record_decodes(self, max_num_seqs: int, max_blocks: int, report: Callable[[str], None]) -> None:
        """Run decode steps as CUDA graphs from now on. `max_blocks` is the most that a sequence can have."""
        record = record_cuda_graph(torch.cuda.graph_pool_handle())
        self.decode_graphs = DecodeGraphs(
            self.forward, record, report, max_num_seqs=max_num_seqs, max_blocks=max_blocks
        )

    @torch.inference_mode()
    def execute(self, batch: Batch) -> torch.Tensor:
        """Fill the step's slots of the cache. Returns logits `[num_logits, vocab_size]` in the model's dtype."""
        logits = None if self.decode_graphs is None else self.decode_graphs.execute(batch)
        return self.forward(batch) if logits is None else logits

    def forward(self, batch: Batch) -> torch.Tensor:
        """`execute`, kernel by kernel."""
        output = self._model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            logits_to_keep=batch.logits_indices,
            attention_context=PagedAttention(self._kv_cache, batch.metadata, batch.logits_indices),
        )
        logits: torch.Tensor = output.logits[0]
        return logits
