"""`infer run`: its flags. What they mean is in `config.py`, what happens in `job.py`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from infer.cli.stdout import print_summary
from infer.engine.config import EngineConfig

EPILOG = (
    "Every option but --stop and --bad-words can be set in the environment too: INFER_ and its name, as in "
    "INFER_MAX_TOKENS. A flag wins."
)

_DEFAULT = EngineConfig()

_input = partial(typer.Argument, rich_help_panel="Input", show_default=False)
_option = partial(typer.Option, show_envvar=False, show_default=False)
_rows = partial(_option, rich_help_panel="Input")
_prompt = partial(_option, rich_help_panel="Prompt (without any of these: the column prompt, messages or text)")
_output = partial(_option, rich_help_panel="Output")
_model = partial(_option, rich_help_panel="Model", show_default=True)
_sampling = partial(_option, rich_help_panel="Sampling (what is left out, the model's generation_config says)")
# A variable would be split at spaces, and a text may hold some.
_texts = partial(_sampling, allow_from_autoenv=False)
_fitted = partial(_option, rich_help_panel="Engine (what is left out is fitted to the model, the memory and the data)")
_engine = partial(_fitted, show_default=True)
_report = partial(_option, rich_help_panel="Report")


def run_command(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        _input(metavar="INPUT", help="Parquet or JSONL files, several as one; - is JSONL piped in"),
    ],
    limit: Annotated[int | None, _rows(metavar="N", help="only the first N rows")] = None,
    prompt_column: Annotated[str | None, _prompt(metavar="NAME", help="the column that holds the prompt")] = None,
    prompt: Annotated[
        str | None, _prompt(metavar="TEXT", help="a template: 'Summarise: {text}'; {{ is a brace")
    ] = None,
    prompt_file: Annotated[str | None, _prompt(metavar="FILE", help="a file that holds the template")] = None,
    messages_column: Annotated[str | None, _prompt(metavar="NAME", help="the column that holds chat messages")] = None,
    system: Annotated[str | None, _prompt(metavar="TEXT", help="the system message of every row")] = None,
    raw: Annotated[bool, _prompt("--raw", help="the text as it is, without the chat template")] = False,
    special_tokens: Annotated[
        Literal["sanitize", "allow", "error"],
        _prompt(metavar="NAME", help="control tokens in a row: sanitize, text; allow; error"),
    ] = "sanitize",
    row_params: Annotated[
        bool, _prompt("--row-params", help="columns named like sampling options override them")
    ] = False,
    output: Annotated[
        str | None, _output("-o", "--output", metavar="FILE", help=".parquet, .jsonl, DIR/, or -")
    ] = None,
    overwrite: Annotated[bool, _output("--overwrite", help="replace an output that exists")] = False,
    restart: Annotated[bool, _output("--restart", help="discard what an earlier run has saved")] = False,
    state_dir: Annotated[
        str | None, _output(metavar="DIR", help="where to save rows [default: beside the output]")
    ] = None,
    save_interval: Annotated[
        float, _output(metavar="SEC", help="most seconds until rows are saved", show_default=True)
    ] = 30.0,
    keep: Annotated[str | None, _output(metavar="A,B", help="the input columns to keep, instead of all")] = None,
    prefix: Annotated[str, _output(metavar="TEXT", help="put before the names of the result columns")] = "",
    model: Annotated[
        str, _model(metavar="MODEL", help="directory, hub id, .gguf file, built-in name")
    ] = _DEFAULT.model,
    revision: Annotated[str | None, _model(metavar="REV", help="of a hub id: branch, tag or commit")] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"], _model(metavar="TYPE", help="bfloat16, float16, float32")
    ] = _DEFAULT.dtype,
    quantization: Annotated[
        Literal["auto", "none", "int8"],
        _model(metavar="NAME", help="auto: as the checkpoint has it; none; int8: weights and activations"),
    ] = _DEFAULT.quantization,
    device: Annotated[str, _model(metavar="DEVICE", help="cpu, cuda, cuda:1")] = _DEFAULT.device,
    attention_backend: Annotated[
        Literal["auto", "reference", "cpu", "triton"], _model(metavar="NAME", help="reference, cpu, triton")
    ] = _DEFAULT.attention_backend,
    max_tokens: Annotated[int | None, _sampling(metavar="N", help="most tokens to generate")] = None,
    min_tokens: Annotated[int | None, _sampling(metavar="N", help="no end before so many")] = None,
    temperature: Annotated[float | None, _sampling(metavar="X", help="0 is greedy")] = None,
    top_p: Annotated[float | None, _sampling(metavar="X", help="keep the likeliest that make up X")] = None,
    top_k: Annotated[int | None, _sampling(metavar="N", help="keep the N likeliest; 0 keeps all")] = None,
    min_p: Annotated[float | None, _sampling(metavar="X", help="keep those at least X times the likeliest")] = None,
    presence_penalty: Annotated[float | None, _sampling(metavar="X", help="on tokens of the answer so far")] = None,
    frequency_penalty: Annotated[float | None, _sampling(metavar="X", help="the same, once per occurrence")] = None,
    repetition_penalty: Annotated[float | None, _sampling(metavar="X", help="on the prompt's too; 1 is none")] = None,
    n: Annotated[int | None, _sampling(metavar="N", help="answers to a row: a list, in responses")] = None,
    best_of: Annotated[int | None, _sampling(metavar="N", help="draw so many, keep the likeliest")] = None,
    beam_width: Annotated[int | None, _sampling(metavar="N", help="beam search over so many, no drawing")] = None,
    length_penalty: Annotated[float | None, _sampling(metavar="X", help="of beams: above 1 favours long ones")] = None,
    stop: Annotated[list[str] | None, _texts(metavar="TEXT", help="end before this text; repeatable")] = None,
    stop_token_ids: Annotated[str | None, _sampling(metavar="I,J", help="end at these tokens")] = None,
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", help="do not end before the limit")] = False,
    logprobs: Annotated[int | None, _sampling(metavar="N", help="a column of them, with the N likeliest")] = None,
    logit_bias: Annotated[str | None, _sampling(metavar="JSON", help='added to logits: {"50256": -100}')] = None,
    bad_words: Annotated[list[str] | None, _texts(metavar="TEXT", help="never generated; repeatable")] = None,
    allowed_token_ids: Annotated[str | None, _sampling(metavar="I,J", help="nothing but these tokens")] = None,
    seed: Annotated[int | None, _sampling(metavar="N", help="of all draws; left out: drawn and printed")] = None,
    seed_by: Annotated[
        Literal["row", "content"],
        _sampling(metavar="NAME", help="row; content: equal rows draw alike", show_default=True),
    ] = "row",
    max_model_len: Annotated[int | None, _fitted(metavar="N", help="most tokens of prompt and answer")] = None,
    max_num_seqs: Annotated[int, _engine(metavar="N", help="sequences in a step")] = _DEFAULT.max_num_seqs,
    max_num_batched_tokens: Annotated[
        int, _engine(metavar="N", help="tokens in a step")
    ] = _DEFAULT.max_num_batched_tokens,
    order: Annotated[
        Literal["plan", "input"], _engine(metavar="NAME", help="plan: rows of a prefix together; input")
    ] = "plan",
    long_prefill_token_threshold: Annotated[
        int, _engine(metavar="N", help="most of one prompt in a step, 0: any")
    ] = _DEFAULT.long_prefill_token_threshold,
    enable_chunked_prefill: Annotated[
        bool, _fitted(help="split long prompts [default: on]")
    ] = _DEFAULT.enable_chunked_prefill,
    enable_prefix_caching: Annotated[
        bool, _fitted(help="reuse shared prefixes [default: on]")
    ] = _DEFAULT.enable_prefix_caching,
    speculative: Annotated[
        Literal["auto", "always", "off"], _engine(metavar="NAME", help="guess ahead: auto, always, off")
    ] = _DEFAULT.speculative,
    num_speculative_tokens: Annotated[
        int, _engine(metavar="N", help="most guesses of a sequence in a step")
    ] = _DEFAULT.num_speculative_tokens,
    speculative_model: Annotated[
        str | None, _fitted(metavar="MODEL", help="a smaller one that guesses, not the text itself")
    ] = None,
    prompt_lookup_min: Annotated[
        int, _engine(metavar="N", help="least tokens that must recur for a guess")
    ] = _DEFAULT.prompt_lookup_min,
    prompt_lookup_max: Annotated[int, _engine(metavar="N", help="most that are compared")] = _DEFAULT.prompt_lookup_max,
    max_num_draft_tokens: Annotated[
        int, _engine(metavar="N", help="most guesses in a step")
    ] = _DEFAULT.max_num_draft_tokens,
    row_timeout: Annotated[
        float | None, _fitted(metavar="SECONDS", help="give a row up after so long [default: never]")
    ] = _DEFAULT.row_timeout,
    prepack_linears: Annotated[
        bool, _fitted(help="lay weights out once, on a CPU [default: on]")
    ] = _DEFAULT.prepack_linears,
    linear_backend: Annotated[
        Literal["auto", "cpu", "onednn"], _engine(metavar="NAME", help="cpu, onednn: whose products, on a CPU")
    ] = _DEFAULT.linear_backend,
    fuse_kernels: Annotated[bool, _fitted(help="layers as fewer kernels [default: on]")] = _DEFAULT.fuse_kernels,
    async_scheduling: Annotated[
        bool | None, _fitted(help="plan a step while one runs [default: on for CUDA]")
    ] = _DEFAULT.async_scheduling,
    enforce_eager: Annotated[
        bool, _fitted("--enforce-eager", help="no CUDA graphs for decode steps")
    ] = _DEFAULT.enforce_eager,
    shared_prefix_attention: Annotated[
        bool, _fitted(help="attend to a prefix once for all that share it [default: on]")
    ] = _DEFAULT.shared_prefix_attention,
    block_size: Annotated[int, _engine(metavar="N", help="tokens in a cache block")] = _DEFAULT.block_size,
    kv_cache_dtype: Annotated[
        Literal["auto", "int8", "fp8"], _engine(metavar="TYPE", help="int8, fp8: half the size")
    ] = _DEFAULT.kv_cache_dtype,
    num_blocks: Annotated[int | None, _fitted(metavar="N", help="blocks in the cache")] = None,
    gpu_memory_utilization: Annotated[
        float, _engine(metavar="X", help="share to fill, of RAM without a GPU")
    ] = _DEFAULT.memory_utilization,
    max_num_partial_prefills: Annotated[
        int, _engine(metavar="N", help="most prompts a step leaves unfinished, 0: any")
    ] = _DEFAULT.max_num_partial_prefills,
    max_long_partial_prefills: Annotated[
        int, _engine(metavar="N", help="most of these over the threshold, 0: any")
    ] = _DEFAULT.max_long_partial_prefills,
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], _engine(metavar="NAME", help="fcfs; priority: column priority, smaller first")
    ] = _DEFAULT.scheduling_policy,
    preemption_mode: Annotated[
        Literal["auto", "recompute", "swap"], _engine(metavar="NAME", help="auto: the cheaper; recompute, swap")
    ] = _DEFAULT.preemption_mode,
    swap_space: Annotated[
        float | None, _fitted(metavar="X", help="GiB of host memory for swapped blocks [default: up to 4]")
    ] = None,
    enable_host_cache: Annotated[
        bool, _fitted(help="keep evicted prefixes there too [default: off]")
    ] = _DEFAULT.enable_host_cache,
    kv_cache_dir: Annotated[
        str | None, _fitted(metavar="DIR", help="keep the blocks of prompts there, for later runs")
    ] = None,
    kv_cache_dir_size: Annotated[
        float, _engine(metavar="X", help="GiB of it, the oldest go first")
    ] = _DEFAULT.kv_cache_dir_size,
    enable_admission_control: Annotated[
        bool, _fitted(help="foresee the room for answers [default: on]")
    ] = _DEFAULT.enable_admission_control,
    preemption_victim: Annotated[
        Literal["last", "least-waste"], _engine(metavar="NAME", help="who gives way: last, least-waste")
    ] = _DEFAULT.preemption_victim,
    json: Annotated[bool, _report("--json", help="print one JSON object at the end")] = False,
    trace: Annotated[str | None, _report(metavar="FILE", help="write what each step decided, as .parquet")] = None,
    allow_errors: Annotated[bool, _report("--allow-errors", help="exit 0 although rows failed")] = False,
    on_error: Annotated[
        Literal["record", "fail"], _report(metavar="NAME", help="record; fail: stop at the first row that fails")
    ] = "record",
    max_errors: Annotated[
        str | None, _report(metavar="N", help="stop when more rows fail, or more than 1%; run again")
    ] = None,
    max_runtime: Annotated[str | None, _report(metavar="TIME", help="stop after 90, 30m, 1h30m; run again")] = None,
) -> None:
    """Run a model over every row of INPUT.

    The output has the rows in their order, with the model's answers beside them. Without -o, data.parquet gives
    data.infer.parquet.
    """
    # Here, because the help page must not wait for what a run needs.
    from infer.cli.config import job_config
    from infer.cli.job import run_job

    summary = run_job(job_config(context.params, names_from_environment(context)))
    if json:
        print_summary(summary.to_json())
    raise typer.Exit(summary.exit_code)


def names_from_environment(context: typer.Context) -> set[str]:
    """Of the parameters whose values are `INFER_*` variables'."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    # By name: typer's own enumeration is not public.
    return {name for name, source in sources.items() if source is not None and source.name == "ENVIRONMENT"}
