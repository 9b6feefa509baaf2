"""A process that really runs out of memory: fewer rows at a time, and every answer right."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tiny_models import save_model

RUN = """
import json, re, resource, sys
from pathlib import Path
from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.sampling_params import SamplingParams

folder, mebibytes = sys.argv[1], int(sys.argv[2])
lines = []
config = EngineConfig(model=folder, dtype="float32", max_num_batched_tokens=8192, num_blocks=1500, swap_space=0.0,
                      prepack_linears=False, fuse_kernels=False)
engine = Engine(config, lines.append)
params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
prompts = [[4 + (7 * row + column * column) % 300 for column in range(300)] for row in range(40)]
# What is loaded and compiled at first use is no part of it.
engine.generate([prompts[0][:20]] * 3, params)
size = int(re.search(r"VmSize:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
if mebibytes:
    resource.setrlimit(resource.RLIMIT_AS, (size + (mebibytes << 20),) * 2)
completions = engine.generate(prompts, params)
print(json.dumps({
    "answers": [completion.token_ids for completion in completions],
    "errors": [completion.error for completion in completions],
    "failures": [line for line in lines if line.startswith("a step failed")],
}))
"""


def run(folder, mebibytes):
    """How an engine fares that may take so much more than it has when it is loaded; 0 is no limit."""
    command = [sys.executable, "-c", RUN, str(folder), str(mebibytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process is Linux's")
def test_batch_that_is_too_large_for_the_memory_ends_with_all_rows_right(tmp_path):
    folder = save_model(tmp_path, "llama", intermediate_size=6144)
    expected = run(folder, 0)
    assert expected["failures"] == []
    limited = run(folder, 120)
    assert limited["errors"] == [None] * 40
    assert limited["answers"] == expected["answers"]
    assert limited["failures"], "the limit was never reached"
    assert "allocate" in limited["failures"][0]
