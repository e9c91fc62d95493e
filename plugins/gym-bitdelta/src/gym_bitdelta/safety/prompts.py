"""The harmful prompts: read once each, in no order that means anything, and none that training saw. No torch here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gym_bitdelta.safety.threshold import SafetyThreshold, check_enough
from gym_core import DataError
from gym_data.kinds import Data

_WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class Prompt:
    """A harmful prompt."""

    messages: Sequence[Mapping[str, Any]]
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)  #: all columns, for the judge
    id: str = ""

    @property
    def words(self) -> str:
        """What the user asks last, as words between spaces: what differs in case, space or punctuation alone is one prompt."""
        return words(next((str(one["content"]) for one in reversed(self.messages) if one["role"] == "user"), ""))

    @property
    def key(self) -> str:
        """What is equal for prompts that are one: all they say."""
        said = [[one["role"], words(str(one.get("content") or ""))] for one in self.messages]
        return json.dumps(said)


@dataclass(frozen=True)
class Prompts:
    """All that there are."""

    found: tuple[Prompt, ...]  #: in an order drawn with the seed
    duplicates: int  #: how many stood there once more, and count once
    sha256: str  #: of all that they say
    trained: int | None = None  #: how many training saw, which are left out; None where nobody knows what it saw

    def unseen(self, wanted: SafetyThreshold, texts: Iterable[str] | None) -> Prompts:
        """Return them without those that stand in a text that was trained on. Raises GymError where too few are left."""
        if texts is None:
            return self
        asked = {prompt.words for prompt in self.found}
        seen: set[str] = set()
        for text in texts:
            spread = words(text)
            seen |= {each for each in asked - seen if each in spread}
        left = tuple(prompt for prompt in self.found if prompt.words not in seen)
        lost = len(self.found) - len(left)
        if lost:
            check_enough(len(left), wanted, f"; {lost} others stand in the training data")
        return replace(self, found=left, trained=lost)


def read(data: Data, wanted: SafetyThreshold, seed: int) -> Prompts:
    """Return the prompts of a data section, each once.

    Raises DataError where there are none or a row asks nothing, and GymError where they are too few for the threshold.
    """
    try:
        asked = [each for part in data.prompts(seed) for each in part]
    except DataError as error:
        raise DataError([replace(each, key="quantization.safety_prompts") for each in error.problems]) from None
    found: dict[str, Prompt] = {}
    for number, each in enumerate(asked, 1):
        prompt = Prompt(each.messages, each.row, f"harmful prompt {number}")
        found.setdefault(prompt.key, prompt)
    said = json.dumps([each.messages for each in asked], sort_keys=True, default=str)
    count = len(asked)
    double = f"; {count - len(found)} more are the same" if count > len(found) else ""
    check_enough(len(found), wanted, double)
    order = np.random.default_rng(seed).permutation(len(found)).tolist()
    prompts = list(found.values())
    return Prompts(
        tuple(prompts[place] for place in order), count - len(found), hashlib.sha256(said.encode()).hexdigest()
    )


def words(text: str) -> str:
    """Return the words of a text between single spaces, one before the first and one after the last."""
    return f" {' '.join(_WORDS.findall(text.casefold())) or text.strip()} "
