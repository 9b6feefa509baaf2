"""The type a model runs in."""

from __future__ import annotations

import pytest
import torch

from infer.engine.errors import ModelError
from infer.engine.model_dtype import select_dtype, stored_dtype
from infer.engine.safetensors_header import StoredTensor

CPU = torch.device("cpu")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def capabilities(monkeypatch):
    """Sets what the CPU is found to be capable of."""
    return lambda *names: monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True))


@pytest.mark.parametrize(
    ("names", "stored", "expected"),
    [
        (["avx512_bf16"], BF16, BF16),
        (["amx_bf16"], BF16, BF16),
        (["neon", "bf16"], BF16, BF16),
        (["avx2", "avx512_f"], BF16, F32),
        ([], BF16, F32),
        (["avx512_bf16", "avx512_fp16"], F16, F32),
        (["avx512_bf16"], F32, F32),
    ],
)
def test_auto_on_a_cpu_is_the_stored_type_only_where_the_cpu_is_fast_in_it(capabilities, names, stored, expected):
    capabilities(*names)
    assert select_dtype("auto", stored, CPU) is expected


@pytest.mark.parametrize(("requested", "expected"), [("bfloat16", BF16), ("float16", F16), ("float32", F32)])
def test_a_requested_type_is_taken(capabilities, requested, expected):
    capabilities()
    assert select_dtype(requested, BF16, CPU) is expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_stored_type_is_what_the_config_names(key):
    assert stored_dtype({key: "float16"}, []) is F16


@pytest.mark.parametrize(("dtype", "name", "other"), [(BF16, "BF16", "F32"), (F16, "F16", "F32"), (F32, "F32", "F16")])
def test_stored_type_is_that_of_most_weights_where_the_config_names_none(dtype, name, other):
    tensors = [StoredTensor("large", name, (8, 8)), *(StoredTensor(each, other, (3, 3)) for each in "abc")]
    assert stored_dtype({}, tensors) is dtype


@pytest.mark.parametrize("named", ["int8", ["float32"], "float64"])
def test_stored_type_that_is_not_run_is_refused(named):
    with pytest.raises(ModelError) as caught:
        stored_dtype({"dtype": named}, [])
    assert str(caught.value) == f"the checkpoint is in a type that is not run: {named}"
    assert caught.value.hint == "run: bfloat16, float16, float32"


def test_weights_of_a_type_that_is_not_run_are_refused():
    with pytest.raises(ModelError, match="the checkpoint is in a type that is not run: I64"):
        stored_dtype({}, [StoredTensor("a", "I64", (3,))])
