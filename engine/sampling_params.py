"""How the next token is chosen and when a request ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from infer.engine.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_TEMPERATURE = 1e-5
"""Below it sampling is greedy: dividing logits by less overflows float32, and the draw would be the same."""


_MAX_LOGPROBS = 1000
"""Of a position: what a row reports is held until it is written, and a whole vocabulary of it would not fit memory."""

_MAX_BRANCHES = 256
"""Of a request: its answers are held together until all of them are there."""

_NOT_WITH_BEAMS = (
    "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "stop", "min_tokens", "logit_bias",
    "bad_words", "allowed_token_ids",
)  # fmt: skip
"""A beam's score is the model's own, and a beam ends at a token."""

_GREATEST = 3e38
"""Of the finite numbers in float32, in which logits are worked on."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names and meanings are vLLM's; `max_tokens` is 512 by default.

    Raises:
        ConfigError: a value of the wrong kind or out of range.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int = 512
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many alternatives a position reports besides the sampled token; None reports nothing."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    n: int = 1
    """Answers to a request."""
    best_of: int | None = None
    """Of so many drawn ones the `n` with the greatest mean logprob; None draws `n`."""
    beam_width: int | None = None
    """Beam search over so many, instead of drawing."""
    length_penalty: float = 1.0
    """Of beams: a score is the logprobs' sum over the length to this power, so that a greater one favours long ones."""

    def __post_init__(self) -> None:
        for name, (is_allowed, allowed) in _RULES.items():
            value = getattr(self, name)
            if not is_allowed(value):
                raise ConfigError(f"{name} must be {allowed}: {value!r:.80}")
        if self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens must be at most max_tokens, {self.max_tokens}: {self.min_tokens}")
        if self.beam_width is not None:
            self._check_beams(self.beam_width)
        elif self.length_penalty != 1.0:
            raise ConfigError(f"length_penalty needs beam_width: {self.length_penalty:g}", hint="--beam-width 4")
        elif self.n > self.num_branches:
            raise ConfigError(f"best_of must be at least n, {self.n}: {self.best_of}")
        elif self.num_branches > 1 and self.is_greedy:
            raise ConfigError(
                f"temperature must be above 0 where several answers are drawn, all would be the same: "
                f"{self.temperature:g}",
                hint="--temperature 1, or beam search: --beam-width",
            )

    def _check_beams(self, beam_width: int) -> None:
        if self.n > beam_width:
            raise ConfigError(f"beam_width must be at least n, {self.n}: {beam_width}")
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name) != _DEFAULTS[name]:
                raise ConfigError(
                    f"beam search takes no {name}: {getattr(self, name)!r:.80}",
                    hint="leave it out; where the model's generation_config asks for it, set --repetition-penalty 1",
                )

    @property
    def num_branches(self) -> int:
        """Sequences that a request becomes."""
        return self.beam_width or self.best_of or self.n

    @property
    def is_ranked(self) -> bool:
        """Whether its choices are the best of more, and have scores."""
        return self.beam_width is not None or self.best_of is not None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE

    @property
    def is_deterministic(self) -> bool:
        """Whether the answer follows from the prompt alone, whatever the seed."""
        return self.is_greedy or self.beam_width is not None

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


_DEFAULTS = {each.name: each.default for each in fields(SamplingParams)} | {"logit_bias": {}}


def from_generation_config(generation_config: Mapping[str, object]) -> SamplingParams:
    """The defaults a model asks for in its `generation_config.json`.

    `do_sample` decides, as in transformers: where it is true, temperature, top_p, top_k and min_p are the file's, and
    what the file leaves out is off. Where it is false or missing, greedy: someone who labels rows expects the most
    probable answer and the same one tomorrow. (vLLM would draw at temperature 1 from a model whose file says nothing.)
    `repetition_penalty` holds either way; lengths are the job's to say, not the model's.

    Raises:
        ConfigError: a value in the file is out of range.
    """
    names = ["repetition_penalty"]
    if generation_config.get("do_sample"):
        names += ["temperature", "top_p", "top_k", "min_p"]
    given = {name: generation_config[name] for name in names if generation_config.get(name) is not None}
    if not generation_config.get("do_sample"):
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)  # type: ignore[arg-type]  # __post_init__ checks the kinds
    except ConfigError as error:
        raise ConfigError(f"generation_config.json: {error}") from error


