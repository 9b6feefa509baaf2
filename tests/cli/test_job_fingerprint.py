"""What makes another job of one whose rows are saved, and what does not: flag by flag."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echo_engine import EchoEngine
from job_flags import run_flags

from infer.io.errors import FingerprintError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.reliability

NUM_ROWS = 12
MODEL = {
    "model weights": "w", "model config": "c", "generation config": "g", "tokenizer": "t", "chat template": "j",
}  # fmt: skip

HARD = {
    "--prompt": ["--prompt", "Say {text}!"],
    "--system": ["--system", "Be brief"],
    "--raw": ["--raw"],
    "--row-params": ["--row-params"],
    "--special-tokens": ["--special-tokens", "allow"],
    "--temperature": ["--temperature", "0.5"],
    "--top-p": ["--top-p", "0.9"],
    "--top-k": ["--top-k", "7"],
    "--min-p": ["--min-p", "0.1"],
    "--presence-penalty": ["--presence-penalty", "0.5"],
    "--frequency-penalty": ["--frequency-penalty", "0.5"],
    "--repetition-penalty": ["--repetition-penalty", "1.1"],
    "--max-tokens": ["--max-tokens", "5"],
    "--stop": ["--stop", "x"],
    "--stop-token-ids": ["--stop-token-ids", "5"],
    "--ignore-eos": ["--ignore-eos"],
    "--logprobs": ["--logprobs", "2"],
    "--logit-bias": ["--logit-bias", '{"5": 1}'],
    "--bad-words": ["--bad-words", "x"],
    "--allowed-token-ids": ["--allowed-token-ids", "5"],
    "--n": ["--n", "2", "--temperature", "1"],
    "--best-of": ["--best-of", "2", "--temperature", "1"],
    "--beam-width": ["--beam-width", "2"],
    "--seed": ["--seed", "5"],
    "--seed-by": ["--seed-by", "content"],
    "--max-model-len": ["--max-model-len", "100"],
    "--kv-cache-dtype": ["--kv-cache-dtype", "int8"],
    "--dtype": ["--dtype", "float32"],
    "--quantization": ["--quantization", "int8"],
    "--prefix": ["--prefix", "r_"],
    "columns kept": ["--keep", "id"],
    "rows": ["--limit", "11"],
}
FREE = [
    ["--max-num-seqs", "3"],
    ["--max-num-batched-tokens", "64"],
    ["--block-size", "32"],
    ["--num-blocks", "50"],
    ["--order", "input"],
    ["--gpu-memory-utilization", "0.5"],
    ["--no-enable-prefix-caching"],
    ["--no-enable-admission-control"],
    ["--preemption-mode", "recompute"],
    ["--preemption-victim", "least-waste"],
    ["--swap-space", "1"],
    ["--enable-host-cache"],
    ["--speculative", "off"],
    ["--no-prepack-linears"],
    ["--linear-backend", "onednn"],
    ["--no-fuse-kernels"],
    ["--no-shared-prefix-attention"],
    ["--save-interval", "0"],
    ["--max-runtime", "1h"],
    ["--max-errors", "50%"],
    ["--allow-errors"],
    ["--row-timeout", "60"],
    ["--overwrite"],
]


class BreaksDown(EchoEngine):
    def step(self) -> list[Any]:
        if self._num_finished:
            raise ConnectionError
        return super().step()

    def recover(self, error: Exception) -> list[Any]:
        raise error


@pytest.fixture
def begun(tmp_path: Path) -> list[str]:
    """The flags of a job of which some rows are saved."""
    source = tmp_path / "in.jsonl"
    rows = [{"id": row, "text": f"a{row}", "prompt": f"x{row}", "max_tokens": 3} for row in range(NUM_ROWS)]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = [str(source), "-o", str(tmp_path / "out.parquet")]
    with pytest.raises(ConnectionError):
        run_flags(*flags, engine=BreaksDown, model=MODEL)
    return flags


def refusal(flags: list[str], **settings: Any) -> str:
    with pytest.raises(FingerprintError) as caught:
        run_flags(*flags, **{"engine": lambda: pytest.fail("the model was loaded"), "model": MODEL, **settings})
    return str(caught.value)


@pytest.mark.parametrize("field", HARD)
def test_hard_field_refuses_by_name(begun: list[str], field: str) -> None:
    assert f" {field}: " in refusal([*begun, *HARD[field]])


@pytest.mark.parametrize("field", MODEL)
def test_another_model_refuses_by_name(begun: list[str], field: str) -> None:
    message = refusal(begun, model=MODEL | {field: "other"})
    assert message.endswith(f"differs in 1 field: {field}: {MODEL[field]} -> other")


@pytest.mark.parametrize("flags", FREE, ids=lambda flags: flags[0])
def test_free_field_goes_on(begun: list[str], flags: list[str]) -> None:
    summary = run_flags(*begun, *flags, model=MODEL)
    assert summary.rows == NUM_ROWS
    assert 0 < summary.rows_resumed < NUM_ROWS


def test_number_and_order_of_the_input_files_count(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"text": [f"{name}{row}" for row in range(6)]}), tmp_path / f"{name}.parquet")
    first, second, output = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"), str(tmp_path / "out.parquet")
    with pytest.raises(ConnectionError):
        run_flags(first, second, "-o", output, engine=BreaksDown)
    assert " input file 1: " in refusal([second, first, "-o", output], model=None)
    assert " input files: 2 -> 1" in refusal([first, "-o", output], model=None)
    assert run_flags(first, second, "-o", output).rows_resumed > 0


def test_columns_that_paths_stand_for_count(tmp_path: Path) -> None:
    source, output = tmp_path / "in", str(tmp_path / "out.parquet")
    (source / "year=2023").mkdir(parents=True)
    pq.write_table(pa.table({"text": [f"a{row}" for row in range(6)]}), source / "year=2023" / "a.parquet")
    with pytest.raises(ConnectionError):
        run_flags(str(source), "-o", output, engine=BreaksDown)
    (source / "year=2023").rename(source / "year=2024")
    assert " path of input file 1: " in refusal([str(source), "-o", output], model=None)
    (source / "year=2024").rename(source / "year=2023")
    assert run_flags(str(source), "-o", output).rows_resumed > 0


def test_there_are_as_many_fields_as_promised(figure: Callable[[str, str], None]) -> None:
    figure("fingerprint", f"{len(HARD) + len(MODEL)} hard fields refuse by name, {len(FREE)} free ones go on")
    assert len(HARD) + len(MODEL) >= 20
    assert len(FREE) >= 10
