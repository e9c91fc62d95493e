"""A law: what everything of a kind must hold to. One that is broken reads as a failed test with the law's own words.

A law applies to every component of its kind whose class declares the capability it is about; nothing is skipped by
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gym_testkit.distribution import Brought, Distribution

#: Modules of `gym_testkit.laws` that every distribution is held to; the others bear the name of a kind.
EVERYWHERE = ("package", "readme")

Check = Callable[..., None]


@dataclass(frozen=True)
class Law:
    """One law, the function that checks it, and what it applies to."""

    text: str
    check: Check
    applies: Callable[[Any], bool]


@dataclass
class Laws:
    """The laws of one kind, written down with `@laws("...")` over the function that checks one.

    The function takes the subject and a `gym_testkit.bench.Bench`, and asserts.
    """

    noun: str
    subjects: Callable[[Distribution], Iterator[tuple[str, Any]]]
    laws: list[Law] = field(default_factory=list)

    def __call__(self, text: str, applies: Callable[[Any], bool] = lambda subject: True) -> Callable[[Check], Check]:
        """Register a law; `applies` says of a subject whether it claims what the law is about."""

        def register(check: Check) -> Check:
            self.laws.append(Law(text, check, applies))
            return check

        return register


def laws_of(kind: str, noun: str) -> Laws:
    """Begin the laws of a kind of component; their subject is a `Brought` that needs nothing from outside."""

    def subjects(dist: Distribution) -> Iterator[tuple[str, Brought]]:
        found = (brought for brought in dist.components if brought.kind == kind and not brought.cls.outside)
        yield from ((brought.name, brought) for brought in found)

    return Laws(noun, subjects)


def cases(dist: Distribution) -> Iterator[tuple[str, Law, Any]]:
    """Yield every law that a distribution must hold to: its title, itself and its subject.

    Only the laws of kinds that the distribution brings are imported: they may need torch, which such a package has.
    """
    kinds = sorted({entry.group.removeprefix("gym.") for entry in dist.entry_points})
    for module in [*EVERYWHERE, *(kind for kind in kinds if find_spec(f"gym_testkit.laws.{kind}"))]:
        book: Laws = import_module(f"gym_testkit.laws.{module}").laws
        for law in book.laws:
            for label, subject in book.subjects(dist):
                if law.applies(subject):
                    yield f"{book.noun} law: {law.text} [{label}]", law, subject
