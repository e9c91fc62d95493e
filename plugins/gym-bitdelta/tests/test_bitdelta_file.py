"""The container `.bitdelta`: read and written, and refused where it lies."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from gym_bitdelta import bitdelta_file
from gym_bitdelta.delta import records
from gym_bitdelta.fit.encode_weight import encode
from gym_bitdelta.fit.quant_scheme import Coding
from gym_core import GymError


@pytest.fixture
def path(tmp_path):
    draws = torch.Generator().manual_seed(0)
    made = {
        "a.weight": encode(torch.randn(7, 13, generator=draws), Coding("signs", 1, "tensor")),
        "b": records.raw(torch.randn(40, generator=draws)),
        "same": records.zero((4, 4)),
    }
    bitdelta_file.write(tmp_path / "x.bitdelta", made)
    return tmp_path / "x.bitdelta", made


def test_signs_and_the_mean_come_back(path):
    file, made = path
    found = bitdelta_file.read(file)
    assert found.keys() == {"a.weight", "b"}
    assert torch.allclose(found["a.weight"].values(), made["a.weight"].values(), rtol=1e-3)
    change = made["b"].values()
    assert torch.allclose(found["b"].values(), torch.where(change >= 0, 1.0, -1.0) * change.abs().mean())


def test_bytes_are_where_the_rule_says(tmp_path):
    bitdelta_file.write(tmp_path / "x", {"w": records.raw(torch.tensor([[1.0, -3.0, 0.0]]), exact=True)})
    wanted = b"BITDELTA" + struct.pack("<IIIcIQQfII", 1, 1, 1, b"w", 2, 1, 3, 4 / 3, 1, 0b101)
    assert (tmp_path / "x").read_bytes() == wanted


def test_bytes_of_several_tensors_are_those_of_the_public_writer(tmp_path):
    """By the layout that hanzoai/ml documents (`bitdelta.rs`): names in order, 33 numbers in two words, lengths in four bytes."""
    change = torch.tensor([(-1.0) ** each * (each + 0.5) for each in range(33)])
    made = {"z": records.raw(torch.tensor([-2.0]), exact=True), "a.0": records.raw(change, exact=True)}
    bitdelta_file.write(tmp_path / "x", made)
    first = struct.pack("<I3sIQfIII", 3, b"a.0", 1, 33, 16.5, 2, 0x55555555, 1)
    second = struct.pack("<I1sIQfII", 1, b"z", 1, 1, 2.0, 1, 0)
    assert (tmp_path / "x").read_bytes() == b"BITDELTA" + struct.pack("<II", 1, 2) + first + second
    (tmp_path / "y").write_bytes(b"BITDELTA" + struct.pack("<II", 1, 2) + second + first)  # in another order
    found = bitdelta_file.read(tmp_path / "y")
    assert found["a.0"].values().tolist() == [16.5 * (-1) ** each for each in range(33)]


def written_elsewhere(tensors) -> bytes:
    """Write the container from (name, shape, scale, signs) with numbers of Python alone."""
    data = b"BITDELTA" + struct.pack("<II", 1, len(tensors))
    for name, shape, scale, signs in tensors:
        number = sum(1 << place for place, sign in enumerate(signs) if sign)
        data += struct.pack("<I", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        data += struct.pack("<fI", scale, -(-len(signs) // 32)) + number.to_bytes(4 * -(-len(signs) // 32), "little")
    return data


def read_elsewhere(data: bytes):
    """Read the container into (name, shape, scale, signs)."""
    (count,), place = struct.unpack_from("<I", data, 12), 16
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, place)
        name, (rank,) = data[place + 4 :][:length], struct.unpack_from("<I", data, place + 4 + length)
        shape = struct.unpack_from(f"<{rank}Q", data, place + 8 + length)
        scale, words = struct.unpack_from("<fI", data, place := place + 8 + length + 8 * rank)
        number = int.from_bytes(data[place + 8 :][: 4 * words], "little")
        place += 8 + 4 * words
        yield name, shape, scale, [bool(number >> bit & 1) for bit in range(math.prod(shape))]
    assert place == len(data)


def test_another_program_reads_what_is_written_and_writes_what_is_read(tmp_path):
    draws = torch.Generator().manual_seed(1)
    changes = {
        f"layer.{number}": torch.randn(shape, generator=draws).half().float()
        for number, shape in enumerate([(1,), (31,), (32,), (33,), (3, 65), (2, 3, 11), (64, 16)])
    }
    made = {name: records.raw(change, exact=True) for name, change in changes.items()}
    bitdelta_file.write(tmp_path / "ours", made)
    theirs = list(read_elsewhere((tmp_path / "ours").read_bytes()))
    assert [name.decode() for name, *_ in theirs] == sorted(changes)
    for name, shape, scale, signs in theirs:
        change = changes[name.decode()]
        assert shape == tuple(change.shape)
        assert scale == pytest.approx(sum(map(abs, change.flatten().tolist())) / change.numel(), rel=2e-7)
        assert signs == [value >= 0 for value in change.flatten().tolist()]
    (tmp_path / "theirs").write_bytes(written_elsewhere(theirs[::-1]))
    found = bitdelta_file.read(tmp_path / "theirs")
    for name, shape, scale, signs in theirs:
        wanted = torch.tensor([scale if sign else -scale for sign in signs]).view(shape)
        assert torch.equal(found[name.decode()].values(), wanted)


def broken(data: bytes):
    name = 16 + 4 + len("a.weight")
    yield "magic", b"BITDELTB" + data[8:]
    yield "version", data[:8] + struct.pack("<I", 2) + data[12:]
    yield "tensors", data[:12] + struct.pack("<I", 2**31) + data[16:]
    yield "one more", data[:12] + struct.pack("<I", 3) + data[16:]
    yield "name", data[:16] + struct.pack("<I", 2**30) + data[20:]
    yield "dimensions", data[:name] + struct.pack("<I", 2**31) + data[name + 4 :]
    yield "shape", data[: name + 4] + struct.pack("<Q", 2**60) + data[name + 12 :]
    yield "scale", data[: name + 20] + struct.pack("<f", float("nan")) + data[name + 24 :]
    yield "words", data[: name + 24] + struct.pack("<I", 2**31) + data[name + 28 :]
    yield "cut", data[:-1]
    yield "more", data + b"\0"
    yield "nothing", b""
    nothing = struct.pack("<I1sI2QfI", 1, b"a", 2, 0, 2**64 - 1, 1.0, 0)
    yield "a side of no tensor", b"BITDELTA" + struct.pack("<II", 1, 1) + nothing


def test_what_lies_is_refused(path):
    file, _ = path
    for what, data in broken(file.read_bytes()):
        file.write_bytes(data)
        with pytest.raises(GymError, match="this is no sound"):
            bitdelta_file.read(file)
            pytest.fail(what)
    with pytest.raises(GymError, match="cannot be read"):
        bitdelta_file.read(file.with_name("absent"))
