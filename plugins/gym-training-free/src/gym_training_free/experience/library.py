"""The library: short texts with ids that never change, where each comes from, and what it is worth."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import yaml

from gym_core.errors import GymError
from gym_core.files import expanded
from gym_training_free.experience.leak_guard import markup

FILE = "experiences.json"
FORMAT = 1
_IDENTITY = re.compile(r"E[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Experience:
    """One lesson."""

    id: str  #: `E1`, `E2`, ...: given once, never again
    text: str
    tags: tuple[str, ...] = ()
    created: int = 0  #: step that added it, from 1; 0 where the run began with it
    updated: int = 0  #: step that changed it last
    sources: tuple[str, ...] = ()  #: ids of the questions that taught it
    uses: int = 0  #: rollouts that were shown it
    uplift: float | None = None
    """Mean gain of held-out reward of the steps that changed it, shared among what each changed."""

    @property
    def origin(self) -> str:
        """When it was added, for people."""
        return f"round {self.created}" if self.created else "from the beginning"


@dataclass(frozen=True)
class ExperienceLibrary:
    """Experiences in the order of their ids. It never changes; what changes it returns another one."""

    experiences: tuple[Experience, ...] = ()
    next_id: int = 1
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)
    evidence: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __iter__(self) -> Iterator[Experience]:
        """Yield the experiences."""
        return iter(self.experiences)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.experiences)

    def __contains__(self, identity: object) -> bool:
        """Whether there is an experience of this id."""
        return any(one.id == identity for one in self.experiences)

    def __getitem__(self, identity: str) -> Experience:
        """Return an experience by its id; raises KeyError."""
        for one in self.experiences:
            if one.id == identity:
                return one
        raise KeyError(identity)

    def lines(self, chosen: Sequence[str] | None = None) -> str:
        """Return the experiences, or those of these ids, a line each: `[E1] text`."""
        return "\n".join(f"[{one.id}] {one.text}" for one in self if chosen is None or one.id in chosen)

    def with_uses(self, uses: Mapping[str, int]) -> Self:
        """Return it with so many more uses of each."""
        return replace(
            self, experiences=tuple(replace(one, uses=one.uses + uses.get(one.id, 0)) for one in self.experiences)
        )

    def with_uplift(self, gains: Mapping[str, float]) -> Self:
        """Return it with a further measured gain of each of these experiences."""
        return replace(
            self,
            experiences=tuple(
                replace(one, uplift=(one.uplift or 0.0) + gains[one.id]) if one.id in gains else one for one in self
            ),
        )

    def fingerprint(self) -> str:
        """Return a hash of ids and texts: what a model is shown."""
        told = [[one.id, one.text] for one in self]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint(),
            "next_id": self.next_id,
            "experiences": [asdict(one) | {"tags": list(one.tags), "sources": list(one.sources)} for one in self],
            "provenance": dict(self.provenance),
            "evidence": dict(self.evidence),
        }

    def to_yaml(self) -> str:
        """Return all of it as YAML."""
        return str(yaml.safe_dump(self.to_json(), sort_keys=False, allow_unicode=True, width=110))

    @classmethod
    def from_json(cls, found: Mapping[str, Any], where: str = "") -> Self:
        """Return what `to_json` gave. Raises GymError where it is something else, or was changed since."""
        try:
            listed = tuple(
                Experience(**{**one, "tags": tuple(one["tags"]), "sources": tuple(one["sources"])})
                for one in found["experiences"]
            )
            made = cls(listed, int(found["next_id"]), found.get("provenance", {}), found.get("evidence", {}))
            if not (all(map(_sound, listed)) and _given_once(made) and _told(made)):
                raise ValueError
            said = found["fingerprint"]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise GymError("is no library of experiences", where=where, fix="name one that `train` wrote") from None
        if said != made.fingerprint():
            fix = "learn again, or put the text back; evidence belongs to the text that was measured"
            raise GymError("its texts are not those that its fingerprint names", where=where, fix=fix)
        return made

    @classmethod
    def beginning(cls, path: str | None) -> Self:
        """Return the library that a run begins with: an empty one, or that of a file as `read` finds it.

        Its experiences are of no round of the run, and what was measured of it elsewhere stays there.
        """
        if path is None:
            return cls()
        found = cls.read(expanded(path))
        own = tuple(replace(one, created=0, updated=0, uses=0, uplift=None) for one in found)
        return cls(own, found.next_id)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a library: its file, its directory, or the output of a run. Raises GymError where there is none."""
        places = [path, path / FILE, path / "experience" / FILE]
        place = next((each for each in places if each.is_file()), None)
        if place is None:
            raise GymError("holds no library of experiences", where=str(path), fix=f"name a run, or its {FILE}")
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        return cls.from_json(found, str(place))


def _sound(one: Experience) -> bool:
    """Whether a file may hold this as an experience: an id, plain lines, and numbers."""
    texts = (one.id, *one.tags, *one.sources)
    plain = all(isinstance(text, str) and text.isprintable() for text in texts)
    plain = plain and isinstance(one.text, str) and not markup(one.text)
    whole = all(isinstance(number, int) for number in (one.created, one.updated, one.uses))
    known = one.uplift is None or isinstance(one.uplift, int | float)
    return plain and whole and known and _IDENTITY.fullmatch(one.id) is not None


def _given_once(library: ExperienceLibrary) -> bool:
    """Whether each id stands once, and none will be given again."""
    numbers = [int(one.id[1:]) for one in library]
    return len(set(numbers)) == len(numbers) and max(numbers, default=0) < library.next_id


def _told(library: ExperienceLibrary) -> bool:
    """Whether provenance and evidence have the form of what `train` writes, as far as it is shown."""
    if not (isinstance(library.provenance, Mapping) and isinstance(library.evidence, Mapping)):
        return False
    held = library.evidence.get("held_out")
    return held is None or all(isinstance(held[name], int | float) for name in ("old", "new"))
