"""Waiting sequences come out in the order of their policy, also those that were preempted."""

from __future__ import annotations

import random

import pytest
from schedulers import make_sequence

from infer.engine.request_queue import FCFSQueue, PriorityQueue


def arrived(*priorities: int):
    sequences = [make_sequence(1, priority=priority) for priority in priorities]
    for arrival, sequence in enumerate(sequences):
        sequence.arrival = arrival
    return sequences


def test_first_come_is_first_served():
    a, b, c = arrived(9, 0, 5)
    queue = FCFSQueue()
    for sequence in (a, b, c):
        queue.add(sequence)
    queue.remove(b)
    assert list(queue) == [a, c]


def test_smaller_priority_goes_first_and_equals_by_arrival():
    a, b, c, d = arrived(1, 0, 1, -3)
    queue = PriorityQueue()
    for sequence in (a, b, c, d):
        queue.add(sequence)
    assert list(queue) == [d, b, a, c]
    queue.remove(d)
    queue.remove(a)
    assert list(queue) == [b, c]
    assert len(queue) == 2


@pytest.mark.parametrize("queue_class", [FCFSQueue, PriorityQueue])
def test_preempted_go_back_to_their_places_in_whatever_order(queue_class):
    sequences = arrived(*[0] * 6)
    queue = queue_class()
    for sequence in sequences:
        queue.add(sequence)
    taken = [sequences[0], sequences[1], sequences[3]]
    for sequence in taken:
        queue.remove(sequence)
    for sequence in random.Random(0).sample(taken, 3):
        queue.put_back(sequence)
    assert list(queue) == sequences


def test_empty_queue_has_nothing_left_of_its_priorities():
    (sequence,) = arrived(4)
    queue = PriorityQueue()
    queue.add(sequence)
    queue.remove(sequence)
    assert (list(queue), len(queue), queue._queues, queue._priorities) == ([], 0, {}, [])