def describe(params: SamplingParams) -> str:
    """One line for people: how tokens are chosen, the greatest length, then what differs from the default."""
    is_drawn = not params.is_greedy and params.beam_width is None
    first = f"temperature {params.temperature:g}" if is_drawn else "greedy"
    if params.beam_width is not None:
        first = f"beam search over {params.beam_width}"
    without_effect = {"temperature", "max_tokens", "beam_width", *(() if is_drawn else ("top_p", "top_k", "min_p"))}
    default = SamplingParams()
    changed = [
        f"{each.name} {getattr(params, each.name)!r}"
        for each in fields(params)
        if each.name not in without_effect and getattr(params, each.name) != getattr(default, each.name)
    ]
    return ", ".join([first, f"max_tokens {params.max_tokens}", *changed])


def _is_number(low: float, high: float, *, above_low: bool = False) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return low <= value <= high and not (above_low and value == low)

    return check


def _is_int_from(low: int, high: float = math.inf) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _are_texts(value: object) -> bool:
    # A text alone would be taken for a sequence of its characters.
    return isinstance(value, tuple | list) and all(isinstance(each, str) and each for each in value)


def _are_token_ids(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_int_from(0), value))


def _is_logit_bias(value: object) -> bool:
    return isinstance(value, Mapping) and _are_token_ids([*value]) and all(map(_is_number(-100, 100), value.values()))


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "n": (_is_int_from(1, _MAX_BRANCHES), f"a whole number from 1 to {_MAX_BRANCHES}"),
    "best_of": (
        lambda value: value is None or _is_int_from(1, _MAX_BRANCHES)(value),
        f"a whole number from 1 to {_MAX_BRANCHES}",
    ),
    "beam_width": (
        lambda value: value is None or _is_int_from(1, _MAX_BRANCHES)(value),
        f"a whole number from 1 to {_MAX_BRANCHES}",
    ),
    "length_penalty": (_is_number(-10, 10), "a number from -10 to 10"),
    "temperature": (_is_number(0, _GREATEST), "a finite number, at least 0"),
    "top_p": (_is_number(0, 1, above_low=True), "a number above 0 and at most 1"),
    # vLLM's -1 for "all" is accepted.
    "top_k": (_is_int_from(-1), "a whole number, at least 1, or 0 for all"),
    "min_p": (_is_number(0, 1), "a number from 0 to 1"),
    "presence_penalty": (_is_number(-2, 2), "a number from -2 to 2"),
    "frequency_penalty": (_is_number(-2, 2), "a number from -2 to 2"),
    "repetition_penalty": (_is_number(0.001, _GREATEST), "a finite number, at least 0.001"),
    "stop": (_are_texts, "texts, none of them empty"),
    "stop_token_ids": (_are_token_ids, "a sequence of token ids"),
    "max_tokens": (_is_int_from(1), "a whole number, at least 1"),
    "min_tokens": (_is_int_from(0), "a whole number, at least 0"),
    "ignore_eos": (lambda value: isinstance(value, bool), "true or false"),
    "logprobs": (
        lambda value: value is None or _is_int_from(0, _MAX_LOGPROBS)(value),
        f"a whole number from 0 to {_MAX_LOGPROBS}",
    ),
    "logit_bias": (_is_logit_bias, "token ids with numbers from -100 to 100"),
    "bad_words": (_are_texts, "texts, none of them empty"),
    "allowed_token_ids": (
        lambda value: value is None or (bool(value) and _are_token_ids(value)),
        "a sequence of at least one token id",
    ),
}
