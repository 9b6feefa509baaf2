from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from infer.cli.report import FailureCount, FailureTally, RunSeconds, RunSummary, print_report

SUMMARY = RunSummary(
    rows=5_000,
    rows_failed=0,
    rows_resumed=0,
    prompt_tokens=812_345,
    completion_tokens=154_000,
    cached_tokens=332_345,
    preemptions=0,
    tokens_wasted=0,
    seconds=RunSeconds(load=2.1, run=190.23456, total=192.5),
    output="reviews.infer.parquet",
    exit_code=0,
)


def printed(summary: RunSummary, failures: list[FailureCount], *, is_terminal: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=60, force_terminal=is_terminal, color_system=None, markup=False, highlight=False
    )
    with console.capture() as capture:
        print_report(console, summary, failures)
    return capture.get()


def test_json_is_the_documented_object() -> None:
    tiers = {"device": 300_000, "disk": 32_345}
    summary = replace(
        SUMMARY,
        rows_failed=3,
        preemptions=7,
        swaps=5,
        tokens_wasted=100,
        exit_code=3,
        cached_tokens_by_tier=tiers,
        rows_deduplicated=9,
        phases={"read": 0.12345},
    )
    assert summary.to_json() == (
        '{"rows": 5000, "rows_failed": 3, "rows_resumed": 0, "prompt_tokens": 812345, "completion_tokens": 154000, '
        '"cached_tokens": 332345, "preemptions": 7, "tokens_wasted": 100, '
        '"seconds": {"load": 2.1, "run": 190.235, "total": 192.5}, "output": "reviews.infer.parquet", "exit_code": 3, '
        '"swaps": 5, "cached_tokens_by_tier": {"device": 300000, "disk": 32345}, "rows_deduplicated": 9, '
        '"phases": {"read": 0.123}}'
    )


def test_json_holds_an_output_name_that_is_not_unicode() -> None:
    summary = replace(SUMMARY, output="caf\udce9.parquet")
    assert json.loads(summary.to_json().encode("ascii"))["output"] == "caf\udce9.parquet"


def test_report_of_a_clean_run() -> None:
    assert printed(SUMMARY, []) == (
        "done  5,000 rows in 03:12  ->  reviews.infer.parquet\n"
        "  prompt       812,345 tokens  4,270 tok/s  40% from the prefix cache\n"
        "  generated    154,000 tokens    810 tok/s  26.3 rows/s\n"
        "  time                190.2 s               and 2.1 s to load the model\n"
    )


def test_report_tells_of_swaps_and_of_tiers_behind_the_device() -> None:
    summary = replace(
        SUMMARY, preemptions=7, swaps=5, tokens_wasted=9, cached_tokens_by_tier={"device": 300_000, "disk": 32_345}
    )
    text = printed(summary, [])
    assert "40% from the prefix cache, 3% from disk\n" in text
    assert "5 of them swapped, 9 tokens computed again\n" in text


def test_report_tells_of_rows_that_were_computed_once_for_several() -> None:
    text = printed(replace(SUMMARY, rows_deduplicated=1_500), [])
    assert "\n  duplicates       1,500 rows               with the answer of an equal row\n" in text
    assert "duplicates" not in printed(SUMMARY, [])


def test_report_counts_failures_with_an_example_and_says_what_to_do() -> None:
    tally = FailureTally()
    tally.add("template_error", "in.jsonl:9: [/foo] \x1b]0;x\x07 roles must alternate")
    for line in range(1_200):
        tally.add("prompt_too_long", f"in.jsonl:{line + 20}: prompt has more tokens than max_model_len: 8,192")
    summary = replace(SUMMARY, rows_failed=1_201, rows_resumed=2_000, preemptions=12, tokens_wasted=70_000)
    assert printed(summary, tally.counts()) == (
        "done  5,000 rows in 03:12, 2,000 of them in an earlier run, 1,201 failed  ->  reviews.infer.parquet\n"
        "  prompt       812,345 tokens  4,270 tok/s  40% from the prefix cache\n"
        "  generated    154,000 tokens    810 tok/s  15.8 rows/s\n"
        "  time                190.2 s               and 2.1 s to load the model\n"
        "  preemptions              12               70,000 tokens computed again\n"
        "  1,200 prompt_too_long  first: in.jsonl:20: prompt has more tokens than max_model_len: 8,192\n"
        "      1 template_error   in.jsonl:9: [/foo] \\x1b]0;x\\x07 roles must alternate\n"
        "hint: failed rows are in the output too: error_code and error say why\n"
        "hint: 9% of the work was done twice for want of KV blocks; lower --max-num-seqs\n"
    )


def test_report_cuts_examples_to_a_terminal_and_nothing_else() -> None:
    summary = replace(SUMMARY, rows_failed=1, output="results/" + "a" * 60 + ".parquet")
    lines = printed(summary, [FailureCount("internal", 1, "wide " * 20)], is_terminal=True).splitlines()
    assert lines[0] == f"done  5,000 rows in 03:12, 1 failed  ->  results/{'a' * 60}.parquet"
    assert lines[4] == "  1 internal  wide wide wide wide wide wide wide wide wide …"


def test_report_of_a_stopped_run_names_no_output() -> None:
    summary = RunSummary(0, 0, 0, 0, 0, 0, 0, 0, RunSeconds(0.0, 0.0, 0.0), None, 130)
    assert printed(summary, []) == (
        "stopped  0 rows in 00:00\n"
        "  prompt       0 tokens  0 tok/s  0% from the prefix cache\n"
        "  generated    0 tokens  0 tok/s  0.0 rows/s\n"
        "  time            0.0 s           and 0.0 s to load the model\n"
    )


def test_tally_keeps_the_first_example_and_sorts_by_frequency() -> None:
    tally = FailureTally()
    for code, message in [("b", "first"), ("a", "one"), ("c", "x"), ("a", "two"), ("b", "second")]:
        tally.add(code, message)
    assert tally.counts() == [FailureCount("b", 2, "first"), FailureCount("a", 2, "one"), FailureCount("c", 1, "x")]
