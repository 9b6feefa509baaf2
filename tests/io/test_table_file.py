"""Records of no input appear whole, also those of a run that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infer.io import table_file
from infer.io.errors import OutputExistsError, OutputNameError
from infer.io.table_file import TableFile

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("step", pa.int64()), ("blocks", pa.list_(pa.int32()))])


@pytest.mark.parametrize("num_records", [0, 1, 25])
def test_records_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_records: int) -> None:
    monkeypatch.setattr(table_file, "_ROW_GROUP_ROWS", 10)
    records = [{"step": index, "blocks": [index] * (index % 3)} for index in range(num_records)]
    with TableFile(tmp_path / "steps.parquet", SCHEMA) as file:
        for record in records:
            file.add(record)
        assert not (tmp_path / "steps.parquet").exists()
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table.schema == SCHEMA
    assert table.to_pylist() == records
    assert [path.name for path in tmp_path.iterdir()] == ["steps.parquet"]


def test_records_until_an_exception_are_kept(tmp_path: Path) -> None:
    def interrupted_run() -> None:
        with TableFile(tmp_path / "steps.parquet", SCHEMA) as file:
            file.add({"step": 1, "blocks": []})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_run()
    assert pq.read_table(tmp_path / "steps.parquet").to_pylist() == [{"step": 1, "blocks": []}]


def test_name_that_is_taken_or_no_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputNameError):
        TableFile(tmp_path / "steps.csv", SCHEMA)
    (tmp_path / "steps.parquet").touch()
    with pytest.raises(OutputExistsError):
        TableFile(tmp_path / "steps.parquet", SCHEMA)
    with TableFile(tmp_path / "steps.parquet", SCHEMA, overwrite=True):
        pass
    assert pq.read_table(tmp_path / "steps.parquet").num_rows == 0
