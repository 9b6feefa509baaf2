from __future__ import annotations

import json

import pytest
import workloads
from tiny_models import make_tokenizer

from infer.cli.bench_shapes import SHAPES


@pytest.fixture(scope="module")
def tokenizer_directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(path)
    return str(path)


def test_rows_have_their_prompts_in_tokens_as_a_run_asks_them(tokenizer_directory, tmp_path, capsys):
    workloads.main(["--model", tokenizer_directory, str(tmp_path), "grouped"])
    lines = [json.loads(line) for line in (tmp_path / "grouped.jsonl").read_text().splitlines()]
    tokenizer = workloads.load_tokenizer(tokenizer_directory)
    assert len(lines) == SHAPES["grouped"].num_rows
    for line in lines[:3]:
        asked = f"<|im_start|>user\n{line['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(line["prompt_ids"], skip_special_tokens=False) == asked
    assert capsys.readouterr().out == f"{tmp_path / 'grouped.jsonl'}: {SHAPES['grouped']}\n"


def test_full_form_has_more_of_the_same_rows(tokenizer_directory, tmp_path):
    for flags, folder in (([], "short"), (["--full"], "full")):
        workloads.main(["--model", tokenizer_directory, *flags, str(tmp_path / folder), "unique-gen"])
    short = (tmp_path / "short" / "unique-gen.jsonl").read_bytes()
    full = (tmp_path / "full" / "unique-gen.jsonl").read_bytes()
    assert full.startswith(short)
    assert len(full.splitlines()) == workloads.FULL_NUM_ROWS["unique-gen"] == 2 * len(short.splitlines())


def test_every_shape_has_a_full_form():
    assert workloads.FULL_NUM_ROWS.keys() == SHAPES.keys()
