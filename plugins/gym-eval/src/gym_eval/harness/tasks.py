"""Finds and loads tasks of lm-eval, and says in Gym's way what is wrong with them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.tasks import TaskManager

from gym_core import DataError, GymError, RecipeError
from gym_core.discovery import nearest
from gym_core.files import expanded
from gym_eval.harness.config import LmEval

SHOWN = 5  #: names that an error lists
FETCH = "Data come from the Hub: fetch them once with a network; HF_HOME says where they are kept"
CUT = 160  #: characters of somebody else's message


class Tasks(TaskManager):  # type: ignore[misc]  # lm-eval has no types
    """The tasks that options name, loaded once."""

    def __init__(self, config: LmEval) -> None:
        """Load them, with their data. Raises RecipeError for a name that nothing has, and DataError for data that are missing."""
        folders = [expanded(str(folder)) for folder in config.include_path]
        for folder in folders:
            if not folder.is_dir():
                raise RecipeError("there is no such folder", where=str(folder), key="include_path")
        self._own = _tasks_in(folders)
        super().__init__(include_path=folders or None, include_defaults=not {*config.tasks} <= self._own)
        self.names = [name for given in config.tasks for name in self._named(given)]
        self.loaded: Any = None
        first, other = seeds(config)
        random.seed(first)
        np.random.seed(other)
        with told_as_ours(self.names):
            self.loaded = super().load(self.names)
        self._drawn = random.getstate(), np.random.get_state()
        if not self.loaded["tasks"]:
            raise RecipeError("names no task", key="tasks")
        if not config.confirm_run_unsafe_code:
            self._refuse_unsafe()
        seen = [name for name, task in self.loaded["tasks"].items() if getattr(task, "MULTIMODAL", False)]
        if seen:
            why = f"asks about images or sounds, which this evaluator cannot show: {', '.join(seen[:SHOWN])}"
            raise RecipeError(why, key="tasks", fix="leave it out")

    def load(self, task_list: Any) -> Any:
        """Return what was loaded, which lm-eval asks for when it has set its seeds.

        Tasks may draw random numbers for their questions both when they are loaded and when they are asked; the latter go on
        after the former, as in lm-eval, for every model alike.
        """
        drawn, drawn_by_numpy = self._drawn
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        return self.loaded

    def _named(self, given: str) -> Sequence[str]:
        """Return the names or the file that a word means."""
        if "*" in given or "?" in given:
            found = self.match_tasks([given])
            if not found:
                raise RecipeError(f"no task is named like `{given}`", key="tasks", fix="`lm-eval ls tasks` lists them")
            return list(found)
        if given in self.all_tasks or Path(given).is_file():
            return [given]
        near = nearest(given, self._own) or nearest(given, [name for name in self.all_tasks if name[:2] == given[:2]])
        fix = f"did you mean `{near}`?" if near else "`lm-eval ls tasks` lists them; name your own with `include_path`"
        raise RecipeError(f"there is no task `{given}`", key="tasks", fix=fix)

    def _refuse_unsafe(self) -> None:
        unsafe = [name for name, task in self.loaded["tasks"].items() if getattr(task, "UNSAFE_CODE", False)]
        if unsafe:
            named = ", ".join(unsafe[:SHOWN]) + ", ..." * (len(unsafe) > SHOWN)
            raise RecipeError(
                f"runs programs that the model writes, unprotected: {named}",
                key="tasks",
                fix="where they can harm nothing, say `confirm_run_unsafe_code=true` (and set HF_ALLOW_CODE_EVAL=1)",
            )


def seeds(config: LmEval) -> tuple[int, int]:
    """Return the seed of Python's random numbers, and that of all others."""
    return (DEFAULT_RANDOM_SEED, DEFAULT_OTHER_SEED) if config.seed is None else (config.seed, config.seed)


def _tasks_in(folders: Sequence[Path]) -> set[str]:
    """Return the tasks that folders hold: where these are enough, the thousands that come with lm-eval need not be read."""
    return {*TaskManager(include_path=list(folders), include_defaults=False).all_subtasks} if folders else set()


@contextmanager
def told_as_ours(names: Sequence[str]) -> Iterator[None]:
    """Turn what data and tasks raise into DataError, in at most four lines."""
    try:
        yield
    except GymError:
        raise
    except Exception as error:  # whatever a task does while it is loaded
        said = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
        whole = f"{type(error).__name__}: {said}"
        raise DataError(
            f"cannot be loaded: {whole[:CUT]}{'...' * (len(whole) > CUT)}",
            where=", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN),
            key="tasks",
            fix=FETCH if isinstance(error, OSError) else f"mend the task or its data. {FETCH}",
        ) from error
