"""The result columns: their names, their types, and the values of one row.

Types are fixed before row 0: what the first rows happen to hold decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from infer.engine.request import Choice, Completion, TokenLogprob
    from infer.engine.tokenizer import Tokenizer

Record = dict[str, object]
"""Values of the result columns, by their names without the prefix."""

_TOKEN = [("token", pa.string()), ("token_id", pa.int32()), ("logprob", pa.float32())]
_LOGPROBS = pa.list_(pa.struct([*_TOKEN, ("top", pa.list_(pa.struct(_TOKEN)))]))


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """Which columns a run adds beside those that it always adds."""

    logprobs: bool = False
    several: bool = False
    """`responses`, a list, instead of `response`; `logprobs` are lists of lists."""
    scores: bool = False
    """Of `responses` that were ranked."""


def result_schema(columns: ResultColumns) -> pa.Schema:
    """Columns that a run adds."""
    several = columns.several
    return pa.schema(
        [
            ("responses", pa.list_(pa.string())) if several else ("response", pa.string()),
            *([("scores", pa.list_(pa.float32()))] if several and columns.scores else []),
            ("finish_reason", pa.string()),
            ("prompt_tokens", pa.int32()),
            ("completion_tokens", pa.int32()),
            ("cached_tokens", pa.int32()),
            ("error_code", pa.string()),
            ("error", pa.string()),
            *([("logprobs", pa.list_(_LOGPROBS) if several else _LOGPROBS)] if columns.logprobs else []),
            ("_row", pa.int64()),
        ]
    )


class ResultBuilder:
    """Makes the records of `result_schema(columns)`."""

    def __init__(self, tokenizer: Tokenizer, columns: ResultColumns) -> None:
        # A run reports the same few thousand tokens over and over.
        self._token_text = lru_cache(maxsize=1 << 16)(
            lambda token_id: tokenizer.decode([token_id], skip_special_tokens=False)
        )
        self._several = columns.several
        self._names = result_schema(columns).names

    def completed(self, row_index: int, completion: Completion) -> Record:
        """What the engine answered. A failed request has no response, however far it came."""
        answered: Record = {}
        if completion.error_code is None:
            answers = [self._answer(choice) for choice in completion.choices]
            answered = {name: [answer[name] for answer in answers] for name in answers[0]}
            if not self._several:
                answered = answers[0]
        values: Record = {
            "response": answered.get("response"),
            "responses": answered.get("response"),
            "scores": answered.get("score"),
            "logprobs": answered.get("logprobs"),
            "finish_reason": _finish_reason(completion),
            "prompt_tokens": completion.num_prompt_tokens,
            "completion_tokens": completion.num_output_tokens,
            "cached_tokens": completion.num_cached_tokens,
            "error_code": completion.error_code,
            "error": completion.error,
            "_row": row_index,
        }
        return {name: values[name] for name in self._names}

    def failed(self, row_index: int, code: str, message: str) -> Record:
        """A row that never reached the model."""
        record: Record = dict.fromkeys(self._names)
        # A template's own words may quote half a character of the row.
        shown = message.encode(errors="backslashreplace").decode()
        return record | {"finish_reason": "error", "error_code": code, "error": shown, "_row": row_index}

    def _answer(self, choice: Choice) -> Record:
        logprobs = None if choice.logprobs is None else [self._position(each) for each in choice.logprobs]
        return {"response": choice.text, "score": choice.score, "logprobs": logprobs}

    def _position(self, chosen: TokenLogprob) -> Record:
        top = [self._token(token_id, logprob) for token_id, logprob in chosen.top]
        return self._token(chosen.token_id, chosen.logprob) | {"top": top}

    def _token(self, token_id: int, logprob: float) -> Record:
        return {"token": self._token_text(token_id), "token_id": token_id, "logprob": logprob}


def _finish_reason(completion: Completion) -> str:
    """Of several answers `length` where one was cut short."""
    reasons = {choice.finish_reason for choice in completion.choices}
    return next(reason for reason in ("error", "length", "stop") if reason in reasons)
