"""From a command line to a JobConfig: flags over environment over default, and what cannot be meant."""

from __future__ import annotations

import pytest
import typer

from infer.cli.app import app
from infer.cli.config import JobConfig, default_output, job_config
from infer.cli.errors import UsageError
from infer.cli.prompt import PromptSpec
from infer.cli.run import names_from_environment
from infer.engine.config import EngineConfig
from infer.engine.errors import ConfigError
from infer.io.errors import InputError


def parse(*arguments: str) -> JobConfig:
    """The config of `infer run` with these arguments, read by the command itself."""
    command = typer.main.get_command(app).commands["run"]
    context = command.make_context("run", list(arguments))
    return job_config(context.params, names_from_environment(context))


def usage_error(*arguments: str) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        parse(*arguments)
    return str(caught.value), caught.value.hint


def test_what_control_tokens_of_a_row_are_is_a_flag():
    assert parse("data.parquet").prompt.special_tokens == "sanitize"
    assert parse("data.parquet", "--special-tokens", "error").prompt.special_tokens == "error"
    with pytest.raises(typer.TyperException):
        parse("data.parquet", "--special-tokens", "no")


def test_nothing_but_an_input_gives_the_defaults():
    assert parse("data.parquet", "--seed", "3") == JobConfig(
        inputs=("data.parquet",), output="data.infer.parquet", seed=3
    )


def test_every_flag_reaches_its_field():
    config = parse(
        *(
            "a.jsonl",
            "b.jsonl",
            "-o",
            "out.jsonl",
            "--overwrite",
            "--limit",
            "10",
            "--keep",
            "id, text",
            "--row-params",
        ),
        *("--prompt", "Say {text}", "--system", "Be kind", "--prefix", "llm_", "--seed", "0", "--allow-errors"),
        *("--max-runtime", "1h30m"),
        *(
            "--model",
            "m",
            "--revision",
            "r",
            "--dtype",
            "float32",
            "--device",
            "cpu",
            "--attention-backend",
            "reference",
        ),
        *("--max-model-len", "100", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"),
        *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "128", "--max-num-partial-prefills", "3"),
        *("--scheduling-policy", "priority", "--no-enable-admission-control", "--preemption-victim", "least-waste"),
        *("--trace", "steps.parquet", "--no-prepack-linears", "--linear-backend", "onednn", "--no-fuse-kernels"),
        *("--no-shared-prefix-attention", "--no-async-scheduling", "--enforce-eager"),
        *("--no-enable-prefix-caching", "--block-size", "32", "--num-blocks", "7", "--gpu-memory-utilization", "0.5"),
        *("--temperature", "0", "--top-p", "0.9", "--top-k", "5", "--min-p", "0.1", "--presence-penalty", "0.5"),
        *("--frequency-penalty", "-0.5", "--repetition-penalty", "1.1", "--stop", "a b", "--stop", "\n"),
        *("--stop-token-ids", "3,4", "--max-tokens", "9", "--min-tokens", "0", "--ignore-eos", "--logprobs", "0"),
        *("--logit-bias", '{"7": -100}', "--bad-words", "no", "--allowed-token-ids", "5, 6"),
    )
    assert config == JobConfig(
        inputs=("a.jsonl", "b.jsonl"),
        output="out.jsonl",
        seed=0,
        overwrite=True,
        prompt=PromptSpec(prompt="Say {text}", system="Be kind"),
        limit=10,
        keep=("id", "text"),
        prefix="llm_",
        row_params=True,
        sampling={
            "temperature": 0.0,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.1,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.1,
            "stop": ("a b", "\n"),
            "stop_token_ids": (3, 4),
            "max_tokens": 9,
            "min_tokens": 0,
            "ignore_eos": True,
            "logprobs": 0,
            "logit_bias": {7: -100.0},
            "bad_words": ("no",),
            "allowed_token_ids": (5, 6),
        },
        engine=EngineConfig(
            model="m",
            revision="r",
            dtype="float32",
            device="cpu",
            attention_backend="reference",
            max_model_len=100,
            max_num_seqs=8,
            max_num_batched_tokens=128,
            enable_chunked_prefill=False,
            max_num_partial_prefills=3,
            scheduling_policy="priority",
            enable_admission_control=False,
            preemption_victim="least-waste",
            prepack_linears=False,
            linear_backend="onednn",
            fuse_kernels=False,
            shared_prefix_attention=False,
            async_scheduling=False,
            enforce_eager=True,
            enable_prefix_caching=False,
            block_size=32,
            num_blocks=7,
            memory_utilization=0.5,
        ),
        trace="steps.parquet",
        allow_errors=True,
        max_runtime=5_400.0,
    )


def test_limits_on_long_prefills_reach_the_engine():
    config = parse("a.jsonl", "--long-prefill-token-threshold", "32", "--max-long-partial-prefills", "2")
    assert config.engine == EngineConfig(long_prefill_token_threshold=32, max_long_partial_prefills=2)


def test_tiers_reach_the_engine():
    config = parse("a.jsonl", "--preemption-mode", "swap", "--swap-space", "0.5", "--enable-host-cache")
    assert config.engine == EngineConfig(preemption_mode="swap", swap_space=0.5, enable_host_cache=True)
    config = parse("a.jsonl", "--kv-cache-dir", "kv", "--kv-cache-dir-size", "2")
    assert config.engine == EngineConfig(kv_cache_dir="kv", kv_cache_dir_size=2.0)


def test_speculation_reaches_the_engine():
    config = parse(
        *("a.jsonl", "--speculative", "always", "--num-speculative-tokens", "6", "--speculative-model", "small"),
        *("--prompt-lookup-min", "1", "--prompt-lookup-max", "3", "--max-num-draft-tokens", "32"),
    )
    assert config.engine == EngineConfig(
        speculative="always",
        num_speculative_tokens=6,
        speculative_model="small",
        prompt_lookup_min=1,
        prompt_lookup_max=3,
        max_num_draft_tokens=32,
    )


