"""Rows of 100 kB: what a run holds of them depends on its window, not on how many there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SUPPORT = Path(__file__).parents[1] / "support"
ROW_BYTES = 100_000
# What was reported were 500,000 rows: 50 GB of text, an hour of work here. The growth would show long before.
FEW, MANY = 2_000, 20_000
MEASURED_JOB = """
import resource, sys
from echo_engine import EchoEngine, identify_echo
from infer.cli.config import JobConfig
from infer.cli.job import run_job
from infer.cli.prompt import PromptSpec
from infer.engine.tokenizer import Tokenizer
from tokenizers import models, pre_tokenizers
import tokenizers, transformers

# A word is a token: byte-level pieces of so much text would take most of the time.
backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[EOS]": 1}, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
engine = EchoEngine(max_num_seqs=64)
engine.tokenizer = Tokenizer(transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[EOS]"))
prompt = PromptSpec(prompt_column="text")
config = JobConfig((sys.argv[1],), sys.argv[2], seed=0, prompt=prompt, keep=("id",), sampling={"max_tokens": 1})
summary = run_job(config, lambda *_: engine, identify_echo)
assert summary.rows_failed == 0, summary
print(summary.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def text(number: int) -> str:
    return f"{number} ".ljust(ROW_BYTES, "abcdefg"[number % 7])


def write(path: Path, num_rows: int) -> None:
    """A piece at a time: the texts of all rows are more than the memory."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
            for begin in range(0, num_rows, 500):
                ids = range(begin, min(begin + 500, num_rows))
                writer.write_table(pa.table([ids, [text(number) for number in ids]], schema=schema))
    else:
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            for number in range(num_rows):
                stream.write(json.dumps({"id": number, "text": text(number)}).encode() + b"\n")


def peak_kib(source: Path, output: Path, num_rows: int) -> int:
    """Of a process that runs the job and nothing else."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", MEASURED_JOB, str(source), str(output)]
    rows, peak = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout.split()
    assert int(rows) == num_rows
    return int(peak)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "jsonl.zst"])
def test_long_rows_need_no_more_memory_when_there_are_more_of_them(tmp_path: Path, suffix: str) -> None:
    peaks = []
    for num_rows in (FEW, MANY):
        source = tmp_path / f"{num_rows}.{suffix}"
        write(source, num_rows)
        peaks.append(peak_kib(source, tmp_path / f"{num_rows}.out.parquet", num_rows))
    assert peaks[1] <= 1.1 * peaks[0], peaks
