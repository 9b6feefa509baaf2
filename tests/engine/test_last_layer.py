"""The last layer, cut down to the tokens that are read of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infer.engine.last_layer import TrimmedLayer, mark_last_layer


class Layer(TrimmedLayer):
    def forward(self, attended, hidden_states, context):
        self.num_finished = 0

        def double_sum(attended, hidden_states):
            self.num_finished = attended.shape[1]
            return 2.0 * (attended + hidden_states)

        return self.finish(attended, hidden_states, context, double_sum)


class Context:
    def __init__(self, *indices):
        self.logits_indices = torch.tensor(indices) if indices else None


def run_layer(context, num_tokens=10, is_last=True):
    torch.manual_seed(0)
    attended, hidden_states = torch.randn(2, 1, num_tokens, 8)
    layer = Layer()
    layer.is_last = is_last
    output = layer(attended, hidden_states, context)
    return layer.num_finished, output, 2.0 * (attended + hidden_states)


def test_last_layer_finishes_only_the_tokens_that_are_read():
    num_finished, output, whole = run_layer(Context(3, 9))
    assert num_finished == 2
    assert torch.equal(output[:, [3, 9]], whole[:, [3, 9]])
    assert output.shape == whole.shape


@pytest.mark.parametrize("context", [Context(), Context(*range(6))], ids=["unknown", "most"])
def test_last_layer_finishes_all_tokens_where_nothing_is_gained(context):
    num_finished, output, whole = run_layer(context)
    assert num_finished == 10
    assert torch.equal(output, whole)


def test_other_layers_finish_all_tokens():
    num_finished, output, whole = run_layer(Context(3), is_last=False)
    assert num_finished == 10
    assert torch.equal(output, whole)


def test_only_the_last_of_the_layers_is_marked():
    model = nn.Module()
    model.layers = nn.ModuleList([Layer(), Layer(), Layer()])
    assert mark_last_layer(model)
    assert [layer.is_last for layer in model.layers] == [False, False, True]


def test_layers_of_another_kind_are_left_alone():
    model = nn.Module()
    model.layers = nn.ModuleList([Layer(), nn.Linear(2, 2)])
    assert not mark_last_layer(model)
