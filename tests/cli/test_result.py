"""The result columns of a row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tiny_tokenizers import chatml_tokenizer

from infer.cli.result import ResultBuilder, ResultColumns, result_schema
from infer.engine.request import Choice, Completion, TokenLogprob
from infer.engine.tokenizer import Tokenizer

ALWAYS = ResultColumns()
COMPLETION = Completion(7, (Choice("ok", (65, 66), "stop"),), num_prompt_tokens=5, num_cached_tokens=4)
FAILED = Completion(
    7,
    (Choice("o", (65,), "error"),),
    num_prompt_tokens=5,
    error_code="nan_logits",
    error="the logits of a step were not a number",
)


def make_builder(columns: ResultColumns = ALWAYS) -> ResultBuilder:
    return ResultBuilder(Tokenizer(chatml_tokenizer()), columns)


def test_schema_has_fixed_names_and_types():
    assert [f"{field.name} {field.type}" for field in result_schema(ResultColumns())] == [
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
    *_, logprobs, row = result_schema(ResultColumns(logprobs=True))
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
    completion = Completion(0, (Choice("", (end_id,), "stop", logprobs=(chosen,)),), num_prompt_tokens=1)

    record = ResultBuilder(tokenizer, ResultColumns(logprobs=True)).completed(0, completion)

    end = {"token": "<|im_end|>", "token_id": end_id, "logprob": -0.5}
    letter = {"token": "A", "token_id": letter_id, "logprob": -1.5}
    assert record["logprobs"] == [{**end, "top": [end, letter]}]


def test_several_answers_are_lists_and_one_that_was_cut_short_tells():
    columns = ResultColumns(logprobs=True, several=True, scores=True)
    chosen = TokenLogprob(65, -0.5, ())
    choices = (
        Choice("A", (65,), "stop", (chosen,), None, -0.5),
        Choice("AA", (65, 65), "length", (chosen,) * 2, None, -1),
    )
    record = make_builder(columns).completed(7, Completion(7, choices, num_prompt_tokens=5))
    position = record["logprobs"][0][0]
    assert position["token_id"] == 65
    assert record == {
        "responses": ["A", "AA"],
        "scores": [-0.5, -1],
        "finish_reason": "length",
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "error_code": None,
        "error": None,
        "logprobs": [[position], [position, position]],
        "_row": 7,
    }


@pytest.mark.parametrize("columns", [ResultColumns(logprobs=True), ResultColumns(True, True, True), ResultColumns()])
def test_every_record_fits_the_schema(columns):
    builder = make_builder(columns)
    chosen = TokenLogprob(65, -0.5, ())
    records = [
        builder.completed(0, COMPLETION),
        builder.completed(1, Completion(1, (Choice("A", (65,), "length", (chosen,), None, -0.5),), 1)),
        builder.completed(2, FAILED),
        builder.failed(3, "empty_prompt", "the prompt is empty"),
    ]
    schema = result_schema(columns)
    assert all(list(record) == schema.names for record in records)
    assert pa.Table.from_pylist(records, schema).num_rows == 4
