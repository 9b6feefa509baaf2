"""Results read back from an output are what the segments held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from infer.io.errors import VerificationError
from infer.io.output import open_output
from infer.io.read_back import read_results
from infer.io.reader import open_source
from infer.io.schema import OutputSchema, output_schema

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN = pa.struct([("token", pa.string()), ("logprob", pa.float32()), ("top", pa.list_(pa.float32()))])
RESULTS = pa.schema(
    [
        ("response", pa.string()),
        ("scores", pa.list_(pa.float32())),
        ("prompt_tokens", pa.int32()),
        ("error_code", pa.string()),
        ("logprobs", pa.list_(_TOKEN)),
        ("_row", pa.int64()),
    ]
)


def results(first: int, num_rows: int) -> pa.Table:
    rows = range(first, first + num_rows)
    logprobs = [{"token": "\ud7ff\u2028x", "logprob": 0.1, "top": [1e-30, -3.5]}]
    return pa.table(
        {
            "response": [None if row % 3 == 0 else f"answer {row}\n" for row in rows],
            "scores": [[0.1 * row, -1.0] for row in rows],
            "prompt_tokens": [None if row % 3 == 0 else 2**31 - 1 for row in rows],
            "error_code": ["oom" if row % 3 == 0 else None for row in rows],
            "logprobs": [None if row % 3 == 0 else logprobs * (row % 4) for row in rows],
            "_row": list(rows),
        },
        schema=RESULTS,
    )


def write(tmp_path: Path, name: str, prefix: str, num_rows: int = 3000) -> OutputSchema:
    lines = [f'{{"id": {row}, "llm": {{"response": "kept {row}"}}}}\n' for row in range(num_rows)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    source = open_source([str(tmp_path / "in.jsonl")])
    schema = output_schema(source.schema, None, RESULTS, prefix)
    output = open_output(str(tmp_path / name) + ("/" if name == "out" else ""))
    rows = source.rows(schema.kept.names)
    steps = range(0, num_rows, 500)
    batches = (
        ([next(rows) for _ in range(500)], results(first, 500).combine_chunks().to_batches()[0]) for first in steps
    )
    aside = output.aside("1d")
    output.write(aside, batches, schema, {})
    output.publish(aside, overwrite=False)
    return schema


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl", "out"])
# A kept struct `llm` with a field `response` is what Parquet takes `llm.response` for.
@pytest.mark.parametrize("prefix", ["", "llm.", "_"])
def test_results_come_back_as_they_were_written(tmp_path: Path, name: str, prefix: str) -> None:
    schema = write(tmp_path, name, prefix)
    tables = list(read_results(open_output(tmp_path / name).files(), schema))
    assert all(table.schema.equals(RESULTS) for table in tables)
    assert max(table.num_rows for table in tables) < 3000
    assert pa.concat_tables(tables).equals(results(0, 3000))


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_output_without_the_columns_is_refused(tmp_path: Path, name: str) -> None:
    schema = write(tmp_path, name, "a_")
    other = OutputSchema(schema.kept, schema.results, "b_")
    with pytest.raises(VerificationError, match="the results cannot be read back from") as caught:
        list(read_results([tmp_path / name], other))
    assert "'" not in str(caught.value).partition(": ")[0]


def test_values_of_another_type_are_refused(tmp_path: Path) -> None:
    schema = write(tmp_path, "out.jsonl", "")
    text = (tmp_path / "out.jsonl").read_text()
    (tmp_path / "out.jsonl").write_text(text.replace('"prompt_tokens":2147483647', '"prompt_tokens":"many"', 1))
    with pytest.raises(VerificationError, match="cannot be read back"):
        list(read_results([tmp_path / "out.jsonl"], schema))
