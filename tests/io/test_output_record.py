"""What a run says of its output comes back as it was, or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infer.io.output_record import OutputColumns, OutputRecord, output_columns, read_record, type_text
from infer.io.schema import OutputSchema

if TYPE_CHECKING:
    from pathlib import Path

RECORD = OutputRecord(
    "run", "f" * 64, 3, OutputColumns(("a", "b"), {"response": "string"}, "r_"), 7, {"oom": 2}, {"infer": "1"}
)


def test_record_comes_back_from_json_as_it_was() -> None:
    for record in (RECORD, OutputRecord("", "", 0, OutputColumns((), {}))):
        footer = {name.encode(): text.encode() for name, text in record.footer().items()}
        assert read_record(footer) == record
    assert read_record({}) is None
    assert read_record(None) is None
    assert RECORD.columns.names == ["a", "b", "r_response"]


def test_record_of_a_later_version_may_say_more() -> None:
    assert OutputRecord.from_json(json.loads(json.dumps(RECORD.to_json() | {"more": 1}))) == RECORD


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": None}, {"fingerprint": 1}, {"num_rows": "3"}, {"num_rows": True}, {"num_rows": None},
        {"limit": "7"}, {"limit": 7.0}, {"columns": []}, {"columns": {}}, {"versions": {"a": 1}},
        {"columns": {"kept": "ab", "results": {}, "prefix": ""}},
        {"columns": {"kept": [1], "results": {}, "prefix": ""}},
        {"columns": {"kept": [], "results": {"a": 1}, "prefix": ""}},
        {"columns": {"kept": [], "results": [], "prefix": ""}},
        {"columns": {"kept": [], "results": {}}},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|no record"):
        OutputRecord.from_json(json.loads(json.dumps(RECORD.to_json() | change)))


def test_type_has_the_same_text_before_and_after_parquet(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("a", pa.list_(pa.struct([("x", pa.list_(pa.string())), ("y", pa.float32())]))),
            ("b", pa.list_(pa.float32(), 2)),
            ("c", pa.map_(pa.string(), pa.float32())),
            ("d", pa.int32()),
        ]
    )
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    texts = {
        "a": "list<struct<x: list<string>, y: float>>",
        "b": "list<float>[2]",
        "c": "map<string, float>",
        "d": "int32",
    }
    for known in (schema, pq.read_schema(tmp_path / "a.parquet")):
        assert {field.name: type_text(field.type) for field in known} == texts
    columns = output_columns(OutputSchema(pa.schema([("k", pa.int8())]), schema, "p_"))
    assert columns == OutputColumns(("k",), texts, "p_")
