"""Nobody is begun who will not have room, and who has room is begun."""

from __future__ import annotations

from schedulers import make_scheduler, make_sequence, planned, run_step


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


def test_a_sequence_alone_is_begun_whatever_is_foreseen():
    scheduler = make_scheduler(4, 4, enable_admission_control=True)
    sequence = make_sequence(8, max_tokens=64)
    scheduler.add(sequence)
    assert planned(run_step(scheduler)) == {sequence: 8}
