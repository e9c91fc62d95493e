"""A prompt in a batch that is decoded, what was generated for it, and the choice of its next token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from torch import Tensor

from gym_torch.generation.sampling import GREEDY, Adjust, SamplingOptions, Scores, choose_rows, scores_of
from gym_torch.generation.stop_strings import StopStrings

Inputs = Callable[[], Mapping[str, npt.NDArray[Any]]]
"""Returns what a model is given beside the tokens of a prompt, by the names of its `forward`; called when they are computed."""
Text = tuple[Hashable, Hashable, tuple[int, ...]]  #: a prompt with its key and its scope: what is computed once


@dataclass
class Completion:
    """What was generated for one prompt."""

    tokens: list[int] = field(default_factory=list)  #: the token that ended it included
    log_probs: list[float] = field(default_factory=list)  #: of each token; see `gym_torch.generation.sampling.choose`
    finished: bool = False  #: whether a stop token or a stop string ended it, rather than the length
    stop: str | None = None  #: the stop string that ended it; None where none did
    routed: list[Tensor] = field(default_factory=list)
    """Experts of the prompt and of each token but the last, which no pass has seen: `[tokens, layers, k]` int16, to be joined."""

    @property
    def said(self) -> list[int]:
        """The tokens of its text: all but a stop token. What a stop string ended has the string in its text."""
        return self.tokens[:-1] if self.finished and self.stop is None else self.tokens


@dataclass(eq=False)
class Row:
    """A prompt to continue, and what was generated for it."""

    prompt: tuple[int, ...]  #: token ids, at least one
    limit: int  #: most tokens to generate, at least one
    stop: Collection[int] = ()  #: tokens that end it
    sampling: SamplingOptions = GREEDY
    stream: int = 0  #: number of its random numbers
    key: Hashable = None  #: what an answer depends on beside its prompt, such as whose it is
    scope: Hashable = None  #: who may use what a prefix cache keeps of it; None keeps nothing
    adjust: Adjust | None = None  #: changes its logits before a token is chosen
    alternatives: int | None = None  #: how many likeliest tokens are noted beside each chosen one; None notes nothing
    stop_strings: StopStrings | None = None  #: texts that end it
    inputs: Inputs | None = None
    """Of a prompt with more than tokens, which `gym_torch.generation.separate_rows` alone computes; equal where they give the
    same."""
    completion: Completion = field(default_factory=Completion)
    scores: list[Scores] = field(default_factory=list)  #: of each token, where `alternatives` says so
    reused: int = 0  #: tokens of the prompt that a prefix cache had

    @property
    def text(self) -> Text:
        """The prompt with its key and its scope: rows with the same text are prefilled once."""
        return self.key, self.scope, self.prompt

    def took(self, token: int, log_prob: float) -> bool:
        """Append a token; return whether the row continues."""
        made = self.completion
        made.tokens.append(token)
        made.log_probs.append(log_prob)
        made.finished = token in self.stop
        if self.stop_strings and not made.finished:
            made.stop = self.stop_strings.ended_by(made.tokens)
            made.finished = made.stop is not None
        return not made.finished and len(made.tokens) < self.limit


def extend(rows: Sequence[Row], logits: Tensor) -> list[bool]:
    """Choose a token for each row from logits `[rows, vocabulary]`; return which rows continue."""
    chosen, log_probs = choose_rows(
        logits,
        [row.sampling for row in rows],
        [(row.stream, len(row.completion.tokens)) for row in rows],
        {at: row.adjust for at, row in enumerate(rows) if row.adjust},
    )
    tokens = chosen.tolist()
    for at, row in enumerate(rows):
        if row.alternatives is not None:
            row.scores.append(scores_of(logits[at], tokens[at], row.alternatives))
    return [row.took(*each) for row, *each in zip(rows, tokens, log_probs.tolist(), strict=True)]
