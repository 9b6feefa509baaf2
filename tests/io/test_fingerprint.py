"""What differs between two jobs is named, and shown where it differs."""

from __future__ import annotations

import pytest

from infer.io.fingerprint import Difference, Fingerprint

SAVED = Fingerprint({"rows": 3, "--system": None, "--stop": ["a"]}, {"torch": "2.0"})


def test_fingerprint_of_the_same_job_has_no_changes() -> None:
    same = Fingerprint({"--stop": ["a"], "--system": None, "rows": 3}, {"torch": "2.0"})
    assert SAVED.hard_changes(same) == []
    assert SAVED.soft_changes(same) == []
    # In whatever order the fields stand.
    assert same.sha256 == SAVED.sha256


def test_fingerprint_names_what_changed() -> None:
    now = Fingerprint({"rows": 4, "--system": "x", "--stop": ["a"]}, {"torch": "2.1"})
    assert SAVED.hard_changes(now) == [Difference("rows", 3, 4), Difference("--system", None, "x")]
    assert SAVED.soft_changes(now) == [Difference("torch", "2.0", "2.1")]


def test_fingerprint_tells_fields_that_one_of_the_two_does_not_have() -> None:
    now = Fingerprint({"rows": 3, "--new": 1}, {})
    assert SAVED.hard_changes(now) == [Difference("--stop", ["a"], None), Difference("--new", None, 1)]
    assert SAVED.soft_changes(now) == [Difference("torch", "2.0", None)]
    # None is as good as not there.
    assert Fingerprint({}, {}).hard_changes(Fingerprint({"--new": None}, {})) == []


def test_fingerprint_passes_over_what_is_not_known_yet() -> None:
    now = Fingerprint({"--system": None, "--stop": ["a"]}, {})
    assert SAVED.hard_changes(now, unknown=["rows"]) == []
    assert SAVED.hard_changes(now, unknown=["torch"]) == [Difference("rows", 3, None)]


def test_digest_is_of_the_hard_fields_only() -> None:
    assert Fingerprint(SAVED.hard, {}).sha256 == SAVED.sha256
    assert Fingerprint({**SAVED.hard, "rows": 4}, SAVED.soft).sha256 != SAVED.sha256
    assert len(SAVED.sha256) == 64
    # What no UTF-8 and no 64 bits can hold.
    assert Fingerprint({"--system": "\udcff", "--seed": 2**70}, {}).sha256 != SAVED.sha256


@pytest.mark.parametrize(
    ("saved", "now", "text"),
    [
        (None, "x", "f: none -> x"),
        (3, 4.5, "f: 3 -> 4.5"),
        (["a"], ["b"], 'f: ["a"] -> ["b"]'),
        ("", "x", "f: (empty) -> x"),
        (2**70, {"é": "\udcff"}, f'f: {2**70} -> {{"é": "\udcff"}}'),
        ("a" * 40, "b" * 41, f"f: {'a' * 40} -> {'b' * 40}..."),
        # From a little before the first character that differs.
        ("a" * 50 + "b", "a" * 50 + "c", f"f: ...{'a' * 20}b -> ...{'a' * 20}c"),
        ("a" * 20 + "b", "a" * 20 + "c", f"f: {'a' * 20}b -> {'a' * 20}c"),
        ("a" * 21 + "b" * 100, "a" * 21 + "c", f"f: ...{'a' * 20}{'b' * 20}... -> ...{'a' * 20}c"),
        # One goes on where the other ends.
        ("a" * 100, "a" * 100 + "b", f"f: ...{'a' * 20} -> ...{'a' * 20}b"),
        ("a" * 100, None, f"f: {'a' * 40}... -> none"),
    ],
)
def test_difference_is_shown_where_it_is(saved: object, now: object, text: str) -> None:
    assert str(Difference("f", saved, now)) == text
