"""A file of rows: blocks within blocks are one change, and a file of another layout is refused.

What `kill -9`, damage, a full disk and other processes do to one is tested where one is used: the store of gym-bitdelta and the
ledger of gym-deltasoup.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gym_core import GymError
from gym_data.database import Database, Schema

SCHEMA = Schema("list", "mine", 1, "CREATE TABLE words (word TEXT);")


def words(database: Database) -> list[str]:
    with database.reading() as rows:
        return [word for (word,) in rows.execute("SELECT word FROM words")]


def test_a_block_within_a_block_is_part_of_its_change(tmp_path: Path) -> None:
    database = Database(tmp_path / "new" / "words.sqlite", SCHEMA)
    with pytest.raises(ZeroDivisionError), database.writing() as rows:
        rows.execute("INSERT INTO words VALUES ('one')")
        assert words(database) == ["one"]
        with database.writing() as again:
            again.execute("INSERT INTO words VALUES ('two')")
        raise ZeroDivisionError
    assert words(database) == []
    with database.writing() as rows:
        rows.execute("INSERT INTO words VALUES ('three')")
    database.close()
    assert words(Database(database.path, SCHEMA)) == ["three"]


def test_another_layout_is_refused_by_name(tmp_path: Path) -> None:
    Database(tmp_path / "words.sqlite", SCHEMA).close()
    with pytest.raises(GymError, match="this list has layout 1, and this version reads layout 2") as raised:
        Database(tmp_path / "words.sqlite", replace(SCHEMA, layout=2))
    assert "the version of mine that wrote it" in str(raised.value)
