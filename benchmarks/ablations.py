"""What switches each optimisation off alone: flags of `infer run`."""

from __future__ import annotations

ABLATIONS: dict[str, tuple[str, ...]] = {
    "prefix caching": ("--no-enable-prefix-caching",),
    "chunked prefill": ("--no-enable-chunked-prefill",),
    "prepacked linears": ("--no-prepack-linears",),
    "fused kernels": ("--no-fuse-kernels",),
    "cpu attention": ("--attention-backend", "reference"),
    "own products": ("--linear-backend", "onednn"),
    "shared prefixes": ("--no-shared-prefix-attention",),
    "speculation": ("--speculative", "off"),
    "admission control": ("--no-enable-admission-control",),
    "planned order": ("--order", "input"),
}


def ablations(help_page: str) -> dict[str, tuple[str, ...]]:
    """Those that a version of `infer run` knows, by its help page."""
    words = set(help_page.replace("/", " ").split())
    return {name: flags for name, flags in ABLATIONS.items() if flags[0] in words}
