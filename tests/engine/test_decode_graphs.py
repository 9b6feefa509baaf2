"""Padded steps on static buffers give the logits of the steps as they are: recorded once a size, replayed with the
inputs of another step."""

from __future__ import annotations

import pytest
import torch
from greedy import GREEDY, make_prompts, run_checked
from tiny_models import save_model

from infer.engine.config import EngineConfig
from infer.engine.decode_graphs import DecodeGraphs, num_graph_bytes, padded_size
from infer.engine.engine import Engine

PROMPTS = make_prompts()


class StandIn:
    """In a graph's place: runs the same calls on the same tensors, as a CPU can."""

    def __init__(self):
        self.num_recorded = self.num_replayed = 0

    def record(self, run):
        self.num_recorded += 1
        run()

        def replay():
            self.num_replayed += 1
            run()

        return replay


def make_engine(folder, stand_in, **config):
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", speculative="off", **config))
    engine.fit_cache()
    runner = engine._executor.runner
    if stand_in is not None:
        runner.decode_graphs = DecodeGraphs(
            runner.forward,
            stand_in.record,
            print,
            max_num_seqs=engine.config.max_num_seqs,
            max_blocks=-(-engine.max_model_len // engine.config.block_size),
        )
    return engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"async_scheduling": True},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 7, "async_scheduling": True},
        {"num_blocks": 6, "enable_admission_control": False},
        {"attention_backend": "reference"},
    ],
    ids=str,
)
def test_output_of_replayed_steps_is_that_of_steps_as_they_are(folder, config):
    expected = [each.token_ids for each in make_engine(folder, None).generate(PROMPTS, GREEDY)]
    stand_in = StandIn()
    engine = make_engine(folder, stand_in, **config)
    assert [each.token_ids for each in run_checked(engine, PROMPTS, GREEDY)] == expected
    assert stand_in.num_replayed > stand_in.num_recorded > 0


def test_shared_prefixes_are_part_of_what_is_replayed(folder):
    shared = list(range(4, 260))
    prompts = [[*shared, 5 + index] for index in range(5)]
    expected = [each.token_ids for each in make_engine(folder, None).generate(prompts, GREEDY)]
    stand_in = StandIn()
    engine = make_engine(folder, stand_in)
    assert [each.token_ids for each in run_checked(engine, prompts, GREEDY)] == expected
    assert any(num_groups for _, _, num_groups in engine._executor.runner.decode_graphs._graphs)


def test_what_cannot_be_recorded_is_run_as_it_is_and_said(folder):
    lines = []

    def record(run):
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = make_engine(folder, None)
    runner = engine._executor.runner
    runner.decode_graphs = DecodeGraphs(runner.forward, record, lines.append, max_num_seqs=256, max_blocks=32)
    expected = [each.token_ids for each in make_engine(folder, None).generate(PROMPTS, GREEDY)]
    assert [each.token_ids for each in engine.generate(PROMPTS, GREEDY)] == expected
    assert lines == [
        "decode steps are launched kernel by kernel, they cannot be recorded: "
        "operation not permitted when stream is capturing"
    ]


def test_padded_sizes_are_few_and_not_much_larger():
    assert [padded_size(each) for each in (0, 1, 2, 3, 5, 9, 16)] == [0, 1, 2, 4, 8, 16, 16]
    for num_seqs in range(17, 2000):
        assert num_seqs <= padded_size(num_seqs) <= num_seqs * 9 / 8
    assert len({padded_size(each) for each in range(1, 257)}) < 40


def test_graph_bytes_grow_with_what_they_hold():
    small = num_graph_bytes(8, 32, 64, 1000, 2)
    assert small < num_graph_bytes(256, 32, 64, 1000, 2)
    assert num_graph_bytes(8, 32, 64, 100_000, 2) - small == 8 * 2 * 99_000 * 2


@pytest.mark.gpu
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_cuda_graphs_give_what_steps_as_they_are_give(folder, async_scheduling):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    settings = {"device": "cuda", "async_scheduling": async_scheduling}
    eager = make_engine(folder, None, enforce_eager=True, device="cuda", async_scheduling=False)
    expected = [each.token_ids for each in eager.generate(PROMPTS, GREEDY)]
    engine = make_engine(folder, None, **settings)
    assert [each.token_ids for each in run_checked(engine, PROMPTS, GREEDY)] == expected
    assert engine._executor.runner.decode_graphs.num_graphs > 0
