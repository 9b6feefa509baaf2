"""Nobody is begun who will not have room, and who has room is begun."""

from __future__ import annotations

from schedulers import make_scheduler, make_sequence, planned, run_step

from infer.engine.sequence import Sequence


def run_all(scheduler, sequences):
    for sequence in sequences:
        scheduler.add(sequence)
    num_steps = 0
    while scheduler.has_unfinished():
        run_step(scheduler)
        num_steps += 1
    return num_steps


def test_sequence_waits_where_those_that_run_will_need_the_room():
    scheduler = make_scheduler(8, 4, enable_admission_control=True)
    first, second = make_sequence(8, max_tokens=16), make_sequence(8, max_tokens=16)
    scheduler.add(first)
    scheduler.add(second)
    # Both prompts would fit: four blocks of eight. With their answers they need twelve.
    assert planned(run_step(scheduler)) == {first: 8}
    while first.status.name == "RUNNING":
        assert list(planned(run_step(scheduler))) == [first]
    assert planned(run_step(scheduler)) == {second: 8}
    assert scheduler.counters.num_preemptions == 0


def test_sequences_that_will_fit_are_begun_together():
    scheduler = make_scheduler(13, 4, enable_admission_control=True)
    first, second = make_sequence(8, max_tokens=16), make_sequence(8, max_tokens=16)
    scheduler.add(first)
    scheduler.add(second)
    assert planned(run_step(scheduler)) == {first: 8, second: 8}


def test_one_that_ends_soon_makes_room_for_one_that_grows_later():
    scheduler = make_scheduler(9, 4, enable_admission_control=True)
    ending, growing = make_sequence(16, max_tokens=2), make_sequence(4, max_tokens=24)
    scheduler.add(ending)
    scheduler.add(growing)
    # Their ends are not at one time: 18 and 28 tokens would be 12 blocks.
    assert planned(run_step(scheduler)) == {ending: 16, growing: 4}
    while scheduler.has_unfinished():
        run_step(scheduler)
    assert scheduler.counters.num_preemptions == 0


def test_shared_blocks_are_counted_once():
    prompt = list(range(32))
    scheduler = make_scheduler(16, 4, enable_admission_control=True)
    sequences = [make_sequence([*prompt, 100 + index], max_tokens=4) for index in range(4)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert planned(run_step(scheduler)) == {sequences[0]: 33, sequences[1]: 1, sequences[2]: 1, sequences[3]: 1}


def test_short_answers_let_more_be_begun_once_they_are_known_to_be_short():
    scheduler = make_scheduler(40, 4, max_num_seqs=16, enable_admission_control=True)

    def end_after_two_tokens():
        for sequence in list(scheduler.running):
            if len(sequence.output_token_ids) == 2:
                scheduler.finish(sequence)

    for _ in range(60):
        scheduler.add(make_sequence(4, max_tokens=64))
    widths = []
    while scheduler.has_unfinished():
        widths.append(len(planned(run_step(scheduler))))
        end_after_two_tokens()
    assert widths[0] == 2
    assert max(widths) >= 8


def test_a_higher_class_is_begun_at_the_cost_of_a_lower_one():
    scheduler = make_scheduler(4, 4, enable_admission_control=True, scheduling_policy="priority")
    low, high = make_sequence(12, priority=1), make_sequence(8, max_tokens=4, priority=0)
    scheduler.add(low)
    run_step(scheduler)
    scheduler.add(high)
    output = run_step(scheduler)
    assert list(output.preempted) == [low]
    assert planned(output) == {high: 8}


def test_those_of_one_class_are_looked_at_again_when_one_of_a_lower_gave_way():
    scheduler = make_scheduler(10, 4, enable_admission_control=True, scheduling_policy="priority")
    same, low = make_sequence(4, max_tokens=12, priority=0), make_sequence(15, max_tokens=4, priority=1)
    scheduler.add(same)
    scheduler.add(low)
    assert planned(run_step(scheduler)) == {same: 4, low: 15}
    first, second = (make_sequence(20, max_tokens=2, priority=0) for _ in range(2))
    scheduler.add(first)
    scheduler.add(second)
    output = run_step(scheduler)
    assert output.preempted == {low: first}
    assert planned(output) == {same: 1, first: 20}, "the two will need all the blocks"


def test_the_limit_of_an_answer_is_what_its_prompt_leaves_of_the_longest_sequence():
    request = make_sequence(30, max_tokens=100_000).request
    assert Sequence(request).max_output_tokens == 100_000
    assert Sequence(request, max_model_len=100).max_output_tokens == 70


def test_a_sequence_alone_is_begun_whatever_is_foreseen():
    scheduler = make_scheduler(4, 4, enable_admission_control=True)
    sequence = make_sequence(8, max_tokens=64)
    scheduler.add(sequence)
    assert planned(run_step(scheduler)) == {sequence: 8}
