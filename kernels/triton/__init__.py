"""The operators in Triton: for GPUs, and in the interpreter for tests."""

from infer.kernels.reference.kv_cache import allocate_kv_cache
from infer.kernels.triton.activation import silu_and_mul
from infer.kernels.triton.paged_attention import paged_attention
from infer.kernels.triton.quant_linear import QUANT_KERNELS
from infer.kernels.triton.rms_norm import add_rms_norm, rms_norm
from infer.kernels.triton.rotary_store_kv import rotary_store_kv
from infer.kernels.triton.sampling import sample_tokens
from infer.kernels.triton.store_kv import store_kv
from infer.kernels.triton.support import why_not

__all__ = [
    "QUANT_KERNELS",
    "add_rms_norm",
    "allocate_kv_cache",
    "paged_attention",
    "rms_norm",
    "rotary_store_kv",
    "sample_tokens",
    "silu_and_mul",
    "store_kv",
    "why_not",
]
