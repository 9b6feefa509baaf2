"""What goes wrong with one row, as nobody foresaw it, is an error of that row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from echo_engine import EchoEngine, identify_echo

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
