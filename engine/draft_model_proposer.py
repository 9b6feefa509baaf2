"""Drafts of a smaller model, token by token, of all sequences at a time.

It has a cache and block tables of its own. What the target's blocks go through (a preemption, a copy, a stay elsewhere)
is nothing to it, its guesses need no room among them, and it computes only sequences that get drafts, once they do.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch.nn.functional as F

from infer.engine.batch import build_batch
from infer.engine.cached_prefix import CachedPrefix
from infer.engine.fitting import fit_model_len
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.model_runner import ModelRunner
from infer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from infer.engine.sequence import Sequence
from infer.engine.speculative import num_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Many

    from infer.engine.config import EngineConfig
    from infer.engine.network import Network
    from infer.engine.sampler import Sampler
    from infer.engine.sampling_row import SamplingRow


class DraftModelProposer:
    """Draws as the target will: by a row's own rules, with the row's own noise. So where the two models agree their
    draws do, at any temperature.

    Of every sequence it has one of its own, whose output is what is guessed.
    """

    def __init__(
        self,
        draft_model: Network,
        num_blocks: int,
        config: EngineConfig,
        sampler: Sampler,
        row_of: Callable[[Sequence], SamplingRow],
    ) -> None:
        self._draft_model = draft_model
        self._vocab_size: int = draft_model.config.vocab_size
        self._max_model_len, _ = fit_model_len(replace(config, max_model_len=None), draft_model.config)
        self._token_budget = config.max_num_batched_tokens
        self._sampler = sampler
        self._row_of = row_of
        self._manager = KVCacheManager(
            num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self._runner = ModelRunner(draft_model.model, draft_model.allocate_kv_cache(num_blocks))
        self._own: dict[Sequence, Sequence] = {}

    def propose(self, sequences: Many[Sequence], num_tokens: int) -> list[list[int]]:
        """One that is far behind catches up within the budget of a step, and gets no drafts until it has."""
        for sequence in self._own.keys() - set(sequences):
            self._manager.free(self._own.pop(sequence))
        targets = {self._follow(sequence): sequence for sequence in sequences}
        chunks = self._catch_up(targets, num_tokens)
        while chunks:
            drawn = self._draw(chunks, targets)
            chunks = {
                own: 1
                for own in drawn
                if len(own.output_token_ids) < num_tokens and self._manager.allocate_draft_slots(own, 0, 1)
            }
        # Nobody asks what has become of the blocks.
        self._manager.pool.take_events()
        return [own.output_token_ids[:num_tokens] for own in targets]

    def reset(self) -> None:
        self._own.clear()
        self._manager.reset()
        self._manager.pool.take_events()

    def _follow(self, sequence: Sequence) -> Sequence:
        """Our own one, with the same tokens; what was guessed right need not be computed again."""
        own = self._own.get(sequence)
        if own is None:
            own = self._own[sequence] = Sequence(sequence.request)
        elif own.output_token_ids and own.num_tokens - len(own.output_token_ids) == sequence.num_tokens:
            # It did not get its turn: what was guessed still stands.
            return own
        guessed, begin = own.output_token_ids, own.num_tokens - len(own.output_token_ids)
        num_right = num_equal(guessed, sequence.token_ids[begin:])
        own.token_ids[begin + num_right :] = sequence.token_ids[begin + num_right :]
        guessed.clear()
        own.num_computed_tokens = min(own.num_computed_tokens, begin + num_right, own.num_tokens - 1)
        self._manager.trim(own)
        return own

    def _catch_up(self, targets: Mapping[Sequence, Sequence], num_tokens: int) -> dict[Sequence, int]:
        """How many tokens of whom are computed first."""
        left = self._token_budget
        chunks = {}
        for own in targets:
            if own.output_token_ids or own.num_tokens + num_tokens > self._max_model_len:
                continue
            prefix = CachedPrefix() if own.block_table else self._manager.find_cached_prefix(own)
            num_new_tokens = min(own.num_tokens - max(own.num_computed_tokens, prefix.num_tokens), left)
            if num_new_tokens and self._manager.allocate_slots(own, num_new_tokens, prefix):
                chunks[own] = num_new_tokens
                left -= num_new_tokens
        return chunks

    def _draw(self, chunks: Mapping[Sequence, int], targets: Mapping[Sequence, Sequence]) -> list[Sequence]:
        """Compute `chunks`. Returns those that got a token."""
        output = SchedulerOutput(tuple(ScheduledSequence(own, num_tokens) for own, num_tokens in chunks.items()))
        batch = build_batch(output, self._manager.block_size, self._draft_model.device)
        # Embeddings are padded, to one size in a small model and to another in a large one.
        batch.input_ids.clamp_(max=self._vocab_size - 1)
        logits = self._runner.execute(batch)
        for own, num_tokens in chunks.items():
            own.num_computed_tokens += num_tokens
        if not batch.sampling:
            return []
        num_missing = self._sampler.vocab_size - self._vocab_size
        rows = [self._row_of(targets[own]).ahead(own.output_token_ids)[-1] for own in batch.sampling]
        sampled = self._sampler.sample(F.pad(logits, (0, num_missing), value=-math.inf), rows)
        drawn = [
            (own, token.token_id) for own, token in zip(batch.sampling, sampled, strict=True) if not token.error_code
        ]
        for own, token_id in drawn:
            own.append(token_id)
        return [own for own, _ in drawn]