def test_flag_wins_over_environment_and_environment_over_default(monkeypatch):
    monkeypatch.setenv("INFER_MAX_NUM_SEQS", "8")
    monkeypatch.setenv("INFER_GPU_MEMORY_UTILIZATION", "0.5")
    monkeypatch.setenv("INFER_TEMPERATURE", "0.7")
    monkeypatch.setenv("INFER_ENABLE_PREFIX_CACHING", "0")
    config = parse("a.jsonl", "--temperature", "0")
    assert config.engine == EngineConfig(max_num_seqs=8, memory_utilization=0.5, enable_prefix_caching=False)
    assert config.sampling == {"temperature": 0.0}


def test_flag_wins_over_the_variables_of_flags_that_it_excludes(monkeypatch):
    monkeypatch.setenv("INFER_PROMPT_COLUMN", "body")
    monkeypatch.setenv("INFER_SYSTEM", "Be kind")
    assert parse("a.jsonl").prompt == PromptSpec(prompt_column="body", system="Be kind")
    assert parse("a.jsonl", "--prompt", "Say {text}").prompt == PromptSpec(prompt="Say {text}", system="Be kind")
    assert parse("a.jsonl", "--raw").prompt == PromptSpec(prompt_column="body", raw=True)
    monkeypatch.setenv("INFER_RAW", "1")
    assert parse("a.jsonl", "--system", "Be brief").prompt == PromptSpec(prompt_column="body", system="Be brief")
    # Two variables that exclude each other are a mistake still.
    assert usage_error("a.jsonl")[0] == "--system needs the chat template that --raw leaves out"


def test_seed_is_none_where_none_is_given():
    # It is drawn when a run begins, and kept for as long as it can be resumed.
    assert parse("a.jsonl").seed is None


def test_prompt_file_is_read_as_an_editor_shows_it(tmp_path):
    (tmp_path / "prompt.txt").write_bytes("\ufeffSay\r\n{text}\r\n".encode())
    assert parse("a.jsonl", "--prompt-file", str(tmp_path / "prompt.txt")).prompt.prompt == "Say\n{text}"


def test_prompt_file_is_the_template(tmp_path):
    (tmp_path / "prompt.txt").write_text("Sag {text}: ä\n", encoding="utf-8")
    # Without the line end of its last line.
    assert parse("a.jsonl", "--prompt-file", str(tmp_path / "prompt.txt")).prompt == PromptSpec(prompt="Sag {text}: ä")


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("data.parquet", "data.infer.parquet"),
        ("in/data.jsonl", "in/data.infer.parquet"),
        ("data.jsonl.gz", "data.infer.parquet"),
        ("data.v2.jsonl.zst", "data.v2.infer.parquet"),
    ],
)
def test_output_is_named_after_the_input(name, output):
    assert default_output([name]) == output


def test_glob_without_a_match_is_what_is_wrong():
    with pytest.raises(InputError, match=r"no file matches: part-\*\.parquet"):
        default_output(["part-*.parquet"])


@pytest.mark.parametrize("inputs", [["a.parquet", "b.parquet"], ["part-*.parquet"], ["."], ["-"]])
def test_output_must_be_named_where_the_input_is_not_one_file(inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part-1.parquet").touch()
    with pytest.raises(UsageError) as caught:
        default_output(inputs)
    assert str(caught.value) == f"no output name follows from the input: {' '.join(inputs)}"
    assert caught.value.hint == "name one with -o OUT.parquet"


def test_row_has_one_prompt():
    assert usage_error("a.jsonl", "--prompt", "x {a}", "--prompt-column", "a") == (
        "a row has one prompt, given are 2: --prompt-column, --prompt",
        "leave one of them",
    )


@pytest.mark.parametrize("flag", ["--system", "--messages-column"])
def test_raw_leaves_no_place_for_chat(flag):
    assert usage_error("a.jsonl", "--raw", flag, "x") == (
        f"{flag} needs the chat template that --raw leaves out",
        "drop one of the two",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "0"), "--limit must be at least 1: 0"),
        (("--keep", "a,,b"), "--keep takes names separated by commas: 'a,,b'"),
        (("--stop-token-ids", "1;2"), "--stop-token-ids takes token ids separated by commas: '1;2'"),
        (("--allowed-token-ids", ""), "--allowed-token-ids takes token ids separated by commas: ''"),
        (("--logit-bias", "[1]"), '--logit-bias takes a JSON object like {"50256": -100}: [1]'),
        (("--logit-bias", '{"a": 1}'), '--logit-bias takes a JSON object like {"50256": -100}: {"a": 1}'),
        (("--prompt-file", "/dev/zero"), "--prompt-file is longer than 1 MiB: /dev/zero"),
        (("--prompt-file", "missing.txt"), "--prompt-file cannot be read: missing.txt: No such file or directory"),
    ],
)
def test_flag_that_does_not_parse_is_a_usage_error(arguments, message):
    assert usage_error("a.jsonl", *arguments)[0] == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "-1"), "temperature must be a finite number, at least 0: -1.0"),
        (("--stop", ""), "stop must be texts, none of them empty: ('',)"),
        (("--max-num-seqs", "0"), "max_num_seqs must be at least 1: 0"),
        (("--gpu-memory-utilization", "2"), "memory_utilization must be above 0 and at most 1: 2.0"),
    ],
)
def test_value_out_of_range_stops_the_job_before_anything_is_loaded(arguments, message):
    with pytest.raises(ConfigError) as caught:
        parse("a.jsonl", *arguments)
    assert str(caught.value) == message
