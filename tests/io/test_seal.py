"""The digest that a Parquet file carries of itself."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from outputs import write_input, write_output

from infer.io import seal
from infer.io.seal import check_seal, file_digest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    path = tmp_path / "out.parquet"
    write_output(path, write_input(tmp_path / "in.jsonl", 20))
    return path


def problem(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return check_seal(path)[1]


def test_seal_is_right_however_the_file_is_read(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = check_seal(sealed)
    assert expected[1] == ""
    # Sizes that cut the seal in two, and that end right before it and after it.
    data = sealed.read_bytes()
    offset = data.rindex(expected[0].encode() if expected[0] else b"")
    for num_bytes in (1, 63, 64, 65, offset - 1, offset, offset + 1, offset + 63, offset + 64, len(data)):
        monkeypatch.setattr(seal, "_READ_BYTES", num_bytes)
        assert check_seal(sealed) == expected


def test_digest_of_a_file_is_that_of_its_bytes(sealed: Path) -> None:
    with sealed.open("rb", buffering=0) as file:
        file.seek(5)
        assert file_digest(file) == hashlib.sha256(sealed.read_bytes()).hexdigest()


def test_what_is_wrong_with_a_seal_is_said(sealed: Path) -> None:
    data = sealed.read_bytes()
    digits = check_seal(sealed)[0]
    assert digits is not None
    written = digits.encode()
    assert problem(sealed, b"") == "the file is too short to be Parquet: 0 bytes"
    assert problem(sealed, data[:11]) == "the file is too short to be Parquet: 11 bytes"
    assert problem(sealed, b"PAR2" + data[4:]) == "the file does not begin as Parquet does"
    assert problem(sealed, data + b"\0") == (
        "the file does not end as Parquet does: it was cut off, or something was added"
    )
    assert problem(sealed, b"PAR1\x01\0\0\0PAR1") == "the footer is said to be longer than the file: 1 bytes"
    no_digest = "the footer carries no digest of the file: it is damaged, or infer has not written it"
    assert problem(sealed, b"PAR1\0\0\0\0PAR1") == no_digest
    assert problem(sealed, data.replace(b"infer.sha256", b"infer.sha512")) == no_digest
    assert problem(sealed, data.replace(written, written.upper())) == "what stands in the place of the digest is none"
    changed = data.replace(b"parquet-cpp-arrow", b"parquet-CPP-arrow")
    assert changed != data
    blank = changed.replace(written, b"0" * 64)
    assert problem(sealed, changed) == (
        f"the bytes of the file have changed: their sha256 is {hashlib.sha256(blank).hexdigest()}"
    )
    assert problem(sealed, blank).startswith("the bytes of the file have changed")


def test_only_the_end_of_a_footer_that_is_said_to_be_very_long_is_searched(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal, "_MAX_SEARCHED_BYTES", 100)
    assert check_seal(sealed)[1].startswith("the footer carries no digest of the file")
