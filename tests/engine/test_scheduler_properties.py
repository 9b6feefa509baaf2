"""Whatever arrives and whatever the sizes: invariants after every step, every request ends, every block comes back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from schedulers import ShadowCache, make_scheduler, make_sequence, run_step

from infer.engine.scheduler import Pause
from infer.engine.sequence import SequenceStatus

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)
requests = st.lists(st.tuples(prompts, st.integers(1, 6), st.integers(0, 8), st.integers(0, 2)), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(
    requests=requests,
    block_size=st.integers(1, 5),
    extra_blocks=st.integers(0, 8),
    max_num_batched_tokens=st.integers(1, 24),
    max_num_seqs=st.integers(1, 5),
    threshold=st.integers(0, 5),
    caching=st.booleans(),
    abort_at=st.integers(0, 20),
    policy=st.sampled_from(["fcfs", "priority"]),
    victim=st.sampled_from(["least-waste", "last"]),
    limits=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    pause_at=st.integers(0, 20),
    pause=st.sampled_from(Pause),
    admission=st.booleans(),
    drafts=st.lists(st.integers(0, 2), max_size=5),
)
def test_every_request_ends_and_every_block_comes_back(
    requests,
    block_size,
    extra_blocks,
    max_num_batched_tokens,
    max_num_seqs,
    threshold,
    caching,
    abort_at,
    policy,
    victim,
    limits,
    pause_at,
    pause,
    admission,
    drafts,
):
    longest = max(len(prompt) + max_tokens for prompt, max_tokens, *_ in requests)
    scheduler = make_scheduler(
        -(-longest // block_size) + extra_blocks,
        block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=threshold,
        enable_prefix_caching=caching,
        scheduling_policy=policy,
        enable_admission_control=admission,
        preemption_victim=victim,
        max_num_partial_prefills=limits[0],
        max_long_partial_prefills=limits[1] if threshold else 0,
    )
    arrivals = sorted(
        (
            (step, make_sequence(prompt, max_tokens=max_tokens, priority=priority))
            for prompt, max_tokens, step, priority in requests
        ),
        key=lambda arrival: arrival[0],
    )
    sequences = [sequence for _, sequence in arrivals]
    shadow = ShadowCache(block_size)
    step = 0
    while arrivals or scheduler.has_unfinished():
        while arrivals and arrivals[0][0] <= step:
            scheduler.add(arrivals.pop(0)[1])
        if step == abort_at and sequences[0].status is not SequenceStatus.FINISHED and sequences[0].block_table:
            scheduler.abort(sequences[0])
        scheduler.pause = pause if step == pause_at else Pause.NOTHING
        if scheduler.has_unfinished():
            output = run_step(
                scheduler, lambda sequence: len(sequence.output_token_ids) % 3, shadow, lambda _: list(drafts)
            )
            is_paused = scheduler.pause is not Pause.NOTHING
            assert output.num_scheduled_tokens > 0 or is_paused, "an unfinished request and nothing scheduled"
        step += 1
        assert step < 5000, "it does not end"
    pool = scheduler.kv_cache_manager.pool
    assert pool.num_free_blocks == pool.num_blocks
    assert all(sequence.status is SequenceStatus.FINISHED for sequence in sequences)
