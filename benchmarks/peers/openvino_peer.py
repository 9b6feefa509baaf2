"""OpenVINO GenAI's continuous batching on rows of `workloads.py`: prints one JSON line. Runs in its own environment.

It computes a prefix once for each of the requests that arrive together, so the first row of every group runs ahead, and
its time counts: what somebody who knows it would do. The model is converted at the first start, beside it, and that
does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", choices=["bf16", "int8"], default="bf16")
    parser.add_argument("--kv-gib", type=int, default=4)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    converted = convert(options.model, options.weights)

    started = time.perf_counter()
    pipeline = load(converted, options)
    loaded = time.perf_counter()
    generate(pipeline, [{**row, "max_tokens": 2} for row in rows[:4]])
    # A new pipeline has an empty prefix cache; the compiled model is kept by the system.
    pipeline = load(converted, options)
    begun = time.perf_counter()
    ahead: dict[object, int] = {}
    for index, row in enumerate(rows):
        ahead.setdefault(row["group"], index)
    first = set(ahead.values()) if len(ahead) < len(rows) else set()
    num_tokens = generate(pipeline, [row for index, row in enumerate(rows) if index in first])
    num_tokens += generate(pipeline, [row for index, row in enumerate(rows) if index not in first])
    ended = time.perf_counter()
    seconds = {"load": loaded - started, "run": ended - begun}
    print(json.dumps({"rows": len(rows), "completion_tokens": num_tokens, "seconds": seconds}), flush=True)


def convert(model: str, weights: str) -> Path:
    """The model in OpenVINO's format, beside the original."""
    folder = Path(f"{model.rstrip('/')}-openvino-{weights}")
    if (folder / "openvino_model.xml").exists() and (folder / "openvino_tokenizer.xml").exists():
        return folder
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    compression: dict[str, Any] = {"load_in_8bit": False}
    if weights == "int8":
        compression = {"quantization_config": OVWeightQuantizationConfig(bits=8, sym=False)}
    exported = OVModelForCausalLM.from_pretrained(model, export=True, compile=False, **compression)
    exported.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.save_pretrained(folder)
    encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
    save_model(encoder, folder / "openvino_tokenizer.xml")
    save_model(decoder, folder / "openvino_detokenizer.xml")
    return folder


def load(folder: Path, options: argparse.Namespace) -> Any:
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = options.kv_gib
    scheduler.max_num_seqs = 256
    scheduler.max_num_batched_tokens = 4096
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    properties = {
        "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
        "INFERENCE_PRECISION_HINT": "bf16",
        "PERFORMANCE_HINT": "LATENCY",
    }
    if options.weights == "bf16":
        properties["KV_CACHE_PRECISION"] = "bf16"
    return openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)


def generate(pipeline: Any, rows: list[dict[str, Any]]) -> int:
    """Returns how many tokens were generated."""
    import numpy as np
    import openvino
    import openvino_genai

    prompts, configs = [], []
    for row in rows:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = row["max_tokens"]
        config.ignore_eos = row["ignore_eos"]
        config.do_sample = False
        config.apply_chat_template = False
        configs.append(config)
        prompts.append(openvino.Tensor(np.asarray([row["prompt_ids"]], dtype=np.int64)))
    if not rows:
        return 0
    return sum(len(result.m_generation_ids[0]) for result in pipeline.generate(prompts, configs))


if __name__ == "__main__":
    main()
