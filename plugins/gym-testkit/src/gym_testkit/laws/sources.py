"""Laws of sources: the same rows each time, and a fingerprint that tells when they are others.

A source that reads files shows one that ends in `.jsonl` among the `examples` of an option; the laws write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gym_data.kinds import Rows
from gym_testkit import rows
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.example_files import files, there
from gym_testkit.law import laws_of
from gym_testkit.named import names_its_maker

laws = laws_of("sources", "source")


def _reads_files(brought: Brought) -> bool:
    return bool(files(brought.options()))


def _built(brought: Brought) -> Rows:
    return cast(Rows, brought.sample().build())


@laws("yields the same rows each time")
def repeats(brought: Brought, bench: Bench) -> None:
    """Read twice and built again: mappings with names of columns, in one order, and at least one."""
    with there(brought.options(), bench, rows.make("conversation")):
        source = _built(brought)
        first, second, again = (list(each.rows()) for each in (source, source, _built(brought)))
    assert first, "it yields no row"
    for row in first:
        assert isinstance(row, Mapping) and all(isinstance(name, str) for name in row), f"{row!r} has no columns"
    assert first == second == again, "it yields other rows when it is asked again"


@laws("the fingerprint stays while the rows do")
def fingerprint_stays(brought: Brought, bench: Bench) -> None:
    """Built twice from the same options it says the same, before and after its rows were read."""
    with there(brought.options(), bench, rows.make("conversation")):
        source = _built(brought)
        before = source.fingerprint()
        assert isinstance(before, str) and before, f"{before!r} is no fingerprint"
        list(source.rows())
        assert before == source.fingerprint() == _built(brought).fingerprint()


@laws("the fingerprint changes with the rows", _reads_files)
def fingerprint_changes(brought: Brought, bench: Bench) -> None:
    """One letter of one row is another dataset: tokens of the old one must not be taken for its."""
    content = rows.make("text")
    with there(brought.options(), bench, content):
        before = _built(brought).fingerprint()
    content[3] = {"text": content[3]["text"].swapcase()}
    with there(brought.options(), bench, content):
        assert _built(brought).fingerprint() != before


@laws("tokens of its rows name it: package, version, code and every option")
def named(brought: Brought, bench: Bench) -> None:
    """So they are made again when any of that changes, and never taken for another source's."""
    names_its_maker(brought)
