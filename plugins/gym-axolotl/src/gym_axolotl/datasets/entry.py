"""One entry of a list of datasets, whose keys are taken one by one; what nobody takes is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.errors import Problem
from gym_core.sections import Findings

UNREAD = ("preprocess_shards",)  #: keys that change no result
FALSE = ("trust_remote_code", "split_thinking")  #: switches that may be off
REASONS = {
    "trust_remote_code": ("code of a dataset is never run", "leave it out"),
    "split_thinking": ("thoughts are not looked for in answers", "put them into `reasoning_content` of a message"),
    "shards": ("no part of a dataset is taken by its number", "cut the rows yourself, or set `split: train[:10%]`"),
    "shards_idx": ("no part of a dataset is taken by its number", "leave it out"),
    "message_field_training_detail": ("parts of an answer are not left out", "set `train: false` on whole messages"),
    "drop_system_message": ("system messages are kept", "leave it out, and take them out of the rows"),
    "input_transform": ("code of a file is not run", "write the rows as they are to be"),
    "logprobs_field": (
        "log-probabilities of a teacher are not read from rows",
        "set `algorithm: gkd` for a teacher model",
    ),
}
"""Why keys are not taken, and what to do."""


class Refused(ValueError):
    """What is wrong with a key of an entry."""

    def __init__(self, key: str, why: str, fix: str = "") -> None:
        """Hold the key, the reason and what to do."""
        super().__init__(why)
        self.key, self.why, self.fix = key, why, fix


def texts(key: str, told: Any) -> list[str]:
    """Return one text or a list of them as a list. Raises Refused for another value of the key."""
    listed = [told] if isinstance(told, str) else told
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise Refused(key, f"is a name or a list of names, not `{told}`")
    return listed


class Entry:
    """The keys of one entry, which leave it as they are taken. A key without a value counts as left out."""

    def __init__(self, raw: Mapping[str, Any], path: tuple[str, int]) -> None:
        """Take the keys of an entry; `path` is where it stands in the file."""
        self.left = {str(key): value for key, value in raw.items() if value is not None}
        self.path = path

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, and take it away."""
        return self.left.pop(key, default)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return the mapping of a key, and take it away; empty where there is none. Raises Refused for another value."""
        told = self.take(key, {})
        if not isinstance(told, Mapping):
            raise Refused(key, f"holds names and what they mean, not `{told}`", "write a mapping")
        return {str(name): value for name, value in told.items()}

    def names(self, key: str) -> list[str]:
        """Return the texts of a key, one or a list, and take it away. Raises Refused for another value."""
        return texts(key, self.take(key, []))

    def problem(self, found: Findings, error: Refused) -> None:
        """Note what is wrong."""
        name, number = self.path
        where = found.where((name, number, error.key))
        found.problems.append(Problem(error.why, where, f"{name}[{number}].{error.key}", error.fix))

    def finish(self, found: Findings) -> None:
        """Note a problem for each key that nobody took."""
        for key, value in self.left.items():
            if key in UNREAD or (key in FALSE and value is False):
                continue
            why, fix = REASONS.get(key, ("is no key of a dataset of this type", "leave it out"))
            if value is not False or key not in REASONS:
                self.problem(found, Refused(key, why, fix))
