"""examples/reviews: its rows are what its README says, and the command there gives the columns listed there."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tiny_models import save_model

from infer.cli.app import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "reviews"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")


def read_rows() -> list[dict[str, object]]:
    return [json.loads(line) for line in (EXAMPLE / "reviews.jsonl").read_text(encoding="utf-8").splitlines()]


def run_documented_command(output: Path, *flags: str) -> pq.ParquetFile:
    command = re.search(r"```sh\n(.*?)```", README, re.DOTALL)[1]
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    assert program == "infer"
    assert main([*arguments, "-o", str(output), *flags]) == 0
    return pq.ParquetFile(output)


def documented_columns() -> list[tuple[str, str]]:
    return re.findall(r"^\| `(\w+)` \| (\w+) \|", README, re.MULTILINE)


def test_reviews_are_200_different_ones_of_known_fields():
    rows = read_rows()
    assert [row["id"] for row in rows] == list(range(1, 201))
    assert len({row["text"] for row in rows}) == 200
    assert {tuple(row) for row in rows} == {("id", "product", "stars", "text", "expected")}
    assert Counter(row["expected"] for row in rows) == {"positive": 110, "negative": 90}


def test_stars_agree_with_the_label():
    assert all((row["stars"] >= 4) == (row["expected"] == "positive") for row in read_rows())


def test_prompt_ends_where_the_label_begins():
    prompt = (EXAMPLE / "prompt.txt").read_text(encoding="utf-8")
    assert prompt.endswith('Review: "{text}"\nSentiment:')


def test_documented_command_gives_the_documented_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    model = save_model(tmp_path / "model", "llama")
    output = run_documented_command(tmp_path / "out.parquet", "--limit", "8", "--model", str(model))
    columns = [(field.name, str(field.type)) for field in output.schema_arrow]
    assert columns[:5] == [
        ("id", "int64"),
        ("product", "string"),
        ("stars", "int64"),
        ("text", "string"),
        ("expected", "string"),
    ]
    assert columns[5:] == documented_columns()
    rows = output.read().to_pylist()
    inputs = read_rows()[:8]
    assert [{name: row[name] for name in inputs[0]} for row in rows] == inputs


@pytest.mark.model
def test_documented_command_labels_the_reviews(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    rows = run_documented_command(tmp_path / "out.parquet", "--limit", "8").read().to_pylist()
    assert {row["response"] for row in rows} == {" positive", " negative"}


@pytest.mark.model
@pytest.mark.slow
def test_labels_are_as_good_as_documented(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    rows = run_documented_command(tmp_path / "out.parquet").read().to_pylist()
    num_right = sum(row["response"].strip() == row["expected"] for row in rows)
    documented = int(re.search(r"^    (\d+) of 200$", README, re.MULTILINE)[1])
    # Rounding differs between machines, and some rows stand on the edge.
    assert abs(num_right - documented) <= 4
