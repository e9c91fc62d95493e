"""The file of a delta: what is written comes back, and what lies is refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from random_deltas import BASE, coded, low_rank

from gym_bitdelta.config.file_size_bound import PROVENANCE, file_bytes
from gym_bitdelta.delta import file, records
from gym_bitdelta.delta.header import PARTS, Dense, Header, LowRank, Raw, Zero, data_bytes, grouped
from gym_core import GymError

ENTRIES = [
    Dense(shape=(5, 19), code=code, bits=bits, scales=scales, group=group, zero_points=zeros)
    for code, bits, zeros in (
        ("signs", 1, False),
        ("signs", 3, False),
        ("grid", 4, False),
        ("grid", 2, True),
        ("ternary", 1, False),
    )
    for scales, group in (("tensor", None), ("row", None), ("col", None), ("group", 8), ("rank1", None))
    if not (zeros and scales == "rank1")
]
MORE = [
    Dense(shape=(3, 7, 11), code="signs", bits=2, scales="row", transposed=True),
    Dense(shape=(3, 7, 11), code="ternary", scales="rank1"),
    Dense(shape=(9, 6), code="grid", bits=8, scales="group", group=4, rows=4),
]


@pytest.fixture
def delta() -> file.Delta:
    """Return a delta with a record of each kind."""
    draws = torch.Generator().manual_seed(1)
    found = {f"w{number}": coded(entry, number) for number, entry in enumerate([*ENTRIES, *MORE])}
    found["norm"] = records.raw(torch.randn(7, generator=draws))
    found["head"] = records.raw(torch.randn(6, 3, generator=draws), torch.tensor([0, 4]))
    found["exact"] = records.raw(torch.randn(3, generator=draws), exact=True)
    found["same"] = records.zero((4, 4))
    found["lora"] = low_rank(LowRank(shape=(20, 9), rank=3, leading=1, group=8))
    return file.made(BASE, found, {"name": "test"}, {"evaluation": "not evaluated"})


def test_what_is_written_comes_back_and_takes_the_bytes_it_declares(tmp_path, delta):
    path = tmp_path / file.NAME
    file.write(path, delta)
    again = file.read(path)
    assert again.header == delta.header and again.records.keys() == delta.records.keys()
    for name, record in delta.records.items():
        assert torch.equal(again.records[name].values(), record.values()), name
        assert again.records[name].values().shape == record.entry.shape
    head = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert path.stat().st_size - head == data_bytes(delta.header.entries())
    before = path.read_bytes()
    file.write(path, again)
    assert path.read_bytes() == before


@pytest.mark.parametrize("entry", [*ENTRIES, *MORE], ids=lambda entry: f"{entry.code}{entry.bits}-{entry.scales}")
def test_codes_stand_for_what_the_table_says(entry):
    """Each number by itself, in Python's floats, from the formula of the entry and the rule of the packing."""
    record = coded(entry)
    stack, rows, columns = entry.matrices
    packed, zeros = record.parts["codes"].tolist(), record.parts.get("zeros")
    scales, gain = record.parts["scales"].double().tolist(), float(record.parts["gains"])
    planes, blocks = entry.planes, entry.blocks
    width = -(-columns // 5) if entry.code == "ternary" else -(-columns // 8)
    groups = -(-columns // entry.group) if entry.group else 0
    found = record.values()
    for e in range(stack):
        for r in range(rows):
            for c in range(columns):
                block = {
                    "tensor": e, "row": e * rows + r, "col": e * columns + c, "rank1": e * rows + r,
                    "group": (e * rows + r) * groups + (c // entry.group if entry.group else 0),
                }[entry.scales]  # fmt: skip
                scale = [scales[plane * blocks + block] * gain for plane in range(planes)]
                if entry.scales == "rank1":
                    scale = [each * scales[planes * blocks + e * columns + c] for each in scale]
                if entry.code == "ternary":
                    byte = packed[(e * rows + r) * width + c // 5]
                    wanted = scale[0] * (byte // 3 ** (c % 5) % 3 - 1)
                else:
                    bits = [
                        packed[((j * stack + e) * rows + r) * width + c // 8] >> c % 8 & 1 for j in range(entry.bits)
                    ]
                    if entry.code == "signs":
                        wanted = sum(a * (2 * b - 1) for a, b in zip(scale, bits, strict=True))
                    else:
                        middle = int(zeros[block]) if zeros is not None else (2**entry.bits - 1) / 2
                        wanted = scale[0] * (sum(b << j for j, b in enumerate(bits)) - middle)
                at = (c, r) if entry.transposed else (r, c)
                place = (2 * at[0], at[1]) if entry.rows is not None else ((e, *at) if len(entry.shape) == 3 else at)
                assert float(found[place]) == pytest.approx(wanted, rel=1e-5, abs=1e-8)


def rewritten(path: Path, change) -> None:
    """Change the header of a file of safetensors."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    said = json.loads(header["__metadata__"]["gym-delta"])
    change(header, said)
    header["__metadata__"]["gym-delta"] = json.dumps(said)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def entry_of(said, name):
    return next(entry for entry, names in said["table"] if name in names)


ZERO = {"kind": "zero", "shape": [2]}
LIES = {
    "shape": lambda header, said: entry_of(said, "w0").update(shape=[5, 27]),
    "huge": lambda header, said: entry_of(said, "w0").update(shape=[2**39, 2**39]),
    "negative": lambda header, said: entry_of(said, "w0").update(shape=[-5, 19]),
    "rank": lambda header, said: entry_of(said, "lora").update(rank=10),
    "bits": lambda header, said: entry_of(said, "w0").update(bits=9),
    "kind": lambda header, said: entry_of(said, "w0").update(kind="pickle"),
    "rows": lambda header, said: entry_of(said, "head").update(rows=7),
    "twice": lambda header, said: said["table"].append(said["table"][0]),
    "lost": lambda header, said: said["table"].pop(),
    "base": lambda header, said: said.update(base="abc"),
    "no rows": lambda header, said: said.update(table={}),
    "no names": lambda header, said: said["table"][0].__setitem__(1, {}),
    "names of another layout": lambda header, said: said["table"][0].__setitem__(1, ["w0"]),
    "very many names": lambda header, said: said["table"].append([ZERO, {"a.#": "0-999999999"}]),
    "many rows of names": lambda header, said: said["table"].append([ZERO, {f"a{i}.#": "0-99999" for i in range(20)}]),
    "a layer twice": lambda header, said: said["table"].append([ZERO, {"a.#": "0-2,2"}]),
    "layers that fall": lambda header, said: said["table"].append([ZERO, {"a.#": "2-0"}]),
    "a layer that is none": lambda header, said: said["table"].append([ZERO, {"a.#": "\u0662"}]),
    "layers of a name without any": lambda header, said: said["table"].append([ZERO, {"a": "0-2"}]),
    "layers that are no text": lambda header, said: said["table"].append([ZERO, {"a.#": [0, 1]}]),
    "too few numbers": lambda header, said: entry_of(said, "lora").update(rank=[2, 2]),
    "numbers of text": lambda header, said: entry_of(said, "lora").update(kind=["zero"]),
    "number format": lambda header, said: header["codes"].update(dtype="I8"),
    "beyond": lambda header, said: header["codes"]["data_offsets"].__setitem__(1, 10**9),
    "another part": lambda header, said: header.update(code=header.pop("codes")),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(tmp_path, delta, lie):
    path = tmp_path / file.NAME
    file.write(path, delta)
    rewritten(path, LIES[lie])
    with pytest.raises(GymError, match="no sound delta"):
        file.read(path)


@pytest.mark.parametrize("layout", ["gym-delta-1", "gym-delta-9", None, 2, ["gym-delta-2"]])
def test_another_layout_is_refused_by_its_name(tmp_path, delta, layout):
    path = tmp_path / file.NAME
    file.write(path, delta)
    rewritten(path, lambda header, said: said.update(format=layout))
    with pytest.raises(GymError, match="has the layout") as caught:
        file.read(path)
    assert str(layout) in str(caught.value) and "gym-delta-2" in str(caught.value)


def test_a_table_is_read_as_it_was_whatever_weights_are_called(tmp_path):
    """Numbers in any place, names that look as patterns do, and entries that are alike but for a number."""
    names = [
        "a.0.w",
        "a.1.w",
        "a.10.w",
        "a.2.w",
        "a.01.w",
        "a.#.w",
        "a.#.0.w",
        "#",
        "0",
        "7",
        "a.1.b.2",
        "a.1.b.3",
        "b.-1",
    ]
    names += ["a.3.w.#", "b.9999999999", "b.\u0661", "b..1", ".", "b.4", "b.5", "b.6"]
    entries = {name: Zero(shape=(place % 3 + 1, 4)) for place, name in enumerate(names)}
    entries |= {f"l.{each}.w": LowRank(shape=(20, 30), rank=each + 1, leading=each // 2) for each in range(12)}
    found = Header.model_validate_json(Header(base="0" * 64, table=grouped(entries)).text())
    assert found.entries() == entries
    assert list(found.entries()) == list(Header(base="0" * 64, table=grouped(entries)).entries())
    backwards = Header(base="0" * 64, table=grouped(entries)[::-1])  # as another writer may have it
    mine = {name: record_of(entry) for name, entry in entries.items()}
    file.write(tmp_path / file.NAME, file.Delta(backwards, mine))
    read = file.read(tmp_path / file.NAME)
    for name, record in mine.items():
        assert read.records[name].entry == record.entry
        assert all(torch.equal(read.records[name].parts[part], tensor) for part, tensor in record.parts.items()), name


def record_of(entry):
    """Return a record of an entry with numbers of its own."""
    parts = {}
    for part, count in entry.counts().items():
        width = file.DTYPES[PARTS[part]]
        parts[part] = torch.randint(0, 100, (count,)).to(width)
    return records.Record(entry, parts)


def test_layers_cost_the_header_next_to_nothing():
    def size(layers):
        entries = {f"model.layers.{each}.mlp.up_proj.weight": Zero(shape=(4, 4)) for each in range(layers)}
        return len(Header(base="0" * 64, table=grouped(entries)).text())

    assert size(64) - size(1) < 8


def test_numbers_that_cannot_be_are_refused_by_name(tmp_path, delta):
    def wrong(name, part, value):
        record = delta.records[name]
        parts = {**record.parts, part: torch.full_like(record.parts[part], value)}
        broken = file.Delta(delta.header, {**delta.records, name: records.Record(record.entry, parts)})
        file.write(tmp_path / file.NAME, broken)
        with pytest.raises(GymError, match=f"{name}: "):
            file.read(tmp_path / file.NAME)

    wrong("w0", "scales", float("nan"))
    wrong("norm", "gains", float("inf"))
    wrong("head", "rows", 3)
    wrong("head", "rows", 6)
    wrong("w20", "codes", 250)


def test_rows_whose_differences_overflow_are_refused(tmp_path, delta):
    """Of int32 each of these is larger than the one before it by a number that wraps round."""
    rows = torch.tensor([0, 2**31 - 1, -(2**31), -1, 5], dtype=torch.int32)
    record = records.raw(torch.randn(6, 3), torch.arange(5))
    broken = records.Record(record.entry, {**record.parts, "rows": rows})
    file.write(tmp_path / file.NAME, file.made(BASE, {"head": broken}, {}, {}))
    with pytest.raises(GymError, match="head: its rows"):
        file.read(tmp_path / file.NAME)


@pytest.mark.parametrize("group", [10**12, 2**63, 10**30])
def test_groups_beyond_the_sides_of_factors_take_no_memory(group):
    """A header may say any number, and a group ends with its row."""
    whole, lies = (LowRank(shape=(16, 24), rank=2, leading=1, group=size) for size in (24, group))
    assert whole.counts() == lies.counts()
    parts = low_rank(whole).parts
    assert torch.equal(records.Record(lies, parts).values(), records.Record(whole, parts).values())


def test_a_weight_of_no_rows_is_read(tmp_path):
    empty = records.raw(torch.zeros(6, 3), torch.empty(0, dtype=torch.int64))
    file.write(tmp_path / file.NAME, file.made(BASE, {"head": empty}, {}, {}))
    found = file.read(tmp_path / file.NAME).records["head"].values()
    assert found.shape == (6, 3) and not found.any()


def test_what_stands_for_more_than_any_change_of_the_base_is_refused(tmp_path):
    """Few bytes may stand for many numbers: a row of a huge table, or the product of two long vectors."""
    row = records.Record(Raw(shape=(2**35, 4), rows=1), records.raw(torch.ones(1, 4), torch.tensor([0])).parts)
    long = low_rank(LowRank(shape=(2**18, 2**18), rank=1, group=2**18))
    for record in (row, long):
        with pytest.raises(GymError, match="head stands for"):
            file.made(BASE, {"norm": records.raw(torch.ones(4)), "head": record}, {}, {}).check_size(1000)
    file.made(BASE, {"head": records.raw(torch.ones(4, 4))}, {}, {}).check_size(1)


@pytest.mark.parametrize("count", [1, 2, 9, 20])
def test_the_size_of_a_header_is_known_beforehand(tmp_path, delta, count):
    """To the byte: a budget is kept by it."""
    some = dict(list(delta.records.items())[-count:])
    file.write(tmp_path / file.NAME, file.made(BASE, some, {"name": "test"}, PROVENANCE, {"rope_theta": 1.0}))
    told = file_bytes({name: record.entry for name, record in some.items()}, {"name": "test"}, {"rope_theta": 1.0})
    assert (tmp_path / file.NAME).stat().st_size == told


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 100, struct.pack("<Q", 2**62) + b"{}", None])
def test_what_is_no_file_of_safetensors_is_refused(tmp_path, content):
    path = tmp_path / file.NAME
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GymError):
        file.read(path)


def test_a_file_that_was_cut_is_refused(tmp_path, delta):
    path = tmp_path / file.NAME
    file.write(path, delta)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(GymError, match="no sound delta"):
        file.read(path)
