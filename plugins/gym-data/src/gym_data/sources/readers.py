"""Readers of one file each: path in, rows as they are written out. Errors name file and line.

Nothing here knows what the columns mean.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gym_core import DataError
from gym_data.sources.arrow_values import as_python
from gym_data.sources.compression import ARCHIVES, COMPRESSED, TEXTS, check_decompression, kind_of, opened
from gym_data.sources.saved_folder import saved_files

Row = dict[str, Any]
WRAPPERS = (
    "data",
    "rows",
    "train",
    "examples",
    "instances",
    "items",
    "samples",
)  #: keys that files keep their rows under
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}  #: of fields, in the order in which a header is looked at
LONGEST_FIELD = 1 << 30  #: bytes in one CSV field; the csv module stops at 128 KiB by default


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line, without a byte order mark and line end.

    Raises DataError where a line is not UTF-8.
    """
    with opened(path) as file:
        for number, raw in enumerate(file, 1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error) from None
            yield number, text.rstrip("\r\n")


def whole(path: Path) -> str:
    """Return the text of a file without a byte order mark. Raises DataError where it is not UTF-8."""
    with opened(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, raw.count(b"\n", 0, error.start) + 1, error) from None


def read_json(path: Path) -> Iterator[Row]:
    """Read a JSON array of rows, one row alone, or JSON lines that carry the wrong name."""
    text = whole(path)
    if text.lstrip()[:1] != "[":
        alone = _alone(text)
        if alone is None:
            yield from read_jsonl(path)
            return
        key = _holds_rows(alone)
        if key is not None:
            raise DataError(
                f"the rows are in the key `{key}` of an object, and the file must be the list of them",
                where=str(path),
                fix=f"write only what stands under `{key}` into the file, or one row a line",
            )
        yield alone
        return
    rows = _parse(text, path, 1)
    for number, row in enumerate(rows, 1):
        yield _row(row, f"{path}: row {number}")


def read_jsonl(path: Path) -> Iterator[Row]:
    """Read one JSON object a line; blank lines do not count."""
    for number, text in lines(path):
        if text.strip():
            yield _row(_parse(text, path, number), f"{path}:{number}")


def read_csv(path: Path) -> Iterator[Row]:
    """Read a table with a header, divided by commas, or as a header without any is: by `;` or tabs.

    Quoted fields may hold line ends.
    """
    csv.field_size_limit(LONGEST_FIELD)
    deque(lines(path), maxlen=0)  # names the line that is not UTF-8; the csv module counts lines in another way
    with opened(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        head = file.readline()
        sign = next((each for each in SEPARATORS if each in head), ",")
    with opened(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file, strict=True, delimiter=sign)
        try:
            if twice := _twice(table.fieldnames or ()):
                raise DataError(
                    f"two columns are named `{twice}`", where=f"{path}:1", fix="give each a name of its own"
                )
            for row in table:
                if None in row or None in row.values():
                    why = f"the row has {'more' if None in row else 'fewer'} fields than the header"
                    fix = f'quote fields that hold a {SEPARATORS[sign]}: "a{sign} b"'
                    raise DataError(why, where=f"{path}:{table.line_num}", fix=fix)
                yield row
        except csv.Error as error:
            raise DataError(f"not CSV: {error}", where=f"{path}:{table.line_num}") from None


def read_parquet(path: Path) -> Iterator[Row]:
    """Read a Parquet file batch by batch."""
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches():
                yield from as_python(batch, path)
    except pa.ArrowException as error:
        raise DataError(f"not Parquet: {_first_line(error)}", where=str(path)) from None


def read_arrow(path: Path) -> Iterator[Row]:
    """Read an Arrow file or stream batch by batch."""
    try:
        with pa.memory_map(str(path)) as source:
            if source.read(6) == b"ARROW1":
                file = pa.ipc.open_file(source)
                for index in range(file.num_record_batches):
                    yield from as_python(file.get_batch(index), path)
            else:
                source.seek(0)
                for batch in pa.ipc.open_stream(source):
                    yield from as_python(batch, path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"not Arrow: {_first_line(error)}", where=str(path)) from None


def read_text(path: Path, unit: str = "line") -> Iterator[Row]:
    """Read plain text as rows with the one column `text`: a line, a paragraph or the file each, unless blank."""
    return ({"text": text} for text in UNITS[unit](path) if text.strip())


def _paragraphs(path: Path) -> Iterator[str]:
    gathered: list[str] = []
    for _, text in lines(path):
        if text.strip():
            gathered.append(text)
        elif gathered:
            yield "\n".join(gathered)
            gathered = []
    yield "\n".join(gathered)


UNITS: dict[str, Callable[[Path], Iterator[str]]] = {
    "line": lambda path: (text for _, text in lines(path)),
    "paragraph": _paragraphs,
    "file": lambda path: iter([whole(path)]),
}
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".txt": read_text,
}


