"""rotary_embedding on a CPU: what it computes is said in `infer.kernels.rope`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
from numpy import float32

from infer.kernels.cpu.compiler import Worker, compile_worker, compiled, record_of
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, store_elements
from infer.kernels.cpu.row_wise import ROWS_AT_ONCE, run_rows
from infer.kernels.cpu.simd import add, multiply, splat, take_number

if TYPE_CHECKING:
    import torch

    from infer.kernels.cpu.arithmetic import Arithmetic


class Turn(NamedTuple):
    """One call. Tensors are addresses; a row is a token."""

    heads: int
    cos: int
    sin: int
    output: int
    num_heads: int
    head_dim: int
    token_bytes: int
    """From a token's heads to the next one's."""
    head_bytes: int
    num_rows: int
    num_taken: int


def rotary_embedding(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    num_tokens, num_heads, head_dim = heads.shape
    assert head_dim % (2 * LANES) == 0, head_dim
    output = heads.new_empty(heads.shape)
    addresses = (heads.data_ptr(), cos.data_ptr(), sin.data_ptr(), output.data_ptr())
    strides = (heads.stride(0) * heads.itemsize, heads.stride(1) * heads.itemsize)
    run_rows(_worker, heads.dtype, num_tokens, (*addresses, num_heads, head_dim, *strides))
    return output


@functools.cache
def _worker(arithmetic: Arithmetic) -> Worker:
    def work(call: Any) -> None:
        _turn(arithmetic, numba.carray(call, 1)[0])

    return compile_worker(work, record_of(Turn))


@compiled
def _turn(arithmetic: Any, call: Any) -> None:
    step = LANES * element_bytes(arithmetic)
    dim_bytes = call.head_dim * element_bytes(arithmetic)
    half = dim_bytes // 2
    minus = splat(float32(-1.0))
    while True:
        first = take_number(call.num_taken) * ROWS_AT_ONCE
        if first >= call.num_rows:
            return
        for token in range(first, min(first + ROWS_AT_ONCE, call.num_rows)):
            cos, sin = call.cos + token * dim_bytes, call.sin + token * dim_bytes
            for head in range(call.num_heads):
                source = call.heads + token * call.token_bytes + head * call.head_bytes
                target = call.output + (token * call.num_heads + head) * dim_bytes
                for offset in range(0, half, step):
                    left = load_elements(arithmetic, source + offset)
                    right = load_elements(arithmetic, source + half + offset)
                    cosines, sines = load_elements(arithmetic, cos + offset), load_elements(arithmetic, sin + offset)
                    _store_sum(arithmetic, left, cosines, multiply(minus, right), sines, target + offset)
                    cosines = load_elements(arithmetic, cos + half + offset)
                    sines = load_elements(arithmetic, sin + half + offset)
                    _store_sum(arithmetic, right, cosines, left, sines, target + half + offset)


@compiled
def _store_sum(arithmetic: Any, a: Any, b: Any, c: Any, d: Any, target: int) -> None:
    """`a * b + c * d`; each product goes through memory, which rounds it to the elements' type."""
    store_elements(arithmetic, multiply(a, b), target)
    first = load_elements(arithmetic, target)
    store_elements(arithmetic, multiply(c, d), target)
    store_elements(arithmetic, add(first, load_elements(arithmetic, target)), target)
