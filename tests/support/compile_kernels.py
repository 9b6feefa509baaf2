"""Compiles the Triton kernels ahead of time, without a GPU, and prints a line of JSON for each: what it will use.

    python compile_kernels.py '[{"kernel": "prefill", "capability": 90, "head_dim": 128, "group_size": 4}]'

A program of its own: the tests interpret Triton, and a process can do only one of the two.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from infer.kernels.triton.decode import SPLIT_SIZE, merge_kernel, split_kernel
from infer.kernels.triton.prefill import prefill_kernel
from infer.kernels.triton.store_kv import scatter_kernel
from infer.kernels.triton.tile_shape import decode_tile, padded, prefill_tile

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

KERNELS = {"store": scatter_kernel, "merge": merge_kernel, "decode": split_kernel, "prefill": prefill_kernel}

POINTER_TYPES = {
    "slot_mapping_ptr": "*i64",
    "block_table_ptr": "*i32",
    "query_start_loc_ptr": "*i32",
    "seq_lens_ptr": "*i32",
    "log_sum_exp_ptr": "*fp32",
    "partial_ptr": "*fp32",
    "scales_ptr": "*fp32",
    "key_scales_ptr": "*fp32",
    "value_scales_ptr": "*fp32",
}
"""The other pointers have the dtype of the model, those of the cache its own."""


def compile_kernel(
    *,
    kernel: str,
    capability: int,
    head_dim: int,
    value_head_dim: int | None = None,
    group_size: int = 1,
    max_query_len: int = 2048,
    dtype: str = "bf16",
    cache_dtype: str | None = None,
    block_size: int = 16,
    sliding_window: int = 0,
    softcap: float = 0.0,
    has_sinks: bool = False,
) -> CompiledKernel:
    """With the constants and options that the launches in `infer.kernels.triton` give."""
    value_head_dim = value_head_dim or head_dim
    element_size = 4 if dtype == "fp32" else 2
    values: dict[str, Any] = {
        "is_fp8": cache_dtype == "fp8",
        "sliding_window": sliding_window,
        "softcap": softcap,
        "group_size": group_size,
        "block_size": block_size,
        "head_dim": head_dim,
        "head_dim_padded": padded(head_dim),
        "value_head_dim": value_head_dim,
        "value_head_dim_padded": padded(value_head_dim),
        "split_size": SPLIT_SIZE,
        "tokens_per_program": 16,
    }
    if not has_sinks:
        values["sinks_ptr"] = None
    pointer_types = dict(POINTER_TYPES)
    if cache_dtype is None:
        values |= dict.fromkeys(("scales_ptr", "key_scales_ptr", "value_scales_ptr"))
    else:
        pointer_types |= dict.fromkeys(("cache_ptr", "key_cache_ptr", "value_cache_ptr"), "*i8")
    options: dict[str, Any] = {"enable_fp_fusion": True}
    if kernel in ("decode", "prefill"):
        tile = (
            decode_tile(group_size, head_dim, element_size)
            if kernel == "decode"
            else prefill_tile(max_query_len, group_size, head_dim, element_size)
        )
        values |= {"num_rows": tile.num_rows, "num_keys": tile.num_keys}
        options |= {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if kernel == "merge":
        options |= {"num_warps": 1}

    function = KERNELS[kernel]
    signature, attributes = {}, {}
    for index, parameter in enumerate(function.params):
        if parameter.name in values:
            signature[parameter.name] = "constexpr"
        elif parameter.name == "scale":
            signature[parameter.name] = "fp32"
        elif parameter.name.endswith("_ptr"):
            signature[parameter.name] = pointer_types.get(parameter.name, f"*{dtype}")
        else:
            signature[parameter.name] = "i32"
        # A launch finds addresses and strides of whole heads to be multiples of 16.
        if signature[parameter.name] not in ("constexpr", "fp32") and not parameter.do_not_specialize:
            attributes[(index,)] = [["tt.divisibility", 16]]
    constants = {name: value for name, value in values.items() if name in signature}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def usage(compiled: CompiledKernel) -> dict[str, int]:
    """Registers and stack a thread, bytes of shared memory a program, and how often some instructions occur."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        command = [str(CUOBJDUMP), "-res-usage", cubin.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ptx = compiled.asm["ptx"]
    return {
        "warps": compiled.metadata.num_warps,
        "registers": int(re.findall(r"REG:(\d+)", listing)[0]),
        "stack": int(re.findall(r"STACK:(\d+)", listing)[0]),
        "shared": compiled.metadata.shared,
        "wgmma": ptx.count("wgmma.mma_async"),
        "mma": ptx.count("mma.sync"),
        "wide_copies": ptx.count("cp.async.cg"),
        "narrow_copies": ptx.count("cp.async.ca"),
    }


if __name__ == "__main__":
    for case in json.loads(sys.argv[1]):
        print(json.dumps(usage(compile_kernel(**case))), flush=True)
