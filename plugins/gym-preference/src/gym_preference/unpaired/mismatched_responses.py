"""The mismatched pairs of KTO: prompts, each with the response to another one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gym_core import DataError
from gym_data.examples import UnpairedExample
from gym_torch.batch import Example
from gym_torch.sample_order import order
from gym_torch.source import Examples

EPOCH = -1  #: whose order says which response is put to which prompt; no run comes past it


def _start(example: Example) -> int:
    """Return the tokens before the first one that is trained."""
    return int(np.argmax(example.trained))


class MismatchedResponses:
    """Prompts, each with the response to another one, for a mismatched KL: drawn once for a run, each response once.

    None is longer than the longest sample, for the model may have no more positions: the ends of responses are cut off.
    """

    def __init__(self, examples: Examples[UnpairedExample], seed: int) -> None:
        """Draw them. Raises DataError for a single sample, whose prompt would meet its own response."""
        if len(examples) < 2:
            raise DataError(
                "responses are compared with responses to other prompts, and there is one sample alone",
                key="data",
                fix="add samples",
            )
        self.examples = examples
        drawn = order(seed, EPOCH, len(examples))
        self.partners = np.empty_like(drawn)
        self.partners[drawn] = np.roll(drawn, 1)
        starts = np.array([_start(examples[number]) for number in range(len(examples))])
        lengths = np.asarray(examples.lengths)
        self.longest = int(lengths.max())
        self._lengths = np.minimum(starts + (lengths - starts)[self.partners], self.longest)

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each."""
        return self._lengths

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.partners)

    def __getitem__(self, index: int, /) -> UnpairedExample:
        """Return one prompt with its response."""
        asked, said = self.examples[index], self.examples[int(self.partners[index])]
        read, start = _start(asked), _start(said)
        learnt = slice(start, start + self.longest - read)
        tokens = np.concatenate([asked.tokens[:read], said.tokens[learnt]])
        trained = np.concatenate([np.zeros(read, dtype=np.bool_), said.trained[learnt]])
        name = f"{asked.id} with the response of {said.id}"
        return UnpairedExample(name, tokens, trained, said.desirable, media=asked.media, reader=asked.reader)
