"""What is saved becomes the output once, in order, and only if it reads back as what was written."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outputs import result, write_input
from publishing import publish_no_input

from infer.cli.result import ResultColumns, result_schema
from infer.io import publish as publish_module
from infer.io import storage
from infer.io.errors import InputError, OutputExistsError, StorageError
from infer.io.fingerprint import Fingerprint
from infer.io.journal import FileRecord, FinalRecord, PublishRecord, read_journal
from infer.io.output import open_output
from infer.io.output_record import OutputRecord, output_columns
from infer.io.parquet_writer import ParquetWriter
from infer.io.publish import is_published, join_rows, publish, published_record
from infer.io.reader import open_source
from infer.io.row import Row
from infer.io.run_record import RunRecord
from infer.io.run_state import RunState
from infer.io.schema import output_schema
from infer.io.seal import check_seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infer.io.output import Output

NUM_ROWS = 100
KINDS = ["out.parquet", "out.jsonl", "out/"]


class Job:
    """A run whose rows are all saved, in no particular order."""

    def __init__(self, directory: Path, name: str = "out.parquet", num_rows: int = NUM_ROWS) -> None:
        self.source = open_source([str(write_input(directory / "in.jsonl", num_rows))])
        self.schema = output_schema(self.source.schema, None, result_schema(ResultColumns()))
        self.output = open_output(f"{directory}/{name}")
        self.rows = list(self.source.rows(self.schema.kept.names))
        self.results = [result(row) for row in self.rows]
        self.directory = directory / "out.infer"
        self.state = RunState(self.directory, [])
        self.state.recover()
        run = RunRecord("1f2e", "", num_rows, 0, Fingerprint({"rows": num_rows}, {}), {}, str(self.output.path))
        self.state.begin(run)
        self.state.begin_attempt()
        self.state.save(self.results[:60:2][::-1], self.schema.results)
        saved = self.state.saved
        self.state.save([each for each in self.results if each["_row"] not in saved], self.schema.results)
        self.record = OutputRecord("1f2e", run.fingerprint.sha256, num_rows, output_columns(self.schema))

    def publish(self, check_input: Callable[[], None] = lambda: None, *, overwrite: bool = False) -> None:
        publish(
            self.state,
            self.source,
            self.output,
            self.schema,
            self.record,
            check_input=check_input,
            overwrite=overwrite,
        )

    def expected(self) -> list[dict[str, Any]]:
        names = self.schema.kept.names
        return [row.to_dict(names) | each for row, each in zip(self.rows, self.results, strict=True)]

    def aside_file(self) -> Path:
        aside = self.output.aside("1f2e")
        return aside / "part-00000.parquet" if aside.is_dir() else aside


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    parts = sorted(path.glob("part-*")) if path.is_dir() else [path]
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    with job.state:
        yield job


@pytest.mark.parametrize("name", KINDS)
def test_saved_rows_and_those_of_the_input_become_the_output(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, name)
    with job.state:
        # Lines that could not be read are rows of the output.
        assert any(row.error is not None for row in job.rows)
        job.publish()
        assert rows_of(job.output.path) == job.expected()
        assert names(tmp_path) == {"in.jsonl", "out.infer", job.output.path.name}
        assert names(job.directory) == {"lock", "run.json", "journal"}
        assert job.state.progress.final is not None
        assert job.state.progress.final.num_rows == NUM_ROWS


@pytest.mark.parametrize("name", KINDS)
def test_output_is_known_by_its_journal(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, name)
    with job.state:
        job.publish()
        assert job.state.progress.publish is not None
        files = job.state.progress.publish.files
        assert is_published(job.output, files)
        assert not is_published(job.output, [*files, files[0]])
        assert not is_published(job.output, [])
        assert not is_published(job.output, [FileRecord(files[0].num_bytes + 1, files[0].sha256)])
        assert not is_published(job.output, [FileRecord(files[0].num_bytes, "0" * 64)])
        (path,) = job.output.files()
        flip(path, 100)
        assert not is_published(job.output, files)
        path.unlink()
        assert not is_published(job.output, files)


def test_output_that_cannot_be_read_is_an_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.publish()
    assert job.state.progress.publish is not None

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(publish_module, "check_seal", refuse)
    for read in (lambda output: is_published(output, job.state.progress.publish.files), published_record):
        with pytest.raises(StorageError, match=f"^cannot read {job.output.path}: input/output error$"):
            read(job.output)


def test_parquet_is_sealed_and_says_which_run_it_is_of(job: Job) -> None:
    job.publish()
    assert check_seal(job.output.path)[1] == ""
    assert published_record(job.output) == job.record


@pytest.mark.parametrize("name", KINDS)
def test_file_that_was_damaged_before_it_got_its_name_never_gets_it(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, name)
    with job.state:
        with pytest.raises(StorageError, match=r"^what was written reads back as something else: ") as caught:
            job.publish(lambda: flip(job.aside_file(), 100))
        assert caught.value.hint == "the device may be failing: all rows are saved, run the same command again"
        assert names(tmp_path) == {"in.jsonl", "out.infer"}
        assert not any(isinstance(each, PublishRecord) for each in read_journal(job.directory / "journal"))
        # Nothing is lost by it.
        job.publish()
        assert rows_of(job.output.path) == job.expected()


@pytest.mark.parametrize("name", KINDS)
def test_whole_output_of_other_content_never_gets_the_name(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, name)
    (tmp_path / "other").mkdir()
    other = Job(tmp_path / "other", name)
    other.results[0]["response"] = "wrong"
    batch = pa.RecordBatch.from_pylist(other.results, other.schema.results)

    def swap() -> None:
        # As sound as the right one, and of the same run by what it says.
        other.output.write(other.output.aside("1f2e"), iter([(other.rows, batch)]), other.schema, other.record.footer())
        job.aside_file().write_bytes(other.aside_file().read_bytes())

    with job.state, other.state:
        with pytest.raises(StorageError, match=r"^what was written reads back as something else: "):
            job.publish(swap)
        assert names(tmp_path) == {"in.jsonl", "other", "out.infer"}


@pytest.mark.parametrize("name", KINDS)
def test_file_that_cannot_be_read_back_is_an_error_of_the_device(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, name)

    def unreadable(*_: object, **__: object) -> None:
        raise InputError("cannot read it: input/output error")

    monkeypatch.setattr(publish_module, "verify_output", unreadable)
    with job.state:
        with pytest.raises(StorageError, match=r"^what was written cannot be read back: cannot read it: ") as caught:
            job.publish()
        assert caught.value.hint == "the device may be failing: all rows are saved, run the same command again"
        assert names(tmp_path) == {"in.jsonl", "out.infer"}


@pytest.mark.parametrize("name", KINDS)
def test_output_that_is_not_what_the_run_says_of_it_never_gets_the_name(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, name)
    job.record = dataclasses.replace(job.record, num_rows=NUM_ROWS + 1)
    with job.state:
        with pytest.raises(StorageError, match=r"^what was written reads back as something else: .*101 rows"):
            job.publish()
        assert names(tmp_path) == {"in.jsonl", "out.infer"}


def test_error_at_the_end_is_told_also_where_clearing_up_fails(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def changed() -> None:
        patched.setattr(storage.os, "unlink", refuse)
        raise InputError("the input has changed")

    with monkeypatch.context() as patched, pytest.raises(InputError, match="has changed"):
        job.publish(changed)
    job.publish()
    assert rows_of(job.output.path) == job.expected()


@pytest.mark.parametrize("name", KINDS)
def test_output_of_before_failed_rows_ran_again_is_replaced_and_anybody_elses_is_not(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, name)
    with job.state:
        job.publish()
        kept = [each for each in job.results if each["error_code"] is None]
        job.state.reopen(iter([pa.Table.from_pylist(kept, job.schema.results)]))
        for each in job.results:
            if each["error_code"] == "oom":
                each |= {"response": "now", "error_code": None, "error": None, "finish_reason": "stop"}
        saved = job.state.saved
        job.state.save([each for each in job.results if each["_row"] not in saved], job.schema.results)
        (path,) = job.output.files()
        old = path.read_bytes()
        path.write_bytes(b"precious" + old[8:])
        with pytest.raises(OutputExistsError):
            job.publish()
        assert path.read_bytes() == b"precious" + old[8:]
        path.write_bytes(old)
        job.publish()
        assert rows_of(job.output.path) == job.expected()


def test_input_that_changed_is_found_before_anything_appears(job: Job, tmp_path: Path) -> None:
    def changed() -> None:
        raise InputError("the input has changed")

    with pytest.raises(InputError, match="has changed"):
        job.publish(changed)
    assert names(tmp_path) == {"in.jsonl", "out.infer"}
    assert len(job.state.saved) == NUM_ROWS


def test_name_that_was_taken_meanwhile_is_left_alone(job: Job, tmp_path: Path) -> None:
    with pytest.raises(OutputExistsError):
        job.publish(lambda: [None, job.output.path.write_text("precious")][0])
    assert job.output.path.read_text() == "precious"
    assert names(tmp_path) == {"in.jsonl", "out.infer", "out.parquet"}
    assert job.state.progress.final is None
    job.publish(overwrite=True)
    assert rows_of(job.output.path) == job.expected()


@pytest.mark.parametrize("name", KINDS)
def test_output_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, name)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with job.state:
        with monkeypatch.context() as patched:
            patched.setattr(storage.os, "write", refuse)
            with pytest.raises(StorageError, match="no space left"):
                job.publish()
        assert names(tmp_path) == {"in.jsonl", "out.infer"}


def test_what_an_earlier_end_left_aside_is_written_anew(job: Job) -> None:
    job.aside_file().write_text("part of it")
    job.publish()
    assert rows_of(job.output.path) == job.expected()


@pytest.mark.parametrize("overwrite", [False, True])
def test_steps_of_the_end_come_in_their_order(job: Job, monkeypatch: pytest.MonkeyPatch, overwrite: bool) -> None:
    events: list[str] = []

    def watch(name: str, tell: Callable[..., str]) -> None:
        call = getattr(os, name)

        def watched(*arguments: Any) -> Any:
            value = call(*arguments)
            events.append(tell(*arguments))
            return value

        monkeypatch.setattr(storage.os, name, watched)

    def name_of(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    journal = job.directory / "journal"
    watch("fdatasync", lambda _: f"journal: {read_journal(journal)[-1].type}")
    watch("fsync", lambda descriptor: f"sync {name_of(descriptor)}")
    watch("rename", lambda _, target: f"name {target.name}")
    watch("link", lambda _, target: f"name {target.name}")
    watch("unlink", lambda path: f"remove {path.name}")
    verify = publish_module.verify_output

    def verified(path: Path, **arguments: Any) -> Any:
        events.append(f"verify {path.name}")
        return verify(path, **arguments)

    monkeypatch.setattr(publish_module, "verify_output", verified)
    job.publish(lambda: events.append("check input"), overwrite=overwrite)
    assert events == [
        "sync .out-1f2e.parquet",
        "check input",
        "verify .out-1f2e.parquet",
        "journal: publish",
        "name out.parquet",
        *([] if overwrite else ["remove .out-1f2e.parquet"]),
        f"sync {job.output.path.parent.name}",
        "journal: final",
        "remove seg-000001.parquet",
        "remove seg-000002.parquet",
    ]
    publish_record, final = read_journal(journal)[-2:]
    assert isinstance(publish_record, PublishRecord)
    assert isinstance(final, FinalRecord)
    assert [each.num_bytes for each in publish_record.files] == [job.output.path.stat().st_size]


class Block:
    """Of rows that are long."""


@pytest.mark.parametrize(("rows_a_block", "sizes"), [(1, [16] * 6 + [4]), (3, [46, 45, 9]), (1000, [100])])
def test_rows_of_few_blocks_are_held_at_a_time(rows_a_block: int, sizes: list[int]) -> None:
    blocks: list[Any] = [Block() for _ in range(100)]
    rows = (Row(index, blocks[index // rows_a_block]) for index in range(100))
    results = pa.RecordBatch.from_pydict({"_row": list(range(100))})
    joined = list(join_rows(rows, iter([results])))
    assert [len(block) for block, _ in joined] == sizes
    for block, batch in joined:
        assert [row.index for row in block] == batch["_row"].to_pylist()


def test_rows_and_results_come_in_pieces_of_their_own() -> None:
    batches = [pa.RecordBatch.from_pydict({"_row": rows}) for rows in ([0, 1, 2], [3], [4, 5])]
    joined = list(join_rows((Row(index, None) for index in range(6)), iter(batches)))
    assert [[row.index for row in block] for block, _ in joined] == [[0, 1, 2], [3], [4, 5]]


def test_rows_of_many_blocks_stay_with_their_results() -> None:
    batches = [pa.RecordBatch.from_pydict({"_row": list(range(start, start + 40))}) for start in (0, 40)]
    joined = list(join_rows((Row(index, Block()) for index in range(80)), iter(batches)))  # type: ignore[arg-type]
    assert [len(block) for block, _ in joined] == [16, 16, 8] * 2
    assert [[row.index for row in block] for block, _ in joined] == [batch["_row"].to_pylist() for _, batch in joined]


def test_input_that_has_become_shorter_is_an_error() -> None:
    batch = pa.RecordBatch.from_pydict({"_row": [0, 1, 2]})
    with pytest.raises(InputError, match=r"^the input has fewer rows than when the run began$"):
        list(join_rows((Row(index, None) for index in range(2)), iter([batch])))


def test_output_that_is_not_there_has_no_record(tmp_path: Path) -> None:
    for name in KINDS:
        assert published_record(open_output(f"{tmp_path}/{name}")) is None


def test_output_of_others_has_no_record(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    (tmp_path / "no.parquet").write_text("no Parquet at all")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "out.jsonl").write_text('{"_row": 0}\n')
    publish_no_input(tmp_path / "sealed.parquet", 3)
    for name in ("foreign.parquet", "no.parquet", "empty.parquet", "out.jsonl", "sealed.parquet"):
        assert published_record(open_output(tmp_path / name)) is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"run_id": 7}'])
def test_record_that_is_none_is_none(tmp_path: Path, job: Job, text: str) -> None:
    file = storage.NewFile(tmp_path / "out.parquet")
    ParquetWriter(file, job.schema, {"infer": text}).close()
    file.commit()
    assert check_seal(tmp_path / "out.parquet")[1] == ""
    assert published_record(job.output) is None


def test_file_that_is_sealed_and_no_parquet_has_no_record(tmp_path: Path) -> None:
    def sealed(digits: str) -> bytes:
        footer = b"infer.sha256\x18\x40" + digits.encode()
        return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"

    path = tmp_path / "out.parquet"
    path.write_bytes(sealed(hashlib.sha256(sealed("0" * 64)).hexdigest()))
    assert check_seal(path)[1] == ""
    assert published_record(open_output(path)) is None


def test_damaged_output_has_no_record(job: Job) -> None:
    job.publish()
    data = job.output.path.read_bytes()
    for damaged in (data[:-1], data[:100] + b"x" + data[101:], data + b"\0"):
        job.output.path.write_bytes(damaged)
        assert published_record(job.output) is None


def parts(output: Output, job: Job, sizes: list[int]) -> None:
    """Write it as parts of these sizes."""
    output.path.mkdir()
    (output.path / "_SUCCESS").touch()
    start = 0
    for number, size in enumerate(sizes):
        file = storage.NewFile(output.path / f"part-{number:05}.parquet")
        writer = ParquetWriter(file, job.schema, job.record.footer())
        batch = pa.RecordBatch.from_pylist(job.results[start : start + size], job.schema.results)
        writer.write(job.rows[start : start + size], batch)
        writer.close()
        file.commit()
        start += size


def test_directory_has_a_record_only_as_long_as_it_is_whole(tmp_path: Path) -> None:
    job = Job(tmp_path, "out/")
    with job.state:
        parts(job.output, job, [60, 40])
        assert published_record(job.output) == job.record
        second = job.output.path / "part-00001.parquet"
        data = second.read_bytes()
        flip(second, 100)
        assert published_record(job.output) is None
        second.unlink()
        assert published_record(job.output) is None
        # Of another run, though as many rows.
        second.write_bytes(data)
        job.record = OutputRecord("other", job.record.fingerprint, NUM_ROWS, job.record.columns)
        other = open_output(f"{tmp_path}/other/")
        parts(other, job, [60, 40])
        second.write_bytes((other.path / second.name).read_bytes())
        assert published_record(job.output) is None
