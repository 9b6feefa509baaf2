"""Grouped weights, and ggml's blocks as such: no number is lost or moved."""

from __future__ import annotations

import pytest
import torch
from weight_blocks import numbers_of, random_blocks

from infer.kernels.gguf_blocks import PACKED_TYPES, blocks_to_codes
from infer.kernels.grouped_weight import Codes, join_weights, pack_codes, unpack_rows, unpack_weight


@pytest.mark.parametrize("type_name", sorted(PACKED_TYPES))
@pytest.mark.parametrize("num_rows", [1, 16, 37])
def test_blocks_are_the_numbers_that_the_gguf_library_has(num_rows, type_name):
    blocks = random_blocks(type_name, num_rows, 512)
    weight = pack_codes(blocks_to_codes(type_name, torch.from_numpy(blocks)))
    torch.testing.assert_close(unpack_weight(weight), numbers_of(type_name, blocks), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("type_name", "bits"), [("Q4_0", 4.5), ("Q4_1", 5.0), ("Q8_0", 8.5), ("Q4_K", 4.625), ("Q6_K", 6.5625)]
)
def test_weight_is_hardly_larger_than_its_blocks(type_name, bits):
    weight = pack_codes(blocks_to_codes(type_name, torch.from_numpy(random_blocks(type_name, 64, 512))))
    assert weight.num_bytes * 8 / (64 * 512) == bits


def test_some_rows_are_those_of_the_whole():
    blocks = random_blocks("Q6_K", 50, 256)
    weight = pack_codes(blocks_to_codes("Q6_K", torch.from_numpy(blocks)))
    rows = torch.tensor([49, 0, 8, 8, 15, 16, 31])
    torch.testing.assert_close(unpack_rows(weight, rows), numbers_of("Q6_K", blocks)[rows], rtol=0, atol=0)
    assert unpack_rows(weight, rows[:0]).shape == (0, 256)


def test_neighbours_of_one_form_become_one():
    kinds = [("Q4_K", 32), ("Q4_K", 16), ("Q6_K", 48), ("Q6_K", 20), ("Q6_K", 16), ("Q4_K", 16)]
    blocks = [random_blocks(name, num_rows, 256, seed=seed) for seed, (name, num_rows) in enumerate(kinds)]
    weights = [
        pack_codes(blocks_to_codes(name, torch.from_numpy(each))) for (name, _), each in zip(kinds, blocks, strict=True)
    ]
    joined = join_weights(weights)
    assert [weight.out_features for weight in joined] == [48, 68, 16, 16]
    expected = torch.cat([numbers_of(name, each) for (name, _), each in zip(kinds, blocks, strict=True)])
    torch.testing.assert_close(torch.cat([unpack_weight(weight) for weight in joined]), expected, rtol=0, atol=0)


def test_group_may_be_a_whole_row():
    codes = torch.randint(-128, 128, (20, 48)).to(torch.int8)
    scales = torch.rand(20, 1)
    weight = pack_codes(Codes(codes, 8, zero=0, group=48, scales=scales))
    torch.testing.assert_close(unpack_weight(weight), codes * scales, rtol=0, atol=0)


@pytest.mark.parametrize(("type_name", "offset"), [("Q4_1", 0), ("Q4_1", 2), ("Q8_0", 0), ("Q4_K", 2), ("Q6_K", 208)])
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
def test_scale_that_is_no_number_is_refused(type_name, offset, bits):
    blocks = random_blocks(type_name, 3, 256)
    blocks[1, offset : offset + 2] = (bits & 255, bits >> 8)
    with pytest.raises(ValueError, match="a scale is infinite or no number"):
        blocks_to_codes(type_name, torch.from_numpy(blocks))
