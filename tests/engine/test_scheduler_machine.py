"""Anything at any time: add, step, fork, abort, pause. And all that can happen to three requests on four blocks."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedulers import ShadowCache, choose, make_scheduler, make_sequence, run_step

from infer.engine.scheduler import Pause
from infer.engine.sequence import SequenceStatus

MAX_PROMPT, MAX_TOKENS = 12, 6


class SchedulerMachine(RuleBasedStateMachine):
    """A scheduler of any settings; what its steps would read is checked against what they would have written."""

    @initialize(
        block_size=st.integers(1, 5),
        extra_blocks=st.integers(0, 8),
        window=st.sampled_from([0, 1, 4, 7]),
        num_host_blocks=st.integers(0, 20),
        config=st.fixed_dictionaries(
            {
                "max_num_batched_tokens": st.integers(1, 24),
                "max_num_seqs": st.integers(1, 5),
                "enable_prefix_caching": st.booleans(),
                "enable_admission_control": st.booleans(),
                "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
                "preemption_mode": st.sampled_from(["auto", "recompute", "swap"]),
                "enable_host_cache": st.booleans(),
                "preemption_victim": st.sampled_from(["least-waste", "last"]),
                "long_prefill_token_threshold": st.integers(1, 20),
                "max_num_partial_prefills": st.integers(0, 2),
                "max_long_partial_prefills": st.integers(0, 2),
                "max_num_draft_tokens": st.integers(1, 8),
            }
        ),
    )
    def make(self, block_size, extra_blocks, window, num_host_blocks, config):
        num_blocks = -(-(MAX_PROMPT + MAX_TOKENS) // block_size) + extra_blocks
        config["enable_host_cache"] &= config["enable_prefix_caching"]
        self.scheduler = make_scheduler(
            num_blocks, block_size, window=window, num_host_blocks=num_host_blocks, **config
        )
        self.shadow = ShadowCache(block_size, window)
        self.unfinished = []
        self.num_forks = 0

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=MAX_PROMPT),
        max_tokens=st.integers(1, MAX_TOKENS),
        priority=st.integers(0, 2),
        num_branches=st.integers(1, 3),
    )
    def add(self, prompt, max_tokens, priority, num_branches):
        sequence = make_sequence(prompt, max_tokens=max_tokens, priority=priority)
        sequence.num_branches = num_branches
        self.scheduler.add(sequence)
        self.unfinished.append(sequence)

    @precondition(lambda self: self.unfinished)
    @rule(
        token=st.integers(0, 2),
        awaiting=st.sets(st.integers(0, 3)),
        drafts=st.lists(st.integers(0, 2), max_size=4),
    )
    def step(self, token, awaiting, drafts):
        is_stuck = all(each.awaits_choice for each in self.unfinished)
        output = run_step(
            self.scheduler,
            lambda each: None if each.arrival % 4 in awaiting else token,
            self.shadow,
            lambda each: [] if each.arrival % 4 in awaiting else list(drafts),
        )
        assert output.num_scheduled_tokens > 0 or is_stuck or self.scheduler.pause is not Pause.NOTHING
        self.forget_finished()

    @rule(token=st.integers(0, 2))
    def choose(self, token):
        for sequence in self.unfinished:
            if sequence.awaits_choice:
                choose(self.scheduler, sequence, token)
        self.forget_finished()

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def fork(self, data):
        sequence = self.unfinished[data.draw(st.integers(0, len(self.unfinished) - 1))]
        self.num_forks += 1
        child = self.scheduler.fork(sequence, self.num_forks)
        child.awaits_choice = sequence.awaits_choice
        sequence.num_branches = max(1, sequence.num_branches - 1)
        self.unfinished.append(child)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def abort(self, data):
        sequence = self.unfinished.pop(data.draw(st.integers(0, len(self.unfinished) - 1)))
        self.scheduler.abort(sequence)

    @rule(pause=st.sampled_from(Pause))
    def set_pause(self, pause):
        self.scheduler.pause = pause

    @invariant()
    def is_consistent(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def forget_finished(self):
        self.unfinished = [each for each in self.unfinished if each.status is not SequenceStatus.FINISHED]

    def teardown(self):
        """What is left comes to its end, and gives everything back."""
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.pause = Pause.NOTHING
        for _ in range(5000):
            if not self.scheduler.has_unfinished():
                break
            self.choose(1)
            run_step(self.scheduler, shadow=self.shadow)
        pool = self.scheduler.kv_cache_manager.pool
        assert not self.scheduler.has_unfinished()
        assert pool.num_free_blocks == pool.num_blocks


class TestScheduler(SchedulerMachine.TestCase):
    settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@pytest.mark.slow
@pytest.mark.reliability
class TestSchedulerLong(SchedulerMachine.TestCase):
    settings = settings(max_examples=2000, stateful_step_count=60, deadline=None)


SHAPES = [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3), (5, 3)]
"""Prompts and answers; the greatest fills the four blocks alone."""
ARRIVALS = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 4)]
"""Steps before which the second and the third request come."""


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared prefixes", "no shared prefixes"])
@pytest.mark.parametrize("victim", ["least-waste", "last"])
def test_all_interleavings_of_three_requests_on_four_blocks_of_two(is_shared, victim):
    for shapes, arrivals, has_foresight in product(product(SHAPES, repeat=3), ARRIVALS, (False, True)):
        scheduler = make_scheduler(4, 2, enable_admission_control=has_foresight, preemption_victim=victim)
        shadow = ShadowCache(2)
        sequences = [
            make_sequence(list(range(length)) if is_shared else length, max_tokens=max_tokens)
            for length, max_tokens in shapes
        ]
        pending = list(zip((0, *arrivals), sequences, strict=True))
        step = 0
        while pending or scheduler.has_unfinished():
            while pending and pending[0][0] <= step:
                scheduler.add(pending.pop(0)[1])
            if scheduler.has_unfinished():
                assert run_step(scheduler, lambda sequence: sequence.num_tokens, shadow).scheduled, (shapes, arrivals)
            step += 1
            assert step < 100, (shapes, arrivals)
        assert scheduler.kv_cache_manager.pool.num_free_blocks == 4
