"""Random changes of a seed: what a fuzzer without coverage can do, the same ones again for the same number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_INTERESTING = (
    *(
        b"\x00",
        b"\xff",
        b"\x7f",
        b"\x80",
        b"\n",
        b"\r\n",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"{{",
        b"}}",
        b"{%",
        b"%}",
    ),
    *(bytes(8), b"\xff" * 8, b"\xff" * 7 + b"\x7f", bytes(7) + b"\x80", b"\x01" + bytes(7), b"\xff\xff\xff\x7f"),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x1b[2J", b"\\ud800", b"1e999", b"-0", b"NaN", b"9" * 40),
    *(b"<|im_end|>", b"__class__", b"auto_map", b"</s>", b"null", b"true"),
)
_MAX_BYTES = 1 << 14


def mutate(seed: bytes, generator: random.Random) -> bytes:
    """`seed` with a few random changes."""
    data = bytearray(seed)
    for _ in range(generator.choice((1, 1, 2, 3, 8))):
        at = generator.randrange(len(data) + 1)
        match generator.randrange(6):
            case 0 if data:
                data[min(at, len(data) - 1)] ^= 1 << generator.randrange(8)
            case 1:
                data[at:at] = generator.choice(_INTERESTING)
            case 2:
                piece = generator.choice(_INTERESTING)
                data[at : at + len(piece)] = piece
            case 3:
                del data[at : at + generator.randrange(1, 9)]
            case 4:
                end = min(len(data), at + generator.randrange(1, 64))
                data[at:at] = data[at:end] * generator.choice((1, 1, 2, 50))
            case _:
                data[at:at] = generator.randbytes(generator.randrange(1, 9))
    return bytes(data[:_MAX_BYTES])
