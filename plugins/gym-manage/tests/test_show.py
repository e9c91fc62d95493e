"""`gym plugins show`: a component in words, and where its package is from."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, PositiveInt, SerializeAsAny

from gym_core import Algorithm, Slot
from gym_core.cli import run
from gym_core.component import Config
from gym_core.errors import OK, PLUGIN
from gym_data import Source
from gym_manage.option_text import default_of, type_of


def shown(capsys, *arguments: str):
    assert run(["plugins", "show", *arguments, "--json"]) == OK
    return json.loads(capsys.readouterr().out)["components"]


def test_a_component_in_words(add, capsys):
    add("gym-toy")
    (told,) = shown(capsys, "algorithms/toy")
    assert (told["dist"], told["version"], told["doc"]) == ("gym-toy", "1.0", "Learns nothing, quickly.")
    assert told["options"] == [{"name": "strength", "type": "number", "default": "1.0", "doc": "How strongly."}]
    assert run(["plugins", "show", "toy"]) == OK
    assert "How strongly." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("direct", "source"),
    [
        (None, "a package index"),
        ('{"url": "file:///x", "dir_info": {"editable": true}}', "file:///x (editable)"),
        ('{"url": "https://x/y", "vcs_info": {"vcs": "git", "commit_id": "abc"}}', "https://x/y at abc"),
        ("[" * 100_000, "unknown: its direct_url.json cannot be read"),
        ('{"url": "file:///\\u001b[2J"}', "file:///\\x1b[2J"),
    ],
)
def test_where_a_package_is_from(add, capsys, tmp_path, direct, source):
    add("gym-toy")
    info = tmp_path / "site/gym_toy-1.0.dist-info"
    licence = "Author-email: A. Body <a@b.org>\nLicense-Expression: MIT\n\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: gym-toy\nVersion: 1.0\n{licence}")
    if direct:
        (info / "direct_url.json").write_text(direct)
    (told,) = shown(capsys, "algorithms/toy")
    assert (told["author"], told["licence"], told["from"]) == ("A. Body <a@b.org>", "MIT", source)


def test_what_is_not_installed_or_broken_is_said(add, capsys, tmp_path):
    add("gym-toy")
    assert run(["plugins", "show", "nothing"]) == PLUGIN
    assert run(["plugins", "show", "toyy"]) == PLUGIN
    assert "did you mean `toy`?" in capsys.readouterr().err
    (tmp_path / "site/gym_toy.py").write_text("raise SystemExit(0)")
    assert run(["plugins", "show", "algorithms/toy"]) == PLUGIN
    assert "SystemExit" in capsys.readouterr().err


class Size(StrEnum):
    """Values that have names."""

    SMALL = "s"
    LARGE = "l"


class Inner(Config):
    """Options of an option."""

    size: int = 1
    """How large."""


class Many(Algorithm):
    """Options of every type."""

    steps: PositiveInt | None = None
    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    mode: Literal["fast", "exact"] = "fast"
    size: Size | None = Size.SMALL
    both: bool | Literal["auto"] = "auto"
    names: tuple[str, ...] = ()
    weights: dict[str, float] = {}
    rewards: list[Annotated[SerializeAsAny[Source], Slot("sources")]]
    inner: Annotated[SerializeAsAny[Source] | None, Slot("sources")] = None
    more: Inner = Inner()
    where: Path = Path("here")


def test_types_and_defaults_are_words():
    told = {name: (type_of(info), default_of(info)) for name, info in Many.model_fields.items()}
    assert told == {
        "steps": ("integer above 0 or none", "none"),
        "share": ("number at least 0 and below 1", "0.5"),
        "mode": ("fast or exact", "fast"),
        "size": ("s or l or none", "s"),
        "both": ("true or false or auto", "auto"),
        "names": ("list of text", "[]"),
        "weights": ("mapping of text to number", "{}"),
        "rewards": ("list of sources", "required"),
        "inner": ("source or none", "none"),
        "more": ("mapping of size", '{"size": 1}'),
        "where": ("path", '"here"'),
    }
