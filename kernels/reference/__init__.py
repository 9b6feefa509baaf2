"""The operators in plain PyTorch: the definition of each and the oracle of its tests."""

from infer.kernels.reference.activation import silu_and_mul
from infer.kernels.reference.dequant_linear import dequant_linear
from infer.kernels.reference.kv_cache import allocate_kv_cache
from infer.kernels.reference.paged_attention import paged_attention
from infer.kernels.reference.quant_linear import QUANT_KERNELS
from infer.kernels.reference.rms_norm import add_rms_norm, rms_norm
from infer.kernels.reference.rotary_store_kv import rotary_store_kv
from infer.kernels.reference.sampling import sample_tokens
from infer.kernels.reference.store_kv import store_kv

__all__ = [
    "QUANT_KERNELS",
    "add_rms_norm",
    "allocate_kv_cache",
    "dequant_linear",
    "paged_attention",
    "rms_norm",
    "rotary_store_kv",
    "sample_tokens",
    "silu_and_mul",
    "store_kv",
]
