"""What goes wrong with one row, as nobody foresaw it, is an error of that row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from echo_engine import EchoEngine, identify_echo
from job_flags import run_flags

from infer.cli.config import JobConfig
from infer.cli.job import run_job
from infer.cli.prompt import PromptSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infer.engine.request import Completion, Request


def run(tmp_path: Path, texts: Sequence[str], engine: EchoEngine) -> list[tuple[object, ...]]:
    """Response, code and message of each row; the counts of the summary fit them."""
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    config = JobConfig(
        inputs=(str(tmp_path / "in.parquet"),),
        output=str(tmp_path / "out.parquet"),
        prompt=PromptSpec(prompt_column="text"),
        seed=0,
    )
    summary = run_job(config, lambda _config, _say: engine, identify_echo)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["_row"].to_pylist() == list(range(len(texts)))
    rows = list(zip(*(table[name].to_pylist() for name in ("response", "error_code", "error")), strict=True))
    assert (summary.rows, summary.rows_failed) == (len(texts), sum(code is not None for _, code, _ in rows))
    return rows


def test_prompt_that_breaks_the_tokenizer_costs_its_row(tmp_path):
    engine = EchoEngine()
    real, batches = engine.tokenizer.encode_batch, []

    def encode_batch(texts: Sequence[Any], **settings: Any) -> Any:
        batches.append(len(texts))
        if any("boom" in str(text) for text in texts):
            raise OverflowError("too much\nfor me")
        return real(texts, **settings)

    engine.tokenizer.encode_batch = encode_batch  # type: ignore[method-assign]
    texts = ["boom" if number == 70 else f"row {number}" for number in range(200)]
    rows = run(tmp_path, texts, engine)
    assert rows == [
        (None, "internal", "the model's tokenizer fails at the text: OverflowError: too much\nfor me")
        if text == "boom"
        else (text, None, None)
        for text in texts
    ]
    # Row by row where the batch fails, and there only.
    assert batches == [64, 64, *[1] * 64, 64, 8]


def test_answer_of_which_no_record_can_be_made_costs_its_row(tmp_path):
    class Broken(EchoEngine):
        def _complete(self, request: Request, token_ids: tuple[int, ...]) -> Completion:
            completion = super()._complete(request, token_ids)
            return replace(completion, choices=()) if request.request_id == 1 else completion

    rows = run(tmp_path, ["a", "b", "c"], Broken())
    assert rows == [("a", None, None), (None, "internal", "IndexError: list index out of range"), ("c", None, None)]


def test_rows_tried_twice_stand_in_their_place(tmp_path):
    engine = EchoEngine(failures={0: ["oom"], 2: ["timeout", "timeout"]})
    rows = run(tmp_path, ["a", "b", "c"], engine)
    assert rows == [("a", None, None), ("b", None, None), (None, "timeout", "timeout")]


class Noting(EchoEngine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []

    def add_request(self, request: Request) -> None:
        self.requests.append(request)
        super().add_request(request)


def seeds(tmp_path: Path, texts: Sequence[str], *flags: str) -> list[tuple[str, int]]:
    """What the engine was asked, and with which seeds; every row has its answer."""
    source, output, engine = tmp_path / "in.parquet", tmp_path / "out.parquet", Noting()
    pq.write_table(pa.table({"text": texts}), source)
    fixed = ("-o", str(output), "--overwrite", "--restart", "--temperature", "1", "--seed", "5")
    summary = run_flags(str(source), *fixed, *flags, engine=lambda: engine)
    assert pq.read_table(output)["response"].to_pylist() == list(texts)
    assert summary.rows_deduplicated == len(texts) - len(engine.requests)
    return sorted((engine.tokenizer.decode(each.prompt_token_ids), each.seed) for each in engine.requests)


def test_seeds_by_row_draw_equal_rows_apart(tmp_path):
    found = seeds(tmp_path, ["a", "b", "a"])
    assert [text for text, _ in found] == ["a", "a", "b"]
    assert len({seed for _, seed in found}) == 3


def test_seeds_by_content_draw_equal_rows_once_and_do_not_know_their_order(tmp_path):
    found = seeds(tmp_path, ["a", "b", "a"], "--seed-by", "content")
    assert [text for text, _ in found] == ["a", "b"]
    assert seeds(tmp_path, ["b", "c", "b", "a"], "--seed-by", "content")[:2] == found
    assert found[0][1] != found[1][1]
    assert seeds(tmp_path, ["a", "b"], "--seed-by", "content", "--seed", "6") != found


def test_seeds_by_content_are_the_same_where_nothing_is_planned(tmp_path):
    planned = seeds(tmp_path, ["a", "b", "a"], "--seed-by", "content")
    assert seeds(tmp_path, ["a", "b", "a"], "--seed-by", "content", "--order", "input") == [planned[0], *planned]


def test_row_with_the_answer_of_an_equal_one_has_computed_nothing(tmp_path):
    pq.write_table(pa.table({"text": ["a b c d", "x", "a b c d"]}), tmp_path / "in.parquet")
    summary = run_flags(str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out.parquet"))
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert rows[0]["cached_tokens"] == rows[0]["prompt_tokens"] // 2
    assert rows[2] == rows[0] | {"cached_tokens": rows[0]["prompt_tokens"], "_row": 2}
    assert summary.cached_tokens == sum(row["cached_tokens"] for row in rows)
    assert summary.rows_deduplicated == 1
