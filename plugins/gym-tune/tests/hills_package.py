"""A stranger's package whose runs take a moment: an algorithm without torch, a sampler and a pruner of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG = '''
from typing import Annotated, ClassVar, Literal
from pydantic import Field
from gym_core import Algorithm, Exporter
from gym_data.kinds import DataAlgorithm
from gym_tune.kinds import Pruner, Sampler

class Hill(DataAlgorithm):
    """Loses the distance from a hilltop at x = 2, y = 5."""
    target: ClassVar[str] = "hills_impl:Climber"
    changeable: ClassVar[frozenset[str]] = frozenset(["pause"])
    x: Annotated[float, Field(ge=-10, le=10)] = 0.0
    """Where, west to east."""
    y: Annotated[int, Field(gt=0)] = 3
    """Where, south to north."""
    way: Literal["plain", "steep"] = "plain"
    """How steep it is."""
    tags: tuple[str, ...] = ()
    """What else there is."""
    trouble: Literal["none", "raise", "kill", "nan", "full"] = "none"
    """What goes wrong at x below 0."""
    pause: float = 0.0
    """Seconds of a step."""

class Postcard(Exporter):
    """A picture of the hill."""
    target: ClassVar[str] = "hills_impl:nothing"
    artifacts: ClassVar[tuple[str, ...]] = ("experience",)

class Mute(Algorithm):
    """Does not say what it improves."""
    target: ClassVar[str] = "hills_impl:Climber"

class Second(Sampler):
    """Always draws the largest value."""
    target: ClassVar[str] = "hills_impl:largest"

class Impatient(Pruner):
    """Ends every trial but the first at once."""
    target: ClassVar[str] = "hills_impl:impatient"
'''
IMPLEMENTATION = """
import errno, json, math, os, signal, time
from gym_core import Artifact, Interrupted

class Climber:
    def __init__(self, config, run, model):
        self.config, self.run, self.asked = config, run, 0

    def train(self):
        config, out, train = self.config, self.run.output, self.run.recipe.train
        before = signal.signal(signal.SIGTERM, lambda number, frame: setattr(self, "asked", number))
        state = json.loads((out / "state.json").read_text()) if (out / "state.json").exists() else {"step": 0, "bytes": 0}
        metrics = out / "metrics.jsonl"
        metrics.touch()
        os.truncate(metrics, state["bytes"])
        for step in range(state["step"] + 1, train.max_steps + 1):
            time.sleep(config.pause)
            loss = (config.x - 2) ** 2 * (3 if config.way == "steep" else 1) + 0.1 * (config.y - 5) ** 2 + 10 / step
            loss += 0.001 * train.seed
            wrong = config.trouble if config.x < 0 and step > train.max_steps // 2 else "none"
            if wrong == "raise":
                raise RuntimeError("the hill is gone")
            if wrong == "full" and not os.environ.get("HILLS_HAVE_ROOM"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model")
            if wrong == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if step % (train.eval_every or train.max_steps) == 0:
                with metrics.open("a") as file:
                    file.write(json.dumps({"step": step, "eval_loss": None if wrong == "nan" else loss}) + "\\n")
            if self.asked or step % 2 == 0:
                (out / "state.new").write_text(json.dumps({"step": step, "bytes": metrics.stat().st_size}))
                (out / "state.new").replace(out / "state.json")
            if self.asked:
                raise Interrupted(self.asked)
        signal.signal(signal.SIGTERM, before)
        (out / "model").mkdir(exist_ok=True)
        return Artifact(out / "model", kind="experience")

def nothing(config):
    raise RuntimeError("trials export nothing")

def largest(config, seed, trial):
    import optuna
    class Largest(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study, trial): return {}
        def sample_relative(self, study, trial, space): return {}
        def sample_independent(self, study, trial, name, of): return of.high if hasattr(of, "high") else of.choices[-1]
    return Largest()

def impatient(config):
    import optuna
    class Pruner(optuna.pruners.BasePruner):
        def prune(self, study, trial): return trial.number > 0
    return Pruner()
"""
POINTS = {
    "gym.algorithms": {"hill": "hills:Hill", "mute": "hills:Mute"},
    "gym.exporters": {"postcard": "hills:Postcard"},
    "gym.samplers": {"second": "hills:Second"},
    "gym.pruners": {"impatient": "hills:Impatient"},
}
RECIPE: dict[str, Any] = {"algorithm": "hill", "train": {"max_steps": 8, "eval_every": 2}}
SPACE: dict[str, Any] = {"algorithm.x": {"low": 0, "high": 4}, "algorithm.y": {"low": 1, "high": 9, "step": 2}}

Write = Callable[..., Path]
Tune = Callable[..., dict[str, Any]]
