"""Finds and loads tasks of lm-eval, and says in Gym's way what is wrong with them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.group import Group
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
        self.failed: dict[str, str] = {}
        """By name of a task, what it raised at the first answer of a model that it could not score."""
        if not self.loaded["tasks"]:
            raise RecipeError("names no task", key="tasks")
        if not config.confirm_run_unsafe_code:
            self._refuse_unsafe()
        seen = [name for name, task in self.loaded["tasks"].items() if getattr(task, "MULTIMODAL", False)]
        if seen:
            why = f"asks about images or sounds, which this evaluator cannot show: {', '.join(seen[:SHOWN])}"
            raise RecipeError(why, key="tasks", fix="leave it out")
        for name, task in self.loaded["tasks"].items():
            task.process_results = partial(self._scored, name, task.process_results)

    def _scored(self, name: str, score: Callable[..., Mapping[str, Any]], *given: Any) -> Mapping[str, Any]:
        """Return what an answer is worth; nothing where the task fails, so that what all were asked for is not lost."""
        try:
            return score(*given)
        except Exception as error:  # whatever a task does with an answer
            self.failed.setdefault(name, _told(error))
            return {}

    @staticmethod
    def _check_duplicates(built: Sequence[Any]) -> None:
        """Raise ValueError where two groups mean different things by one name; a task that both have is asked once."""
        with suppress(ValueError):  # naming a task draws a random number, so nothing else is asked where it finds none
            TaskManager._check_duplicates(built)
            return
        seen: dict[str, Any] = {}
        for item in built:
            for task in item.get_all_tasks() if isinstance(item, Group) else [item]:
                first = seen.setdefault(task.task_name, task)
                if first is not task and first.dump_config() != task.dump_config():
                    raise ValueError(f"two of these have a task `{task.task_name}` of their own: ask for one at a time")

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


def _told(error: Exception) -> str:
    said = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    whole = f"{type(error).__name__}: {said}"
    return whole[:CUT] + "..." * (len(whole) > CUT)


@contextmanager
def told_as_ours(names: Sequence[str]) -> Iterator[None]:
    """Turn what data and tasks raise into DataError, in at most four lines."""
    try:
        yield
    except GymError:
        raise
    except Exception as error:  # whatever a task does while it is loaded
        raise DataError(
            f"cannot be loaded: {_told(error)}",
            where=", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN),
            key="tasks",
            fix=FETCH if isinstance(error, OSError) else f"mend the task or its data. {FETCH}",
        ) from error
