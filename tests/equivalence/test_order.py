"""The order in which rows run, and that equal ones run once, changes no answer."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from job_flags import config_of
from tiny_models import SENTENCES, save_model

from infer.cli.job import run_job

if TYPE_CHECKING:
    from pathlib import Path

    from infer.cli.report import RunSummary


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("llama"), "llama"))


def run(model: str, source: Path, *flags: str) -> tuple[list[dict[str, Any]], RunSummary]:
    output = source.with_suffix(".parquet")
    fixed = ("--model", model, "--dtype", "float32", "--raw", "--overwrite", "--seed", "3", "--ignore-eos")
    summary = run_job(config_of(str(source), "-o", str(output), *fixed, *flags))
    rows = pq.read_table(output).to_pylist()
    assert [row["error"] for row in rows] == [None] * len(rows)
    return rows, summary


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows of five prefixes, shuffled, a third of them twice; their answers differ in length."""
    generator = random.Random(0)
    pairs = [(prefix, other) for prefix in SENTENCES for other in SENTENCES]
    texts = [f"{prefix * 3} {other[: generator.randrange(1, 20)]}" for prefix, other in pairs]
    rows = [{"text": text, "max_tokens": generator.randrange(1, 9)} for text in texts]
    rows += generator.sample(rows, 9)
    generator.shuffle(rows)
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


TIGHT = ("--num-blocks", "60", "--block-size", "4", "--max-num-seqs", "4", "--max-num-batched-tokens", "50")


@pytest.mark.parametrize("sampling", [(), ("--temperature", "1", "--seed-by", "content")])
def test_planned_rows_have_the_answers_that_they_have_one_by_one(model: str, source: Path, sampling: tuple[str, ...]):
    flags = ("--row-params", *TIGHT, *sampling)
    planned, with_plan = run(model, source, *flags)
    in_order, without = run(model, source, *flags, "--order", "input")
    alone, _ = run(model, source, *flags, "--order", "input", "--no-enable-prefix-caching", "--max-num-seqs", "1")
    names = ("text", "response", "prompt_tokens", "completion_tokens", "finish_reason")
    answers = [[{name: row[name] for name in names} for row in rows] for rows in (planned, in_order, alone)]
    assert answers[0] == answers[1] == answers[2]
    assert (with_plan.rows_deduplicated, without.rows_deduplicated) == (9, 0)
    assert with_plan.cached_tokens > 1.5 * without.cached_tokens > 0
