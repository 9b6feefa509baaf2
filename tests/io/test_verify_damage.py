"""Whatever happens to an output after it was written, verify finds it, and nothing worse happens."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from outputs import changed, rows_at, write_input, write_output

from infer.io.finding import Check
from infer.io.reader import open_source
from infer.io.verify import verify_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from outputs import Records

    from infer.io.verify import ExpectedOutput

pytestmark = pytest.mark.reliability

BOTH = pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
NUM_ROWS = 300
SEED = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("input") / "in.jsonl", NUM_ROWS)


class Damages:
    """Counts what was done to copies of one output, and how much of it was found."""

    def __init__(self, path: Path, expected: ExpectedOutput | None) -> None:
        self._path = path
        self._expected = expected
        self.data = path.read_bytes()
        self.missed: list[str] = []
        self.num_tried = 0

    def try_bytes(self, name: str, data: bytes) -> None:
        assert data != self.data, name
        self._path.write_bytes(data)
        self._try(name)
        self._path.write_bytes(self.data)

    def _try(self, name: str) -> None:
        report = verify_output(self._path, expected=self._expected)
        self.num_tried += 1
        # Nothing may have parsed the file: what it would make of the damage nobody knows.
        if [finding.check for finding in report.findings] != [Check.DIGEST]:
            self.missed.append(name)

    def flip(self, bit: int) -> None:
        position = bit // 8
        with self._path.open("r+b", buffering=0) as file:
            for byte in (self.data[position] ^ 1 << bit % 8, self.data[position]):
                os.pwrite(file.fileno(), bytes([byte]), position)
                if byte != self.data[position]:
                    self._try(f"bit {bit}")

    def bits(self) -> range:
        return range(8 * len(self.data))

    def check(self, what: str, figure: Callable[[str, str], None]) -> None:
        figure(what, f"{self.num_tried - len(self.missed)} of {self.num_tried} found, seed {SEED}")
        assert self.missed == []


def written(tmp_path: Path, source: Path, suffix: str) -> Damages:
    """An output to damage. Of Parquet nothing is known beside the file."""
    path = tmp_path / f"out{suffix}"
    expected = write_output(path, source)
    assert verify_output(path, expected=expected).findings == ()
    return Damages(path, expected if suffix == ".jsonl" else None)


def damage_at_random(damages: Damages, num_flips: int, num_truncations: int) -> None:
    draw = random.Random(SEED)
    data = damages.data
    for bit in draw.sample(damages.bits(), num_flips):
        damages.flip(bit)
    for size in [0, 1, len(data) - 1, *draw.sample(range(2, len(data) - 1), num_truncations - 3)]:
        damages.try_bytes(f"cut to {size}", data[:size])
    for number in (1, 7, 8, 4096):
        damages.try_bytes(f"{number} zeros added", data + bytes(number))
        damages.try_bytes(f"{number} bytes added", data + draw.randbytes(number))
        damages.try_bytes(f"its own last {number} bytes added", data + data[-number:])
        damages.try_bytes(f"{number} bytes put first", draw.randbytes(number) + data)
        damages.try_bytes(f"{number} bytes taken out", data[:1000] + data[1000 + number :])
        damages.try_bytes(f"{number} bytes gone", data[:1000] + bytes(number) + data[1000 + number :])
    damages.try_bytes("written twice", data + data)
    damages.try_bytes("zeros", bytes(len(data)))
    damages.try_bytes("noise", draw.randbytes(len(data)))


@BOTH
def test_flipped_bits_and_cut_files_are_found(
    tmp_path: Path, source: Path, suffix: str, figure: Callable[[str, str], None]
) -> None:
    damages = written(tmp_path, source, suffix)
    damage_at_random(damages, num_flips=60, num_truncations=10)
    damages.check(f"damages of a {suffix}", figure)


@pytest.mark.slow
@BOTH
def test_500_flipped_bits_and_50_cut_files_are_found(
    tmp_path: Path, source: Path, suffix: str, figure: Callable[[str, str], None]
) -> None:
    damages = written(tmp_path, source, suffix)
    damage_at_random(damages, num_flips=500, num_truncations=50)
    damages.check(f"damages of a {suffix}", figure)


@pytest.mark.slow
@BOTH
def test_any_flipped_bit_at_all_is_found(tmp_path: Path, suffix: str, figure: Callable[[str, str], None]) -> None:
    damages = written(tmp_path, write_input(tmp_path / "in.jsonl", 12), suffix)
    for bit in damages.bits():
        damages.flip(bit)
    damages.check(f"single bits of a {suffix}", figure)


@pytest.mark.parametrize("num_bytes", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_footer_of_a_false_length_is_found(
    tmp_path: Path, source: Path, num_bytes: int, figure: Callable[[str, str], None]
) -> None:
    damages = written(tmp_path, source, ".parquet")
    data = damages.data
    damages.try_bytes("length", data[:-8] + num_bytes.to_bytes(4, "little") + data[-4:])
    damages.check("false lengths", figure)


def table_damages(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """What a well-meaning script could do to an output."""

    def take(*indices: int) -> pa.Table:
        return table.take(pa.array(indices))

    def with_value(column: str, row: int, value: object) -> pa.Table:
        position = table.schema.get_field_index(column)
        mask = pa.array([index == row for index in range(NUM_ROWS)])
        values = pc.if_else(mask, pa.scalar(value, table.schema.field(column).type), table.column(column))
        return table.set_column(position, table.schema.field(column), values)

    yield "written again", table
    yield "dropped", take(*range(100), *range(101, NUM_ROWS))
    yield "dropped at the end", take(*range(NUM_ROWS - 1))
    yield "doubled", take(*range(101), *range(100, NUM_ROWS))
    yield "swapped", take(*range(100), 101, 100, *range(102, NUM_ROWS))
    yield "both", with_value("error_code", 4, "oom")
    yield "neither", with_value("response", 4, None)
    yield "another answer", with_value("response", 4, "answer 5")
    yield "another kept value", with_value("n", 4, 17)
    yield "column gone", table.drop_columns(["n"])


@pytest.mark.parametrize("keeps_metadata", [True, False])
def test_file_that_something_else_has_written_again_is_found(
    tmp_path: Path, source: Path, keeps_metadata: bool
) -> None:
    path = tmp_path / "out.parquet"
    write_output(path, source)
    original = pq.read_table(path)
    # pyarrow keeps what it knows of a footer in the schema, and writes it again.
    original = original.replace_schema_metadata(pq.read_metadata(path).metadata if keeps_metadata else None)
    missed = []
    for name, table in table_damages(original):
        pq.write_table(table, path, compression="zstd", write_page_checksum=True)
        if [finding.check for finding in verify_output(path).findings] != [Check.DIGEST]:
            missed.append(name)
    assert missed == []


RESEALED: dict[str, Callable[[Records], Records]] = {
    "dropped": lambda records: rows_at(records, [*range(100), *range(101, NUM_ROWS)]),
    "dropped at the end": lambda records: records[:-1],
    "doubled": lambda records: rows_at(records, [*range(101), *range(100, NUM_ROWS)]),
    "swapped": lambda records: rows_at(records, [*range(100), 101, 100, *range(102, NUM_ROWS)]),
    "both": lambda records: changed(records, 4, error_code="oom", error="x", finish_reason="error"),
    "neither": lambda records: changed(records, 4, response=None),
    "kept value of another row": lambda records: [
        *records[:100], (replace(records[101][0], index=100), records[100][1]), *records[101:]
    ],
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", RESEALED)
def test_rows_that_were_wrong_before_the_digest_was_made_are_found(
    tmp_path: Path, source: Path, suffix: str, name: str
) -> None:
    path = tmp_path / f"out{suffix}"
    expected = write_output(path, source, change=RESEALED[name])
    report = verify_output(path, source=open_source([str(source)]), expected=expected)
    assert report.findings
    assert Check.DIGEST not in {finding.check for finding in report.findings}


def test_doubled_file_in_a_directory_is_found(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "out"
    write_output(path, source, num_parts=3)
    for name in ("part-00003.parquet", "part-00001 (copy).parquet", "part-00001.parquet.bak"):
        shutil.copy(path / "part-00001.parquet", path / name)
        assert verify_output(path).findings
        (path / name).unlink()
    assert verify_output(path).findings == ()