def find_files(path: Path) -> list[Path]:
    """Return the data files at a path. Raises DataError when there are none, of several kinds, or such as cannot be read."""
    kinds = ", ".join(suffix.removeprefix(".") for suffix in READERS)
    packed = ", ".join(f"{suffix}{ending}".removeprefix(".") for suffix in TEXTS[:1] for ending in COMPRESSED)
    if not path.exists():
        raise DataError("no such file", where=str(path), fix="relative paths start where the command runs")
    if path.is_file():
        files = [path]
    elif not (files := saved_files(path)):
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    suffixes = {kind_of(file) for file in files}
    if len(suffixes) > 1:
        found = ", ".join(sorted(suffix or "no ending" for suffix in suffixes))
        raise DataError(f"the folder holds several kinds of file: {found}", where=str(path), fix="name one file of it")
    if not suffixes:
        raise DataError("the folder holds no files", where=str(path))
    if not suffixes <= READERS.keys():
        known = f"known: {kinds}, and texts that are compressed, such as {packed}"
        fix = "unpack it, and name the file or folder with the rows" if suffixes & set(ARCHIVES) else known
        raise DataError(f"cannot read files that end in `{suffixes.pop()}`", where=str(path), fix=fix)
    for file in files:
        check_decompression(file)
    return files


def _alone(text: str) -> Row | None:
    """Return the one object that a text consists of; None where it is something else, such as JSON lines."""
    try:
        found = _JSON.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _holds_rows(row: Row) -> str | None:
    """Return the key of an object that holds a list of rows, as some files wrap them; messages are no rows."""
    for key, value in row.items():
        first = value[0] if isinstance(value, list) and value else None
        messages = isinstance(first, dict) and {"role", "from"} & first.keys()
        if isinstance(first, dict) and not messages and (len(row) == 1 or key in WRAPPERS):
            return key
    return None


def _object(pairs: list[tuple[str, Any]]) -> Row:
    """Return an object of JSON. Raises ValueError where a key stands twice, as the value of one would go missing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the key `{_twice(key for key, _ in pairs)}` stands twice in one object")
    return found


def _twice(names: Iterable[str]) -> str:
    """Return the first name that comes more than once, or ""."""
    return next((name for name, times in Counter(names).items() if times > 1), "")


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg}", where=f"{path}:{line + error.lineno - 1}") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else _first_line(error)
        raise DataError(f"not JSON that can be read: {why}", where=f"{path}:{line}") from None


def _row(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(
            f"expected an object with named columns, not {type(row).__name__}",
            where=where,
            fix='write each row as {"instruction": ..., "output": ...} or {"messages": [...]}',
        )
    return row


def _not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"not UTF-8: byte 0x{error.object[error.start]:02x}",
        where=f"{path}:{line}",
        fix="save it as UTF-8, for example: iconv -f latin1 -t utf-8",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
