"""No length, type or offset in a safetensors header is believed before it is held against the file."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from infer.engine.errors import ModelError
from infer.engine.safetensors_header import StoredTensor, read_safetensors_header


def entry(begin, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@pytest.fixture
def refusal(tmp_path):
    """What is said about a file with this content, without its path."""

    def read(content):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        with pytest.raises(ModelError) as caught:
            read_safetensors_header(path)
        prefix = f"{path} is no usable safetensors file: "
        assert str(caught.value).startswith(prefix), str(caught.value)
        return str(caught.value).removeprefix(prefix)

    return read


def test_header_of_a_good_file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(()), "c": torch.zeros(0, 5)}))
    assert sorted(read_safetensors_header(path), key=lambda tensor: tensor.name) == [
        StoredTensor("a", "BF16", (2, 3)),
        StoredTensor("b", "F32", ()),
        StoredTensor("c", "F32", (0, 5)),
    ]


BAD = {
    "nothing": (b"", "its header of 0 bytes does not fit into 0"),
    "cut off": (b"\x10\0\0\0\0\0\0\0{}", "its header of 16 bytes does not fit into 10"),
    "long header": (safetensors(b"{}", length=2**64 - 1), f"its header of {2**64 - 1:,} bytes does not fit into 10"),
    "no json": (safetensors(b"{"), "its header is no JSON: "),
    "no utf-8": (safetensors(b'{"\xff": 1}'), "its header is no JSON: "),
    "deep": (safetensors(b"[" * 100_000), "its header is no JSON: "),
    "a list": (safetensors(b"[]"), "its header is no object but a list"),
    "twice": (
        safetensors(b'{"a": %s, "a": %s}' % ((json.dumps(entry(0, 4)).encode(),) * 2), b"1234"),
        "its header is no JSON: a name is there twice",
    ),
    "metadata": (safetensors({"__metadata__": {"a": 1}}), "__metadata__ holds something else than texts"),
    "no offsets": (safetensors({"a": {"dtype": "F32", "shape": []}}), "'a' has not just dtype, shape and data_offsets"),
    "type": (safetensors({"a": entry(0, 4, dtype="F99")}, b"1234"), "'a' is of the unknown type 'F99'"),
    "type of types": (safetensors({"a": entry(0, 4, dtype=["F32"])}, b"1234"), "'a' is of the unknown type ['F32']"),
    "negative": (safetensors({"a": entry(0, 4, (-1, -1))}, b"1234"), "'a' has the impossible shape [-1, -1]"),
    "many dimensions": (safetensors({"a": entry(0, 4, [1] * 17)}, b"1234"), "'a' has the impossible shape [1, 1, 1"),
    "float": (safetensors({"a": entry(0, 4, [1.0])}, b"1234"), "'a' has the impossible shape [1.0]"),
    "overflow": (
        safetensors({"a": entry(0, 0, [2**62, 4])}),
        "'a' of shape [4611686018427387904, 4] in F32 is not bytes [0, 0]",
    ),
    "wraps to 4": (
        safetensors({"a": entry(0, 4, [2**62 + 1, 4])}, b"1234"),
        "'a' of shape [4611686018427387905, 4] in F32 is not bytes [0, 4]",
    ),
    "offsets": (safetensors({"a": entry(4, 0)}, b"1234"), "'a' of shape [1] in F32 is not bytes [4, 0]"),
    "huge offset": (
        safetensors({"a": entry(2**64, 2**64 + 4)}),
        "'a' has the impossible offsets [18446744073709551616",
    ),
    "beyond": (safetensors({"a": entry(0, 4)}), "its tensors end at byte 4 of 0; the file is cut off or damaged"),
    "rest": (
        safetensors({"a": entry(0, 4)}, b"12345"),
        "its tensors end at byte 4 of 5; the file is cut off or damaged",
    ),
    "hole": (
        safetensors({"a": entry(4, 8)}, b"12345678"),
        "'a' begins at byte 4 of the data, the one before ends at 0",
    ),
    "overlap": (
        safetensors({"a": entry(0, 4), "b": entry(2, 6)}, b"123456"),
        "'b' begins at byte 2 of the data, the one before ends at 4",
    ),
    "half a byte": (safetensors({"a": entry(0, 1, (1,), "F4")}, b"1"), "'a' of shape [1] in F4 is not bytes [0, 1]"),
}


@pytest.mark.parametrize("name", BAD)
def test_header_that_cannot_be_right_is_refused(refusal, name):
    content, message = BAD[name]
    assert refusal(content).startswith(message)


@pytest.mark.parametrize("name", [name for name in BAD if name not in ("many dimensions", "twice")])
def test_what_is_refused_the_library_would_not_read_either(tmp_path, name):
    """Else a good file might be among what is refused. Of a name that is there twice the library takes the last."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(BAD[name][0])
    with pytest.raises((SafetensorError, ValueError)), safe_open(path, framework="pt") as file:
        file.keys()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    return buffer.getvalue()


@pytest.mark.parametrize("content", [*(pickle.dumps({"a": 1}, protocol) for protocol in range(2, 6)), zipped()])
def test_pickle_under_the_name_of_safetensors_is_refused_with_how_to_convert_it(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content + bytes(64))
    with pytest.raises(ModelError) as caught:
        read_safetensors_header(path)
    assert str(caught.value) == f"pickled weights under another name are not loaded, for they can run code: {path}"
    assert "save_pretrained" in caught.value.hint


def test_header_is_refused_wherever_the_file_is_cut_off(refusal):
    content = save({"a": torch.zeros(2, 3), "b": torch.zeros(4)})
    for length in range(len(content)):
        assert refusal(content[:length])
