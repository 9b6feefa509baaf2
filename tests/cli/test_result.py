"""The result columns of a row."""

from __future__ import annotations

import pyarrow as pa
from tiny_tokenizers import chatml_tokenizer

from infer.cli.result import ResultBuilder, result_schema
from infer.engine.request import Completion, TokenLogprob
from infer.engine.tokenizer import Tokenizer

COMPLETION = Completion(7, "ok", (65, 66), "stop", num_prompt_tokens=5, num_cached_tokens=4)
FAILED = Completion(
    7, "o", (65,), "error", num_prompt_tokens=5, error_code="nan_logits", error="the logits of a step were not a number"
)


def make_builder(*, logprobs: bool = False) -> ResultBuilder:
    return ResultBuilder(Tokenizer(chatml_tokenizer()), logprobs=logprobs)


def test_schema_has_fixed_names_and_types():
    assert [f"{field.name} {field.type}" for field in result_schema(logprobs=False)] == [
        "response string",
        "finish_reason string",
        "prompt_tokens int32",
        "completion_tokens int32",
        "cached_tokens int32",
        "error_code string",
        "error string",
        "_row int64",
    ]


def test_schema_with_logprobs_has_them_before_the_row_number():
    *_, logprobs, row = result_schema(logprobs=True)
    token = "token: string, token_id: int32, logprob: float"
    assert str(logprobs.type) == f"list<item: struct<{token}, top: list<item: struct<{token}>>>>"
    assert row.name == "_row"


def test_completed_row_has_the_answer_and_its_counts():
    assert make_builder().completed(7, COMPLETION) == {
        "response": "ok",
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "cached_tokens": 4,
        "error_code": None,
        "error": None,
        "_row": 7,
    }


def test_row_that_failed_in_the_engine_has_no_answer():
    assert make_builder().completed(7, FAILED) == {
        "response": None,
        "finish_reason": "error",
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "error_code": "nan_logits",
        "error": "the logits of a step were not a number",
        "_row": 7,
    }


def test_row_that_never_reached_the_engine_has_no_counts():
    assert make_builder().failed(7, "empty_prompt", "the prompt is empty") == {
        "response": None,
        "finish_reason": "error",
        "prompt_tokens": None,
        "completion_tokens": None,
        "cached_tokens": None,
        "error_code": "empty_prompt",
        "error": "the prompt is empty",
        "_row": 7,
    }


def test_logprobs_name_each_token_and_its_alternatives():
    tokenizer = Tokenizer(chatml_tokenizer())
    end_id = tokenizer.encode_prompt(tokenizer.render("", lambda _: "<|im_end|>"), add_special_tokens=False)[0]
    letter_id = tokenizer.encode("A", add_special_tokens=False)[0]
    chosen = TokenLogprob(end_id, -0.5, ((end_id, -0.5), (letter_id, -1.5)))
    completion = Completion(0, "", (end_id,), "stop", num_prompt_tokens=1, logprobs=(chosen,))

    record = ResultBuilder(tokenizer, logprobs=True).completed(0, completion)

    end = {"token": "<|im_end|>", "token_id": end_id, "logprob": -0.5}
    letter = {"token": "A", "token_id": letter_id, "logprob": -1.5}
    assert record["logprobs"] == [{**end, "top": [end, letter]}]


def test_every_record_fits_the_schema():
    builder = make_builder(logprobs=True)
    chosen = TokenLogprob(65, -0.5, ())
    records = [
        builder.completed(0, COMPLETION),
        builder.completed(1, Completion(1, "A", (65,), "length", num_prompt_tokens=1, logprobs=(chosen,))),
        builder.completed(2, FAILED),
        builder.failed(3, "empty_prompt", "the prompt is empty"),
    ]
    assert all(record.keys() == set(result_schema(logprobs=True).names) for record in records)
    assert pa.Table.from_pylist(records, result_schema(logprobs=True)).num_rows == 4
