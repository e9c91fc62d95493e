"""Every kind of file, and what is said of files that are broken."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym_core import DataError, GymError
from gym_data import DatasetConfig, File, Hub, Named, Source
from gym_data.kinds import Data
from gym_data.sources.dataset_info import Columns, Info, format_of
from gym_data.sources.readers import read_json

ROWS = [{"instruction": f"say {i}", "input": "", "output": f"it is {i}"} for i in range(3)]


def rows_of(path, **options):
    return list(File(path=str(path), **options).build().rows())


def test_json_jsonl_csv_parquet_and_arrow_hold_the_same_rows(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(map(json.dumps, ROWS)).encode())
    (tmp_path / "a.csv").write_text(
        "\ufeffinstruction,input,output\r\n" + "".join(f"say {i},,it is {i}\r\n" for i in range(3))
    )
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet")
    for name, new in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)
    for path in tmp_path.iterdir():
        assert rows_of(path) == ROWS, path.name


def test_a_dataset_that_was_saved_to_disk_is_read_as_the_library_reads_it(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"instruction": f"say {i}", "output": f"it is {i}"} for i in range(25)]
    whole, held = datasets.Dataset.from_list(rows), datasets.Dataset.from_list(rows[:2])
    whole.save_to_disk(
        tmp_path / "one", num_shards=12
    )  # `datasets` says in a file which are its parts, and in which order
    datasets.DatasetDict(train=whole.select([5, 1, 3]), test=held).save_to_disk(tmp_path / "both")
    datasets.DatasetDict(test=held).save_to_disk(tmp_path / "held")
    assert rows_of(tmp_path / "one") == rows
    assert rows_of(tmp_path / "both") == [rows[5], rows[1], rows[3]]
    assert rows_of(tmp_path / "both" / "test") == rows[:2]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"held": {"file_name": "both", "split": "test"}}))
    assert list(Named(path="held", directory=str(tmp_path)).build().rows()) == rows[:2]
    prints = {File(path=str(tmp_path / name)).build().fingerprint() for name in ("one", "both", "both/test")}
    assert len(prints) == 3
    with pytest.raises(DataError, match="no split `train`, but test"):
        rows_of(tmp_path / "held")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ('{"_data_files": [{"filename": "gone.arrow"}]}', "missing: gone.arrow"),
        ('{"_data_files": [{"filename": "../rows.arrow"}]}', "no file of the folder"),
        ('{"_data_files": 3}', "no list `_data_files`"),
        ("{", "not JSON"),
    ],
)
def test_a_saved_dataset_whose_parts_are_not_there_is_refused(state, why, tmp_path):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(DataError, match=why):
        rows_of(tmp_path)


def test_what_a_table_fills_objects_up_with_is_not_learnt(monkeypatch, tmp_path):
    """Its objects of one column all have the same keys: a call would get the arguments of every other one, as nulls."""
    rows = [
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": given}]}], "labels": [True, None]}
        for given in ({"city": "Paris"}, {"unit": {"of": "heat"}, "n": 3})
    ]
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    table = pa.Table.from_pylist([*rows, {"messages": None}])
    (tmp_path / "hub").mkdir()
    for path in (tmp_path / "a.parquet", tmp_path / "hub" / "a.parquet"):
        pq.write_table(table, path)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    wanted = [*rows, {"messages": None, "labels": None}]
    assert rows_of(tmp_path / "a.parquet") == rows_of(tmp_path / "a.arrow") == wanted
    assert list(Hub(path=str(tmp_path / "hub")).build().rows()) == wanted
    pq.write_table(pa.table({"other": [1]}), tmp_path / "hub" / "b.parquet")
    assert list(Hub(path=str(tmp_path / "hub"), files=("a.parquet",)).build().rows()) == wanted
    (tmp_path / "a.json").write_text(json.dumps([{"given": {"city": None}}]))
    assert rows_of(tmp_path / "a.json") == [{"given": {"city": None}}]


def packed(content, ending):
    if ending == ".gz":
        return gzip.compress(content[:20]) + gzip.compress(content[20:])
    new = pytest.importorskip("zstandard").ZstdCompressor()
    return new.compress(content[:20]) + new.compress(content[20:])


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_texts_that_are_compressed_hold_what_they_did_before(ending, tmp_path):
    lines = "\n".join(map(json.dumps, ROWS)).encode()
    table = ("instruction;input;output\n" + "".join(f"say {i};;it is {i}\n" for i in range(3))).encode()
    files = {"a.jsonl": lines, "B.JSONL": lines, "a.json": json.dumps(ROWS).encode(), "a.csv": b"\xef\xbb\xbf" + table}
    for name, content in files.items():
        path = tmp_path / (name + (ending.upper() if name.isupper() else ending))
        path.write_bytes(packed(content, ending))
        assert rows_of(path) == ROWS, name
        for damaged in (content, packed(content, ending)[:-5]):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match="not all of it is") as caught:
                rows_of(path)
            assert str(caught.value).count("\n") < 4
    path = tmp_path / f"bad.jsonl{ending}"
    path.write_bytes(packed(b'{"text": "a"}\n{"text": ', ending))
    with pytest.raises(DataError, match=rf"bad\.jsonl{ending}:2\n  not JSON"):
        rows_of(path)


def test_what_is_in_an_archive_or_needs_a_package_is_said(monkeypatch, tmp_path):
    for name in ("rows.zip", "rows.tar", "rows.tar.gz", "rows.tgz"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match="unpack it"):
            rows_of(tmp_path / name)
    (tmp_path / "rows.parquet.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"end in `\.parquet\.gz`"):
        rows_of(tmp_path / "rows.parquet.gz")
    (tmp_path / "rows.jsonl.zst").write_bytes(b"")
    monkeypatch.setattr("gym_data.sources.compression.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install zstandard"):
        File(path=str(tmp_path / "rows.jsonl.zst")).check()


def test_maps_of_tables_are_objects_and_bytes_of_text_are_text(tmp_path):
    names = pa.map_(pa.string(), pa.list_(pa.struct([("n", pa.int64()), ("bytes", pa.binary())])))
    schema = pa.schema(
        [("map", names), ("told", pa.map_(pa.binary(), pa.string())), ("text", pa.binary()), ("raw", pa.binary())]
    )
    rows = [
        {
            "map": [("a", [{"n": 1, "bytes": b"P6"}, {"n": None}]), ("b", None)],
            "told": [(b"k", "v")],
            "text": "Grüße".encode(),
        },
        {"map": [], "told": None, "text": b"", "raw": b"\xff\xd8"},
    ]
    wanted = [
        {"map": {"a": [{"n": 1, "bytes": b"P6"}, {}], "b": None}, "told": {"k": "v"}, "text": "Grüße", "raw": None},
        {"map": {}, "told": None, "text": "", "raw": b"\xff\xd8"},
    ]
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet") == wanted
    twice = pa.Table.from_pylist([{"map": [("a", None), ("a", None)]}], pa.schema([("map", names)]))
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="the key `a` stands twice"):
        rows_of(tmp_path / "a.parquet")


def test_text_is_read_by_line_paragraph_or_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\n\nthree\n")
    assert [row["text"] for row in rows_of(path)] == ["one", "two", "three"]
    assert [row["text"] for row in rows_of(path, text_unit="paragraph")] == ["one\ntwo", "three"]
    assert [row["text"] for row in rows_of(path, text_unit="file")] == ["one\ntwo\n\n\nthree\n"]


def test_a_folder_is_read_in_order_and_must_be_of_one_kind(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    (tmp_path / ".hidden").write_text("x")
    assert [row["text"] for row in rows_of(tmp_path)] == ["a", "b"]
    (tmp_path / "c.csv").write_text("text\nc\n")
    with pytest.raises(DataError, match=r"several kinds of file: \.csv, \.jsonl"):
        rows_of(tmp_path)


@pytest.mark.parametrize("sign", [";", "\t"])
def test_tables_whose_header_has_no_comma_are_divided_as_it_is(tmp_path, sign):
    """As spreadsheets write them where a comma stands in numbers. Fields may then hold commas."""
    (tmp_path / "a.csv").write_text(f'question{sign}answer\nWhat is 1,5 + 1?{sign}2,5\n"a{sign} b"{sign}c\n')
    rows = [{"question": "What is 1,5 + 1?", "answer": "2,5"}, {"question": f"a{sign} b", "answer": "c"}]
    assert rows_of(tmp_path / "a.csv") == rows
    (tmp_path / "a.tsv").write_text("question\tanswer\na; b\tc, d\n")
    assert rows_of(tmp_path / "a.tsv") == [{"question": "a; b", "answer": "c, d"}]
    (tmp_path / "b.csv").write_text(f"a{sign}b\n1{sign}2{sign}3\n")
    with pytest.raises(DataError, match=r"more fields than the header\n  -> quote fields that hold a (semicolon|tab)"):
        rows_of(tmp_path / "b.csv")


def test_csv_fields_may_hold_line_ends_and_much_text(tmp_path):
    long = "x" * 200_000
    (tmp_path / "a.csv").write_text(f'text,n\n"two\nlines",1\n{long},2\n')
    assert [row["text"] for row in rows_of(tmp_path / "a.csv")] == ["two\nlines", long]


BROKEN = {
    "utf8.jsonl": (b'{"text": "a"}\n{"text": "\xff"}\n', r"utf8\.jsonl:2\n  not UTF-8: byte 0xff"),
    "utf8.json": (b'[\n{"text": "\xff"}]', r"utf8\.json:2\n  not UTF-8"),
    "utf8.csv": (b"text\na\n\xe9\n", r"utf8\.csv:3\n  not UTF-8"),
    "utf8.txt": (b"a\n\xe9\n", r"utf8\.txt:2\n  not UTF-8"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": ', r"cut\.jsonl:2\n  not JSON"),
    "cut.json": (b'[\n{"text": "a"},\n{"text" ', r"cut\.json:3\n  not JSON"),
    "nul.jsonl": (b'{"text": "a\x00"}', r"nul\.jsonl:1\n  not JSON"),
    "deep.jsonl": (b"[" * 100_000, r"deep\.jsonl:1\n  not JSON that can be read: nested too deeply"),
    "huge.jsonl": (b'{"n": ' + b"9" * 5000 + b"}", r"huge\.jsonl:1\n  not JSON that can be read"),
    "twice.jsonl": (
        b'{"text": "a"}\n{"m": {"text": "a", "text": "b"}}',
        r"twice\.jsonl:2\n  .*the key `text` stands twice",
    ),
    "twice.json": (b'[{"text": "a", "text": "b"}]', r"twice\.json:1\n  .*the key `text` stands twice"),
    "twice.csv": (b"a,b,a\n1,2,3\n", r"twice\.csv:1\n  two columns are named `a`"),
    "list.jsonl": (b"[1, 2]", r"list\.jsonl:1\n  expected an object with named columns, not list"),
    "numbers.json": (b"[1, 2]", r"numbers\.json: row 1\n  expected an object"),
    "wide.csv": (b"a,b\n1,2,3\n", r"wide\.csv:2\n  the row has more fields"),
    "narrow.csv": (b"a,b\n1\n", r"narrow\.csv:2\n  the row has fewer fields"),
    "no.parquet": (b"text", "not Parquet"),
    "no.arrow": (b"text", "not Arrow"),
    "rows.pkl": (b"", r"cannot read files that end in `\.pkl`"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named_with_their_line(name, tmp_path):
    content, message = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        rows_of(tmp_path / name)
    assert str(caught.value).count("\n") < 4


def test_a_missing_file_and_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        rows_of(tmp_path / "none.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="holds no files"):
        rows_of(tmp_path / "folder")


def test_the_fingerprint_follows_the_content_not_the_name(tmp_path):
    for name, text in (("a.txt", "one"), ("b.txt", "one"), ("c.txt", "two")):
        (tmp_path / name).write_text(text)
    a, b, c = (File(path=str(tmp_path / name)).build().fingerprint() for name in ("a.txt", "b.txt", "c.txt"))
    assert a == b != c
    assert a != File(path=str(tmp_path / "a.txt"), text_unit="file").build().fingerprint()


def test_a_name_is_looked_up_in_the_registry_then_as_a_path(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"q": "one", "a": "two"}))
    entry = {"file_name": "rows.jsonl", "columns": {"prompt": "q", "response": "a"}, "num_samples": 2, "file_sha1": "x"}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": entry}))
    opened = Named(path="mine", directory=str(tmp_path)).build()
    assert (opened.format.prompt, opened.format.query, opened.samples) == ("q", None, 2)
    assert list(Named(path="rows.jsonl", directory=str(tmp_path)).build().rows()) == [{"q": "one", "a": "two"}]
    with pytest.raises(DataError, match=f"did you mean `{tmp_path / 'rows.jsonl'}`"):
        Named(path=str(tmp_path / "row.jsonl")).build()
    with pytest.raises(DataError, match="did you mean `mine`"):
        Named(path="mime", directory=str(tmp_path)).build()


def test_what_is_not_there_is_found_without_reading_it(tmp_path):
    """So `gym validate` says it, and a run before it imports anything."""
    (tmp_path / "dataset_info.json").write_text(json.dumps({"gone": {"file_name": "gone.json"}}))
    (tmp_path / "here.jsonl").write_text("no JSON, but here")
    for lacking in (
        File(path=str(tmp_path / "gone.json")),
        *(Named(path=name) for name in ("gone", "nothing", "./x", "data/x.jsonl")),
    ):
        config = DatasetConfig(sources=[File(path=str(tmp_path / "here.jsonl")), lacking], dataset_dir=str(tmp_path))
        with pytest.raises(DataError) as caught:
            config.check()
        assert caught.value.problems[0].key == "data.sources[1]"
    with pytest.raises(DataError, match=r"in `data\.dataset_dir` the folder of a dataset_info\.json"):
        Named(path="nothing", directory=str(tmp_path / "elsewhere")).check()
    for there in (Named(path="here.jsonl"), Named(path="openai/gsm8k"), Hub(path="openai/gsm8k")):
        DatasetConfig(sources=[there], dataset_dir=str(tmp_path)).check()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"file_name": "x", "columns": {"promt": "q"}}, "did you mean `prompt`"),
        ({"file_name": "x", "columns": {"response": "a"}}, "columns.prompt: no column holds the prompt"),
        ({"file_name": "x", "columns": {"messages": "a"}}, 'set "formatting": "sharegpt"'),
        ({"file_name": "x", "formatting": "xml"}, "known: alpaca, sharegpt, openai"),
        ({"file_name": "x", "formatting": "sharegpt", "tags": {"rol": "x"}}, "unknown tag"),
        ({"script_url": "x"}, "neither `hf_hub_url` nor `file_name`"),
        ({"file_name": "missing.json"}, "no such file"),
        ({"file_name": "x", "split": 3}, "split"),
    ],
)
def test_a_wrong_registry_entry_says_what_is_wrong(entry, message, tmp_path):
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": entry}))
    with pytest.raises(DataError, match=message):
        Named(path="mine", directory=str(tmp_path)).build()


def test_registry_columns_decide_the_format():
    def name(**entry):
        return type(format_of(Info.model_validate(entry))).__name__

    assert name() == "NoneType"
    assert name(formatting="alpaca") == "Alpaca"
    assert name(columns=Columns(prompt="text")) == "Text"
    assert name(formatting="openai") == "Messages"
    assert name(formatting="sharegpt", ranking=True) == "Preference"
    assert name(formatting="sharegpt", columns=Columns(kto_tag="label")) == "Feedback"


def test_a_hub_dataset_that_cannot_be_had_is_said_in_three_lines(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="the Hub dataset cannot be loaded") as caught:
        Hub(path=str(tmp_path / "no" / "where")).build()
    assert str(caught.value).count("\n") == 2


def test_a_dataset_read_by_datasets_has_rows_and_a_fingerprint_of_its_content(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    opened = []
    for name, rows in (("a", ROWS), ("b", ROWS), ("c", ROWS[:2])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        opened.append(Hub(path=str(tmp_path / name)).build())
    assert list(opened[0].rows()) == ROWS
    assert opened[0].fingerprint() == opened[1].fingerprint() != opened[2].fingerprint()


@pytest.mark.parametrize("indent", [None, 2])
def test_rows_in_a_key_of_an_object_are_an_error_that_names_the_key(indent, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"version": 1, "data": [{"instruction": "a", "output": "b"}]}, indent=indent))
    with pytest.raises(DataError, match="the rows are in the key `data`") as caught:
        list(read_json(path))
    assert str(caught.value).count("\n") <= 3


@pytest.mark.parametrize("indent", [None, 2])
def test_one_row_alone_is_a_row(indent, tmp_path):
    path = tmp_path / "rows.json"
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    path.write_text(json.dumps(row, indent=indent))
    assert list(read_json(path)) == [row]


def test_what_a_stranger_does_not_declare_is_plain_or_refused_by_name():
    class Other(Data):
        """Data of a stranger."""

    class Elsewhere(Source):
        """A source that is no name in a folder."""

    elsewhere = Elsewhere()
    assert elsewhere.looked_up_in("folder") is elsewhere
    assert Named(path="some").looked_up_in("folder").directory == "folder"
    assert Named(path="some", directory="own").looked_up_in("folder").directory == "own"
    with pytest.raises(GymError, match="Other shows no preview"):
        Other().preview(recipe=None, count=1)
