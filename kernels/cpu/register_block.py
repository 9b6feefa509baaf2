"""Matrix products in vector registers: a few rows by a few vectors, accumulated over the whole depth.

    out[row, column] = sum over steps of  left[row, step] * right[step, column]

`left` is read as scalars, each spread over a vector; `right` and `out` as vectors. Every element of `out` has one
accumulator, added to in the order of the steps: its value does not depend on the rows computed beside it.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from infer.kernels.cpu.arithmetic import Arithmetic, has_cpu_feature
from infer.kernels.cpu.layout import TILE
from infer.kernels.cpu.llvm import (
    FLOAT,
    INT32,
    INT64,
    LANES,
    BFloatType,
    broadcast,
    call,
    constant,
    emit_prefetch,
    fma,
    lanes,
    load_from,
    offset,
    store_to,
)

MAX_ROWS = 6
MAX_COLUMNS = 4 if has_cpu_feature("avx512f") else 1
"""In vectors. 6 x 4 accumulators, 4 vectors and a scalar fit the 32 registers of AVX-512, 6 x 1 accumulators of two
registers each the 16 of AVX2."""

_VECTOR_BYTES = 4 * LANES
_STEPS_PER_TILE = {Arithmetic.FLOAT32: TILE, Arithmetic.BFLOAT16_WIDENED: TILE // 2, Arithmetic.BFLOAT16_DOT: TILE // 2}
_SCALARS_PER_STEP = {Arithmetic.FLOAT32: 1, Arithmetic.BFLOAT16_WIDENED: 2, Arithmetic.BFLOAT16_DOT: 1}
"""On the left, of four bytes: a float32, or a pair of bfloat16."""

Values = list[ir.Value]


def emit_multiply_keys(
    builder: ir.IRBuilder, arithmetic: Arithmetic, rows: int, columns: int, arguments: Values
) -> None:
    """See `products.multiply_keys`, for these numbers of rows and columns."""
    queries, query_bytes, tiles, ahead, num_steps, scores, score_bytes = arguments
    block = Block(builder, arithmetic, rows, columns, queries, query_bytes)
    bases = [table_entry(builder, tiles, INT64(column)) for column in range(columns)]
    ahead_bases = [ahead_entry(builder, ahead, INT64(column)) for column in range(columns)]
    with cgutils.for_range(builder, num_steps) as loop:
        distance = builder.mul(loop.index, INT64(_VECTOR_BYTES))
        prefetch_lines(builder, ahead, [builder.add(base, distance) for base in ahead_bases])
        block.add_products(loop.index, [builder.add(base, distance) for base in bases])
    block.store(scores, score_bytes)


def emit_multiply_values(
    builder: ir.IRBuilder, arithmetic: Arithmetic, rows: int, columns: int, arguments: Values
) -> None:
    """See `products.multiply_values`, for these numbers of rows and columns."""
    weights, weight_bytes, tiles, ahead, num_tiles, value_bytes, column_offset, out, out_bytes = arguments
    block = Block(builder, arithmetic, rows, columns, weights, weight_bytes)
    steps = INT64(_STEPS_PER_TILE[arithmetic])
    with cgutils.for_range(builder, num_tiles) as tile:
        base = builder.add(table_entry(builder, tiles, tile.index), column_offset)
        ahead_base = builder.add(ahead_entry(builder, ahead, tile.index), column_offset)
        with cgutils.for_range(builder, steps) as inner:
            distance = builder.mul(inner.index, value_bytes)
            columns_at = [INT64(column * _VECTOR_BYTES) for column in range(columns)]
            first, ahead_first = builder.add(base, distance), builder.add(ahead_base, distance)
            prefetch_lines(builder, ahead, [builder.add(ahead_first, column) for column in columns_at])
            step = builder.add(builder.mul(tile.index, steps), inner.index)
            block.add_products(step, [builder.add(first, column) for column in columns_at])
    block.store(out, out_bytes)


def ahead_entry(builder: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """As `table_entry`; 0 where there is no table."""
    entry = cgutils.alloca_once_value(builder, INT64(0))
    with builder.if_then(builder.icmp_signed("!=", table, INT64(0))):
        builder.store(table_entry(builder, table, index), entry)
    return builder.load(entry)


def prefetch_lines(builder: ir.IRBuilder, table: ir.Value, addresses: Values) -> None:
    """Starts to bring the cache lines at `addresses` near, where there is a table."""
    with builder.if_then(builder.icmp_signed("!=", table, INT64(0))):
        for address in addresses:
            emit_prefetch(builder, address)


def table_entry(builder: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """The int64 at `index` of the table that begins at address `table`."""
    return load_from(builder, INT64, builder.add(table, builder.mul(index, INT64(8))))


class Block:
    """The accumulators of a product, while its code is written."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        arithmetic: Arithmetic,
        rows: int,
        columns: int,
        left: ir.Value,
        left_bytes: ir.Value,
    ) -> None:
        self._builder = builder
        self._arithmetic = arithmetic
        self._left_rows = [builder.add(left, builder.mul(left_bytes, INT64(row))) for row in range(rows)]
        zero = constant(FLOAT, 0.0)
        self._totals = [[cgutils.alloca_once_value(builder, zero) for _ in range(columns)] for _ in range(rows)]

    def add_products(self, step: ir.Value, rights: Values) -> None:
        """Adds the products of one step, whose vectors lie at the addresses `rights`."""
        builder = self._builder
        num_scalars = _SCALARS_PER_STEP[self._arithmetic]
        distance = builder.mul(step, INT64(4 * num_scalars))
        vectors = [self._load_vectors(right) for right in rights]
        for left_row, totals in zip(self._left_rows, self._totals, strict=True):
            left = builder.add(left_row, distance)
            scalars = [self._load_scalar(offset(builder, left, 4 * index)) for index in range(num_scalars)]
            for parts, total in zip(vectors, totals, strict=True):
                value = builder.load(total)
                for scalar, part in zip(scalars, parts, strict=True):
                    value = self._multiply_add(scalar, part, value)
                builder.store(value, total)

    def totals(self) -> list[Values]:
        """Of each row its vectors."""
        return [[self._builder.load(total) for total in totals] for totals in self._totals]

    def store(self, out: ir.Value, out_bytes: ir.Value) -> None:
        builder = self._builder
        for row, totals in enumerate(self.totals()):
            first = builder.add(out, builder.mul(out_bytes, INT64(row)))
            for column, total in enumerate(totals):
                store_to(builder, total, offset(builder, first, column * _VECTOR_BYTES))

    def _load_scalar(self, address: ir.Value) -> ir.Value:
        kind = INT32 if self._arithmetic is Arithmetic.BFLOAT16_DOT else FLOAT
        return broadcast(self._builder, load_from(self._builder, kind, address))

    def _load_vectors(self, address: ir.Value) -> Values:
        """As many as there are scalars on the left."""
        builder = self._builder
        if self._arithmetic is Arithmetic.FLOAT32:
            return [load_from(builder, lanes(FLOAT), address)]
        pairs = load_from(builder, lanes(INT32), address)
        if self._arithmetic is Arithmetic.BFLOAT16_DOT:
            return [pairs]
        first = builder.shl(pairs, constant(INT32, 16))
        second = builder.and_(pairs, constant(INT32, 0xFFFF0000))
        return [builder.bitcast(first, lanes(FLOAT)), builder.bitcast(second, lanes(FLOAT))]

    def _multiply_add(self, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        builder = self._builder
        if self._arithmetic is Arithmetic.BFLOAT16_DOT:
            pairs = ir.VectorType(BFloatType(), 2 * LANES)
            left, right = builder.bitcast(left, pairs), builder.bitcast(right, pairs)
            return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", lanes(FLOAT), total, right, left)
        return fma(builder, left, right, total)
