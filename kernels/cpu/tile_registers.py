"""Matrix products in AMX's tile registers: 16 rows by up to four times 16 columns of bfloat16 pairs.

The layout of the pages is the one the tile instructions ask of their right side, so tiles are loaded as they lie.

    register    0 to 3            4, 5                          6, 7
    holds       accumulators      left                          right
    rows        16                16, 16                        16, 8 pairs
    bytes       64                64, 32 (16 or 8 pairs)        64
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from infer.kernels.cpu.llvm import INT8, INT64, VOID, call, offset
from infer.kernels.cpu.register_block import Values, ahead_entry, prefetch_lines, table_entry

ROWS = 16

_LEFT, _LEFT_HALF, _RIGHT, _RIGHT_HALF = 4, 5, 6, 7
_TILE_BYTES = 64


def emit_configure(builder: ir.IRBuilder) -> None:
    """Gives this thread's tile registers their shapes."""
    shapes = bytearray(64)
    # The palette, then from byte 16 on the bytes of a row, and from byte 48 on the rows.
    shapes[0] = 1
    shapes[16:32:2] = (64, 64, 64, 64, 64, 32, 64, 64)
    shapes[48:56] = (16, 16, 16, 16, 16, 16, 16, 8)
    memory = cgutils.alloca_once_value(builder, ir.Constant(ir.ArrayType(INT8, len(shapes)), shapes))
    call(builder, "llvm.x86.ldtilecfg", VOID, builder.bitcast(memory, INT8.as_pointer()))


def emit_release(builder: ir.IRBuilder) -> None:
    call(builder, "llvm.x86.tilerelease", VOID)


def emit_multiply_keys(builder: ir.IRBuilder, columns: int, arguments: Values) -> None:
    """See `products.multiply_keys`, for 16 rows and this number of columns."""
    queries, query_bytes, tiles, ahead, num_pairs, scores, score_bytes = arguments
    bases = [table_entry(builder, tiles, INT64(column)) for column in range(columns)]
    ahead_bases = [ahead_entry(builder, ahead, INT64(column)) for column in range(columns)]
    _clear(builder, columns)
    pair_bytes, pairs_of_step = INT64(4), INT64(16)

    def add_products(first_pair: ir.Value, left: int, right: int, num_pairs: int) -> None:
        _load(builder, left, builder.add(queries, builder.mul(first_pair, pair_bytes)), query_bytes)
        distance = builder.mul(first_pair, INT64(_TILE_BYTES))
        for column, (base, ahead_base) in enumerate(zip(bases, ahead_bases, strict=True)):
            first = builder.add(ahead_base, distance)
            prefetch_lines(builder, ahead, [offset(builder, first, pair * _TILE_BYTES) for pair in range(num_pairs)])
            _load(builder, right, builder.add(base, distance), INT64(_TILE_BYTES))
            _multiply(builder, column, left, right)

    num_steps = builder.sdiv(num_pairs, pairs_of_step)
    with cgutils.for_range(builder, num_steps) as loop:
        add_products(builder.mul(loop.index, pairs_of_step), _LEFT, _RIGHT, 16)
    done = builder.mul(num_steps, pairs_of_step)
    with builder.if_then(builder.icmp_signed("<", done, num_pairs)):
        add_products(done, _LEFT_HALF, _RIGHT_HALF, 8)
    _store(builder, columns, scores, score_bytes)


def emit_multiply_values(builder: ir.IRBuilder, columns: int, arguments: Values) -> None:
    """See `products.multiply_values`, for 16 rows and this number of columns."""
    weights, weight_bytes, tiles, ahead, num_tiles, value_bytes, column_offset, out, out_bytes = arguments
    _clear(builder, columns)
    with cgutils.for_range(builder, num_tiles) as loop:
        _load(builder, _LEFT_HALF, builder.add(weights, builder.mul(loop.index, INT64(32))), weight_bytes)
        base = builder.add(table_entry(builder, tiles, loop.index), column_offset)
        ahead_base = builder.add(ahead_entry(builder, ahead, loop.index), column_offset)
        for column in range(columns):
            first = offset(builder, ahead_base, column * _TILE_BYTES)
            lines = [builder.add(first, builder.mul(value_bytes, INT64(pair))) for pair in range(8)]
            prefetch_lines(builder, ahead, lines)
            _load(builder, _RIGHT_HALF, offset(builder, base, column * _TILE_BYTES), value_bytes)
            _multiply(builder, column, _LEFT_HALF, _RIGHT_HALF)
    _store(builder, columns, out, out_bytes)


def _clear(builder: ir.IRBuilder, columns: int) -> None:
    for column in range(columns):
        call(builder, "llvm.x86.tilezero", VOID, INT8(column))


def _load(builder: ir.IRBuilder, register: int, address: ir.Value, row_bytes: ir.Value) -> None:
    call(builder, "llvm.x86.tileloadd64", VOID, INT8(register), _pointer(builder, address), row_bytes)


def _multiply(builder: ir.IRBuilder, total: int, left: int, right: int) -> None:
    call(builder, "llvm.x86.tdpbf16ps", VOID, INT8(total), INT8(left), INT8(right))


def _store(builder: ir.IRBuilder, columns: int, out: ir.Value, out_bytes: ir.Value) -> None:
    for column in range(columns):
        address = _pointer(builder, offset(builder, out, column * _TILE_BYTES))
        call(builder, "llvm.x86.tilestored64", VOID, INT8(column), address, out_bytes)


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, INT8.as_pointer())
