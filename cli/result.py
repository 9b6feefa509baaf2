"""The result columns: their names, their types, and the values of one row.

Types are fixed before row 0: what the first rows happen to hold decides nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from infer.engine.request import Completion, TokenLogprob
    from infer.engine.tokenizer import Tokenizer

Record = dict[str, object]
"""Values of the result columns, by their names without the prefix."""

_SCHEMA = pa.schema(
    [
        ("response", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("error_code", pa.string()),
        ("error", pa.string()),
        ("_row", pa.int64()),
    ]
)
_TOKEN = [("token", pa.string()), ("token_id", pa.int32()), ("logprob", pa.float32())]
_LOGPROBS = pa.list_(pa.struct([*_TOKEN, ("top", pa.list_(pa.struct(_TOKEN)))]))


def result_schema(*, logprobs: bool) -> pa.Schema:
    """Columns that a run adds; `logprobs` stands before `_row` where it is asked for."""
    if not logprobs:
        return _SCHEMA
    return _SCHEMA.insert(_SCHEMA.get_field_index("_row"), pa.field("logprobs", _LOGPROBS))


class ResultBuilder:
    """Makes the records of `result_schema(logprobs=logprobs)`."""

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        # A run reports the same few thousand tokens over and over.
        self._token_text = lru_cache(maxsize=1 << 16)(
            lambda token_id: tokenizer.decode([token_id], skip_special_tokens=False)
        )
        self._logprobs = logprobs
        self._names = result_schema(logprobs=logprobs).names

    def completed(self, row_index: int, completion: Completion) -> Record:
        """What the engine answered. A failed request has no response, however far it came."""
        is_failed = completion.error_code is not None
        record: Record = {
            "response": None if is_failed else completion.text,
            "finish_reason": completion.finish_reason,
            "prompt_tokens": completion.num_prompt_tokens,
            "completion_tokens": len(completion.token_ids),
            "cached_tokens": completion.num_cached_tokens,
            "error_code": completion.error_code,
            "error": completion.error,
            "_row": row_index,
        }
        if self._logprobs:
            logprobs = None if is_failed else completion.logprobs
            record["logprobs"] = None if logprobs is None else [self._position(each) for each in logprobs]
        return record

    def failed(self, row_index: int, code: str, message: str) -> Record:
        """A row that never reached the model."""
        record: Record = dict.fromkeys(self._names)
        return record | {"finish_reason": "error", "error_code": code, "error": message, "_row": row_index}

    def _position(self, chosen: TokenLogprob) -> Record:
        top = [self._token(token_id, logprob) for token_id, logprob in chosen.top]
        return self._token(chosen.token_id, chosen.logprob) | {"top": top}

    def _token(self, token_id: int, logprob: float) -> Record:
        return {"token": self._token_text(token_id), "token_id": token_id, "logprob": logprob}
