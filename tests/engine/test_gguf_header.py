"""No length, type or offset in a GGUF header is believed before it is held against the file."""

from __future__ import annotations

import struct

import pytest

from infer.engine import gguf_header
from infer.engine.errors import ModelError
from infer.engine.gguf_header import GgufTensor, read_gguf_header

U8, U32, STRING, ARRAY, FLOAT64, NO_TYPE = 0, 4, 8, 9, 12, 13
F32, Q4_1 = 0, 3


def text(content):
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content)) + content


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name, shape, kind=F32, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


KEYS = [
    key("general.architecture", STRING, text("llama")),
    key("llama.block_count", U32, struct.pack("<I", 2)),
    key("llama.rope.freq_base", FLOAT64, struct.pack("<d", 10000.0)),
    key("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text("é") + text("")),
    key("tokenizer.ggml.scores", ARRAY, struct.pack("<IQ3B", U8, 3, 1, 2, 3)),
]
TENSORS = [tensor("norm", [4]), tensor("matrix", [32, 2], Q4_1, 32)]


def gguf_file(keys=KEYS, tensors=TENSORS, *, magic=b"GGUF", version=3, counts=None, data=32 + 40):
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    header = magic + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join([*keys, *tensors])
    return header + bytes(-len(header) % 32 + data)


@pytest.fixture
def refusal(tmp_path):
    """What is said about a file with this content, without its path."""

    def read(content):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError) as caught:
            read_gguf_header(path)
        prefix = f"{path} is no usable gguf file: "
        assert str(caught.value).startswith(prefix)
        return str(caught.value).removeprefix(prefix)

    return read


@pytest.mark.parametrize("version", [2, 3])
def test_header_of_a_good_file(tmp_path, version):
    content = gguf_file(version=version)
    (tmp_path / "model.gguf").write_bytes(content)
    header = read_gguf_header(tmp_path / "model.gguf")
    assert header.version == version
    assert header.metadata == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
    }
    assert header.array_lengths == {"tokenizer.ggml.tokens": 3, "tokenizer.ggml.scores": 3}
    start = len(content) - 72
    assert header.tensors == (
        GgufTensor("norm", (4,), "F32", start, 16),
        GgufTensor("matrix", (32, 2), "Q4_1", start + 32, 40),
    )


def test_header_honours_the_alignment_of_the_file(tmp_path):
    keys = [key("general.alignment", U32, struct.pack("<I", 256))]
    content = gguf_file(keys, [tensor("norm", [4])], data=0)
    content += bytes(-len(content) % 256 + 16)
    (tmp_path / "model.gguf").write_bytes(content)
    assert read_gguf_header(tmp_path / "model.gguf").tensors == (
        GgufTensor("norm", (4,), "F32", len(content) - 16, 16),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are too few for a header"),
        (gguf_file(magic=b"GGML"), "it begins with b'GGML', not with b'GGUF'"),
        (gguf_file(version=1), "version 1; versions 2 and 3 are read"),
        (gguf_file(version=3 << 24), "version 50331648 (a big-endian file); versions 2 and 3 are read"),
        (gguf_file([], [], counts=(2**63, 0), data=0), f"{2**63} tensors do not fit into 32 bytes"),
        (gguf_file([], [], counts=(0, 2**64 - 1), data=0), f"{2**64 - 1} keys do not fit into 32 bytes"),
        (gguf_file([KEYS[0], KEYS[0]]), "the key 'general.architecture' is there twice"),
        (gguf_file([], [TENSORS[0], TENSORS[0]]), "the tensor 'norm' is there twice"),
        (
            gguf_file([struct.pack("<Q", 2**64 - 1)], [], data=8),
            "it ends inside a key, which begins at byte 32 of 40",
        ),
        (gguf_file([key(b"\xff", U8, b"\0")]), "a key at byte 32 is not utf-8"),
        (gguf_file([key("k", NO_TYPE, b"")]), "'k' is of the unknown type 13"),
        (
            gguf_file([key("k", ARRAY, struct.pack("<IQ", U32, 2**62))], []),
            f"{2**62} values in 'k' do not fit into 136 bytes",
        ),
        (
            gguf_file([key("k", ARRAY, struct.pack("<IQ", STRING, 2**62))], []),
            f"{2**62} strings in 'k' do not fit into 136 bytes",
        ),
        (
            gguf_file([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1))], []),
            "'k' is an array of the type 9, which is not read",
        ),
        (
            gguf_file([key("general.alignment", U32, struct.pack("<I", 24))]),
            "general.alignment is 24, not a power of two up to 65536",
        ),
        (gguf_file([], [tensor("t", [])]), "'t' has 0 dimensions; 1 to 4 are possible"),
        (gguf_file([], [tensor("t", [1] * 5)]), "'t' has 5 dimensions; 1 to 4 are possible"),
        (gguf_file([], [tensor("t", [0, 4])]), "'t' has the impossible shape (0, 4)"),
        (gguf_file([], [tensor("t", [2**32, 2**32])]), "'t' has the impossible shape (4294967296, 4294967296)"),
        (gguf_file([], [tensor("t", [4], 99)]), "'t' is of the unknown type 99"),
        (gguf_file([], [tensor("t", [48], Q4_1)]), "'t' has rows of 48 in blocks of 32"),
        (gguf_file([], [tensor("t", [4], offset=8)]), "'t' is at offset 8, which is not aligned to 32"),
        (
            gguf_file([], [tensor("t", [4], offset=2**63)]),
            f"'t' ends at byte {2**63 + 64 + 16} of 136; the file is cut off or damaged",
        ),
        (
            gguf_file([], [tensor("t", [2**61 - 1])]),
            f"'t' ends at byte {64 + 4 * (2**61 - 1)} of 136; the file is cut off or damaged",
        ),
    ],
)
def test_header_that_cannot_be_right_is_refused(refusal, content, message):
    assert refusal(content) == message


def test_header_with_more_of_anything_than_a_model_has_is_refused(refusal, monkeypatch):
    """Each of them would fit into the file, and would be walked over or kept."""
    limits = {"_MAX_KEYS": 4, "_MAX_TENSORS": 1, "_MAX_STRINGS": 2, "_MAX_TEXT_BYTES": 20}
    found = []
    for name, limit in limits.items():
        with monkeypatch.context() as patch:
            patch.setattr(gguf_header, name, limit)
            found.append(refusal(gguf_file()))
    assert found == [
        "5 keys; at most 4 are read",
        "2 tensors; at most 1 are read",
        "3 strings in 'tokenizer.ggml.tokens'; at most 2 are read",
        "a key at byte 150 has 21 bytes; at most 20 are read",
    ]


def test_header_that_refuses_a_long_name_does_not_repeat_it(refusal):
    assert len(refusal(gguf_file([], [tensor("t" * 100_000, [0, 4])]))) < 300


def test_header_is_refused_wherever_the_file_is_cut_off(refusal):
    content = gguf_file()
    for length in range(len(content)):
        assert refusal(content[:length])


def test_no_changed_byte_leads_outside_the_file(tmp_path):
    content = gguf_file()
    path = tmp_path / "model.gguf"
    num_refused = 0
    for position in range(len(content) - 72):
        for value in (0x00, 0x01, 0xFF):
            path.write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
            try:
                header = read_gguf_header(path)
            except ModelError:
                num_refused += 1
            else:
                assert all(0 <= part.offset <= part.offset + part.num_bytes <= len(content) for part in header.tensors)
    assert num_refused > 300
