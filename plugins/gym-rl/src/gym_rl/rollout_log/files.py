"""Completions on the disk, to be read by people: a file of JSON lines for each round that is kept, and for each evaluation.

A file is written whole before the steps that learn from it. A run that was killed writes the files of the rounds it makes
again once more, the same: none is lost, and none is there twice. Nothing here knows tensors or an algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_core.files import write_atomically

FOLDER = "rollouts"
TRAINING, HELD_OUT = "step", "eval"  #: how the names of files begin; the number of a step follows


@dataclass(frozen=True)
class Sample:
    """One completion, as it is kept."""

    steps: tuple[int, int]
    """First and last step that learns from it, counted from 1; of a held-out one, the step before it."""
    id: str  #: row of the prompt
    prompt: str  #: as the model is given it
    answer: str  #: without the token that ended it
    tokens: int  #: of the completion
    finished: bool  #: whether the model ended it
    reward: float | None  #: None where it was not scored
    rewards: Mapping[str, float | None]  #: by name, before their weights
    advantage: float | None  #: mean over its tokens; None of a held-out one


class RolloutLog:
    """The folder of one run."""

    def __init__(self, output: Path) -> None:
        """Take the output directory of the run."""
        self.folder = output / FOLDER

    def write(self, kind: str, samples: Sequence[Sample]) -> None:
        """Write the samples of a round, all of the same steps, in one piece."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples]
        write_atomically(self._file(kind, samples[0].steps[0]), "".join(lines))

    def steps(self, kind: str) -> list[int]:
        """Return the steps with which the kept rounds begin, in order."""
        return sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob(f"{kind}-*.jsonl"))

    def read(self, kind: str, step: int | None = None) -> list[Sample]:
        """Return the samples of a step, or the newest. Raises GymError where they are not kept."""
        known = self.steps(kind)
        begun = [first for first in known if step is None or first <= step]
        samples = self._samples(self._file(kind, begun[-1])) if begun else []
        if samples and (step is None or step <= samples[0].steps[1]):
            return samples
        if not known:
            raise GymError("no samples are kept", where=str(self.folder), fix="`log_completions: 1` keeps every round")
        shown = ", ".join(map(str, known[:8])) + (f", ... {known[-1]}" if len(known) > 8 else "")
        raise GymError(f"no samples of step {step} are kept", where=str(self.folder), fix=f"there are steps {shown}")

    def _file(self, kind: str, step: int) -> Path:
        return self.folder / f"{kind}-{step:08d}.jsonl"

    def _samples(self, path: Path) -> list[Sample]:
        with path.open(encoding="utf-8") as lines:  # `splitlines` also splits at characters that completions may hold
            rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [Sample(**row | {"steps": tuple(row["steps"])}) for row in rows]
