"""Sampling parameters from the columns of a row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from infer.cli.errors import UsageError
from infer.cli.row_params import RowParams
from infer.engine.errors import RequestError
from infer.engine.sampling_params import SamplingParams
from infer.io.parquet import ArrowBlock
from infer.io.row import Row

DEFAULTS = SamplingParams(temperature=0.5, max_tokens=64)


def make_row(**columns: object) -> Row:
    """A row as Parquet gives it; a value may be an Arrow array of one element, where the type matters."""
    arrays = [value if isinstance(value, pa.Array) else pa.array([value]) for value in columns.values()]
    return Row(0, ArrowBlock(pa.RecordBatch.from_arrays(arrays, list(columns))))


def read(**columns: object) -> SamplingParams:
    return RowParams(columns).sampling_params(make_row(**columns), DEFAULTS)


def test_columns_of_other_names_are_left_alone():
    assert RowParams(["text", "max_tokens", "Temperature", "stop"]).columns == ("max_tokens", "stop")


def test_input_without_such_a_column_is_refused():
    with pytest.raises(UsageError) as caught:
        RowParams(["text", "maxtokens"])
    assert str(caught.value) == "--row-params finds no column named like a sampling parameter"
    assert caught.value.hint.startswith("the names are temperature, top_p, top_k, min_p, ")


def test_row_has_a_seed_of_its_own_or_the_jobs():
    seeds = RowParams(["seed", "max_tokens"])
    assert seeds.columns == ("seed", "max_tokens")
    assert seeds.seed(make_row(seed=7, max_tokens=3), 1) == 7
    assert seeds.seed(make_row(seed=7.0, max_tokens=3), 1) == 7
    assert seeds.seed(make_row(seed=None, max_tokens=3), 1) == 1
    assert seeds.sampling_params(make_row(seed=7, max_tokens=3), DEFAULTS).max_tokens == 3
    assert RowParams(["max_tokens"]).seed(make_row(max_tokens=3), 1) == 1


@pytest.mark.parametrize("seed", ["7", 7.5, True])
def test_seed_that_is_no_whole_number_is_an_error_of_its_row(seed):
    with pytest.raises(RequestError, match="seed must be a whole number") as caught:
        RowParams(["seed"]).seed(make_row(seed=seed), 1)
    assert caught.value.code == "invalid_input"


@pytest.mark.parametrize("token_id", [float("inf"), float("nan"), 1.5])
def test_bias_of_what_is_no_token_is_an_error_of_its_row(token_id):
    with pytest.raises(RequestError, match="logit_bias must be token ids"):
        read(logit_bias=pa.array([[[token_id, 1.0]]], pa.list_(pa.list_(pa.float64()))))


def test_row_overrides_what_it_names_and_keeps_the_rest():
    assert read(max_tokens=8, top_p=0.9) == SamplingParams(temperature=0.5, max_tokens=8, top_p=0.9)


def test_null_leaves_the_default():
    assert read(max_tokens=pa.array([None], pa.int64()), temperature=pa.array([None])) == DEFAULTS


def test_whole_numbers_may_come_as_floats():
    assert read(max_tokens=8.0, top_k=5.0, logprobs=2.0) == SamplingParams(
        temperature=0.5, max_tokens=8, top_k=5, logprobs=2
    )


def test_stop_is_one_text_or_several():
    assert read(stop="END").stop == ("END",)
    assert read(stop=["a", "b"]).stop == ("a", "b")


def test_token_ids_are_a_list():
    params = read(stop_token_ids=[3, 4], allowed_token_ids=pa.array([[5.0]]))
    assert (params.stop_token_ids, params.allowed_token_ids) == ((3, 4), (5,))


def test_logit_bias_is_a_map_or_a_struct_with_nulls():
    as_map = pa.array([[("7", -1.5)]], pa.map_(pa.string(), pa.float64()))
    as_struct = pa.array([{"7": -1.5, "9": None}], pa.struct([("7", pa.float64()), ("9", pa.float64())]))
    assert read(logit_bias=as_map).logit_bias == {7: -1.5}
    assert read(logit_bias=as_struct).logit_bias == {7: -1.5}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number, at least 1: 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number, at least 1: 1.5"),
        ({"max_tokens": float("inf")}, "max_tokens must be a whole number, at least 1: inf"),
        ({"max_tokens": True}, "max_tokens must be a whole number, at least 1: True"),
        ({"temperature": "hot"}, "temperature must be a finite number, at least 0: 'hot'"),
        ({"temperature": float("nan")}, "temperature must be a finite number, at least 0: nan"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false: 1"),
        ({"stop": ""}, "stop must be texts, none of them empty: ('',)"),
        ({"stop_token_ids": "3"}, "stop_token_ids must be a sequence of token ids: '3'"),
        ({"logit_bias": 3}, "logit_bias must be token ids with numbers from -100 to 100: 3"),
        ({"min_tokens": 65}, "min_tokens must be at most max_tokens, 64: 65"),
    ],
)
def test_value_that_cannot_be_is_an_error_of_the_row(columns, message):
    with pytest.raises(RequestError) as caught:
        read(**columns)
    assert (caught.value.code, str(caught.value)) == ("invalid_input", message)
