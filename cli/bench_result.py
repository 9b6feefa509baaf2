"""What a measurement comes to: the phases of the typical round, and what of it the machine would have needed anyway.

    total = phases around the model + execute + sample + rest
    execute = products + attention + other kernels + between kernels        as the profiled round splits it

All that is no kernel is host work: Python, tokenizer, files. On a GPU it runs beside the kernels, and what counts here
is the time in which the device had nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infer.cli.report import RunSummary
    from infer.engine.kernel_profile import KernelKey
    from infer.engine.limits import MachineLimits
    from infer.engine.required_work import RequiredWork

KERNELS = ("gemm", "attention", "other kernels", "sample")
"""Phases in which the device computes."""

_HOST_BEFORE = ("read", "render", "draft", "schedule", "prepare")
_HOST_AFTER = ("update", "detokenize", "write", "show", "publish")
_MODEL = ("execute", "sample")


@dataclass(frozen=True, slots=True)
class Round:
    """One run of the job."""

    summary: RunSummary
    output: str

    @property
    def seconds(self) -> float:
        return self.summary.seconds.run


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Of all rounds; `typical` is the median one, whose phases are shown."""

    model: str
    rows: str
    device: str
    dtype: str
    num_threads: int
    rounds: tuple[Round, ...]
    typical: Round
    profiled: Round
    kernels: Mapping[KernelKey, float]
    """Seconds of the profiled round."""
    limits: MachineLimits
    work: RequiredWork

    @property
    def seconds(self) -> float:
        return self.typical.seconds

    @property
    def exit_code(self) -> int:
        return self.typical.summary.exit_code

    @property
    def profile_seconds(self) -> float:
        """What the stopwatches cost in their round."""
        return self.profiled.seconds - self.seconds

    def phases(self) -> dict[str, float]:
        """Seconds of the typical round, in the order of a row's way; they add up to all of it."""
        counted = self.typical.summary.phases
        kernels = self._kernel_seconds()
        model = sum(counted.get(name, 0.0) for name in _MODEL)
        # The stopwatches are in the way of the kernels, too: they cannot take longer than their phase did without.
        scale = min(1.0, model / total) if (total := sum(kernels.values())) else 1.0
        kernels = {name: seconds * scale for name, seconds in kernels.items()}
        phases = {name: counted.get(name, 0.0) for name in _HOST_BEFORE}
        phases |= kernels | {"between kernels": model - sum(kernels.values())}
        phases |= {name: counted.get(name, 0.0) for name in _HOST_AFTER}
        return phases | {"rest": self.seconds - sum(phases.values())}

    @property
    def host_share(self) -> float:
        """Of the run, in which no kernel ran."""
        phases = self.phases()
        return 1.0 - sum(phases[name] for name in KERNELS) / self.seconds

    @property
    def limit_seconds(self) -> float:
        """All operations that the rows need, at the measured rate of a large product."""
        return self.work.flops / self.limits.gemm_flops

    @property
    def kv_seconds(self) -> float:
        """Keys and values read as often as decoding has to, at the measured bandwidth."""
        return self.work.kv_bytes / self.limits.read_bandwidth

    def losses(self) -> dict[str, float]:
        """The seconds over the limit by what they went to; they add up to all of them."""
        phases = self.phases()
        rate = self.limits.gemm_flops
        needed = self.work.gemm_flops / rate
        again = (
            max(0.0, self.num_computed_tokens / self.work.num_tokens - 1.0) * needed if self.work.num_tokens else 0.0
        )
        host = ("between kernels", *_HOST_BEFORE, *_HOST_AFTER, "rest")
        return {
            "gemm, tokens computed more than once": again,
            "gemm, below the measured rate": phases["gemm"] - needed - again,
            "attention": phases["attention"] - self.work.attention_flops / rate,
            "other kernels": phases["other kernels"],
            "sample": phases["sample"],
            "host": sum(phases[name] for name in host),
        }

    @property
    def num_computed_tokens(self) -> int:
        """That entered the network, some perhaps more than once."""
        summary = self.typical.summary
        num_answers = summary.rows - summary.rows_failed
        return (
            summary.prompt_tokens
            - summary.cached_tokens
            + summary.completion_tokens
            - num_answers
            + summary.tokens_wasted
        )

    def _kernel_seconds(self) -> dict[str, float]:
        sums = dict.fromkeys(KERNELS, 0.0)
        for key, seconds in self.kernels.items():
            name = key.work.value if key.phase == "execute" else key.phase
            sums["other kernels" if name == "other" else name] += seconds
        return sums
