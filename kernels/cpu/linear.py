"""linear and gated_linear on a CPU: what they compute is said in `infer.kernels.linear`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch

from infer.kernels.cpu.compiler import compile_worker, compiled
from infer.kernels.cpu.linear_block import Epilogue, multiplication
from infer.kernels.cpu.operands import element_bytes
from infer.kernels.cpu.panels import PANEL
from infer.kernels.cpu.record import take_unit
from infer.kernels.cpu.register_block import MAX_COLUMNS, MAX_ROWS
from infer.kernels.cpu.row_wise import element_arithmetic
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.cpu.arithmetic import Arithmetic
    from infer.kernels.cpu.compiler import Worker
    from infer.kernels.cpu.panels import Panels

_WORD_BYTES = 4
_LINE_BYTES = 64
_MAX_BLOCKS_AT_ONCE = 32
"""Of `MAX_ROWS` rows. These stay in a second-level cache while panels come and go."""

_UNIT_OVERHEAD = 3
"""What a unit costs beside its rows, in rows: it takes its panel from a farther cache."""


class Product(NamedTuple):
    """One layer. Tensors are addresses; `x_bytes` from a row to the next."""

    left: int
    left_bytes: int
    panels: int
    bias: int
    residual: int
    out: int
    out_bytes: int
    out_features: int
    num_steps: int
    num_panels: int


class Linear(NamedTuple):
    """One call: a product, then how its rows and panels are shared among the threads."""

    left: int
    left_bytes: int
    panels: int
    bias: int
    residual: int
    out: int
    out_bytes: int
    out_features: int
    num_steps: int
    num_panels: int
    num_rows: int
    rows_at_once: int
    num_units: int
    num_threads: int


def linear(hidden: torch.Tensor, panels: Panels, residual: torch.Tensor | None = None) -> torch.Tensor:
    if residual is None:
        return _run(Epilogue.PLAIN, hidden, panels, None)
    return _run(Epilogue.ADD, hidden, panels, residual.contiguous())


def gated_linear(hidden: torch.Tensor, panels: Panels) -> torch.Tensor:
    return _run(Epilogue.GATE, hidden, panels, None)


def _run(epilogue: Epilogue, hidden: torch.Tensor, panels: Panels, residual: torch.Tensor | None) -> torch.Tensor:
    out = hidden.new_empty(*hidden.shape[:-1], panels.out_features)
    rows = hidden.reshape(-1, panels.in_features)
    if rows.stride()[1] != 1:
        rows = rows.contiguous()
    num_rows = len(rows)
    if num_rows:
        num_threads = torch.get_num_threads()
        rows_at_once = choose_rows_at_once(num_rows, panels.num_panels, num_threads)
        num_units = -(-num_rows // rows_at_once) * panels.num_panels
        residual_address = 0 if residual is None else residual.data_ptr()
        product = product_of(rows, panels, residual_address, out)
        worker = _worker(element_arithmetic(hidden.dtype), epilogue)
        num_threads = min(num_threads, num_units)
        run(worker, (*product, num_rows, rows_at_once, num_units, num_threads), num_threads)
    return out


def product_of(rows: torch.Tensor, panels: Panels, residual: int, out: torch.Tensor) -> Product:
    """rows, out: `[num_rows, ...]` whose elements lie side by side; residual: an address, laid out as `out`"""
    return Product(
        rows.data_ptr(),
        rows.stride()[0] * rows.itemsize,
        *panels.addresses,
        residual,
        out.data_ptr(),
        panels.out_features * out.itemsize,
        panels.out_features,
        panels.num_steps,
        panels.num_panels,
    )


@functools.lru_cache(4096)
def choose_rows_at_once(num_rows: int, num_panels: int, num_threads: int) -> int:
    """How many rows a unit of work has, so that threads which take one after the other end at about the same time."""
    num_blocks = -(-num_rows // MAX_ROWS)
    best_cost, best = float("inf"), 0
    for blocks in range(min(num_blocks, _MAX_BLOCKS_AT_ONCE), 0, -1):
        size = blocks * MAX_ROWS
        num_whole, rest = divmod(num_rows, size)
        # Whole ones first, then the smaller: rounds of the threads.
        rounds = -(-num_whole * num_panels // num_threads)
        free = rounds * num_threads - num_whole * num_panels
        cost = rounds * (size + _UNIT_OVERHEAD)
        if rest:
            cost += max(0, -(-(num_panels - free) // num_threads)) * (rest + _UNIT_OVERHEAD)
        if cost < best_cost:
            best_cost, best = cost, size
    return best


def rows_multiplier(epilogue: Epilogue) -> Callable[[Any, Product, int, int, int, int], None]:
    """Compiled code for one unit of work."""
    multiply = multiplication(epilogue)
    # A gated layer makes one column of two.
    out_columns = PANEL // 2 if epilogue is Epilogue.GATE else PANEL

    @compiled
    def multiply_rows(arithmetic: Any, product: Product, panel: int, next_panel: int, first: int, end: int) -> None:
        """Rows `first` to `end - 1` times a panel. Meanwhile another one, likely the thread's next, is brought near."""
        panel_bytes = product.num_steps * MAX_COLUMNS * _LINE_BYTES
        weights = product.panels + panel * panel_bytes
        ahead = product.panels + next_panel * panel_bytes
        bias = product.bias + panel * PANEL * _WORD_BYTES
        column = panel * out_columns
        for row in range(first, end, MAX_ROWS):
            place = row * product.out_bytes + column * element_bytes(arithmetic)
            multiply(
                arithmetic,
                min(MAX_ROWS, end - row),
                product.left + row * product.left_bytes,
                product.left_bytes,
                weights,
                ahead,
                product.num_steps,
                bias,
                product.residual + place,
                product.out + place,
                product.out_bytes,
                product.out_features - column,
            )
            # In as many pieces as a panel has vectors; then there is nothing left to bring.
            if row - first < (MAX_COLUMNS - 1) * MAX_ROWS:
                ahead += product.num_steps * _LINE_BYTES
            else:
                ahead = weights

    return multiply_rows


@functools.cache
def _worker(arithmetic: Arithmetic, epilogue: Epilogue) -> Worker:
    multiply_rows = rows_multiplier(epilogue)

    def work(pointer: Any) -> None:
        call = numba.carray(pointer, 1)[0]
        product = Product(
            call.left,
            call.left_bytes,
            call.panels,
            call.bias,
            call.residual,
            call.out,
            call.out_bytes,
            call.out_features,
            call.num_steps,
            call.num_panels,
        )
        while True:
            unit = take_unit(call)
            if unit >= call.num_units:
                return
            first = unit // call.num_panels * call.rows_at_once
            end = min(first + call.rows_at_once, call.num_rows)
            panel, next_panel = unit % call.num_panels, (unit + call.num_threads) % call.num_panels
            multiply_rows(arithmetic, product, panel, next_panel, first, end)

    return compile_worker(work, Linear)
