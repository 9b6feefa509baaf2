"""The operators on a CPU, compiled by numba at first use.

paged_attention, store_kv,      what Python calls
rotary_store_kv, rms_norm,
activation, linear, argmax,
dequant_linear
panels, linear_block            how weights lie, and a few rows times a panel of them
dequantize                      weights of a few bits, on their way into the products
quant_linear, quantized_rows    linear layers in int8, by int8_block and dot_product, and what makes tokens int8
row_wise                        how rows are shared among the threads
layout, capability              how the cache lies in memory, and whom these can serve
cache_slot, quantized           the way of a key and a value into the cache, and of quantised ones out of it
attend, chunk, softmax,         the compiled attention, from the threads down to one chunk of keys,
partial, call, plan, workspace  what it is told and what it works in
products                        its matrix products, by register_block (vectors) or tile_registers (AMX)
operands, simd, exponential     the values it computes with
arithmetic, llvm, compiler,     which instructions there are, how code is made of them and how it is run
record, threads
"""

from infer.kernels.cpu.activation import silu_and_mul
from infer.kernels.cpu.capability import why_not
from infer.kernels.cpu.dequant_linear import dequant_linear
from infer.kernels.cpu.layout import allocate_kv_cache
from infer.kernels.cpu.paged_attention import paged_attention
from infer.kernels.cpu.quant_linear import pack_weight, quant_linear
from infer.kernels.cpu.quantized_rows import (
    quantize_tokens,
    quantized_add_rms_norm,
    quantized_rms_norm,
    quantized_silu_and_mul,
)
from infer.kernels.cpu.rms_norm import add_rms_norm, rms_norm
from infer.kernels.cpu.rotary_store_kv import rotary_store_kv
from infer.kernels.cpu.store_kv import store_kv
from infer.kernels.quant_kernels import QuantKernels, RotatedKernels

QUANT_KERNELS = QuantKernels(
    pack_weight,
    quantize_tokens,
    quant_linear,
    quantized_rms_norm,
    quantized_add_rms_norm,
    quantized_silu_and_mul,
    RotatedKernels(quantize_tokens, quantized_rms_norm, quantized_add_rms_norm, quantized_silu_and_mul),
)

__all__ = [
    "QUANT_KERNELS",
    "add_rms_norm",
    "allocate_kv_cache",
    "dequant_linear",
    "paged_attention",
    "rms_norm",
    "rotary_store_kv",
    "silu_and_mul",
    "store_kv",
    "why_not",
]
