"""What the code of an algorithm returns is no more trusted than its recipe: what is wrong is named, and everything is closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gym_torch_bench import Counting, Memory, NextToken, make_run, train

from gym_core import GymError
from gym_optim.kinds import Optimizer, Scheduler
from gym_torch.contribution import Parts, prepared_data
from gym_torch.observer import Observer
from gym_torch.source import Dataset, Step

EVENTS: list[str] = []


class Few(Dataset):
    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        for step in super().steps(start, rank, world):
            yield step
            return


class Watching(Observer):
    def closed(self) -> None:
        EVENTS.append("closed")


class Server:
    def __enter__(self) -> None:
        EVENTS.append("open")

    def __exit__(self, *error: object) -> None:
        EVENTS.append("left")


def broken(job: Any) -> None:
    raise RuntimeError("nothing answers")


def contribute(parts: Parts[Any, Any, Any]) -> Any:
    how, usual = parts.config.how, prepared_data(parts)
    data = parts.data.train, parts.train, parts.data.fingerprint, parts.layout
    made: dict[str, Any] = {
        "nothing": None,
        "no source": replace(usual, source=None),
        "an observer": replace(usual, observers=[print]),
        "a resource": replace(usual, resources=[3]),
        "few steps": replace(usual, source=Few(*data)),
        "another name": replace(usual, evaluation=lambda job: {"accuracy": 1.0}),
        "a text": replace(usual, evaluation=lambda job: {"loss": "good"}),
        "broken": replace(usual, observers=[Watching()], resources=[Server()], after_resume=broken),
    }
    return made.get(how, usual)


class Loss(NextToken):
    def weight(self, batch: Any) -> float:
        return None if self.config.how == "no weight" else super().weight(batch)  # type: ignore[return-value]

    def loss(self, policy: Any, batch: Any) -> Any:
        total, metrics = super().loss(policy, batch)
        made = {
            "bare": (total, {"size": 3.0}),
            "alone": total,
            "detached": (total.detach(), {}),
            "rows": (total[None], {}),
        }
        return made.get(self.config.how, (total, metrics))


class Sloppy(Counting):
    """Does one thing wrong."""

    objective: ClassVar[str] = f"{__name__}:Loss"
    contribution: ClassVar[str] = f"{__name__}:contribute"
    how: str = ""


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("nothing", "test_promised:contribute returned a NoneType, which is no Contribution"),
        ("no source", "as its source, returned a NoneType"),
        ("an observer", "among its observers, returned"),
        ("a resource", "among its resources, returned a int"),
        ("few steps", r"Few.steps, for step 2 of 3, returned a NoneType, which is no Step"),
        ("another name", "the evaluation of this algorithm returned {'accuracy': 1.0}"),
        ("a text", "the evaluation of this algorithm returned {'loss': 'good'}"),
        ("bare", "Loss.loss returned the metric `size` as a bare number"),
        ("alone", "Loss.loss returned no pair"),
        ("rows", "Loss.loss returned no pair"),
        ("detached", "Loss.loss returned a loss without a gradient"),
        ("no weight", "Loss.weight returned a NoneType"),
    ],
)
def test_what_an_algorithm_gets_wrong_is_named(how: str, why: str, model_path: Path, tmp_path: Path) -> None:
    made = make_run(
        model_path, tmp_path, Memory(rows=8, held_out=2), algorithm=Sloppy(how=how), max_steps=3, eval_every=1
    )
    with pytest.raises(GymError, match=why) as caught:
        train(made)
    (problem,) = caught.value.problems
    assert problem.key == "algorithm" and problem.fix and len(str(problem).splitlines()) <= 4


def test_what_was_opened_is_closed_where_a_run_ends_before_its_first_step(model_path: Path, tmp_path: Path) -> None:
    EVENTS.clear()
    with pytest.raises(RuntimeError, match="nothing answers"):
        train(make_run(model_path, tmp_path, algorithm=Sloppy(how="broken"), max_steps=3))
    assert EVENTS == ["open", "closed", "left"]


class Vague(Optimizer):
    """Does not know."""

    how: str = ""

    def build(self, *, parameters: Any, learning_rate: float) -> Any:
        if self.how == "nothing":
            return None
        return torch.optim.SGD([weight for group in parameters for _, weight in group["params"]], lr=learning_rate)

    def updates_in_backward(self) -> bool:
        return None  # type: ignore[return-value]


class Lost(Scheduler):
    """Has no schedule."""

    how: str = ""

    def build(self, **context: Any) -> Any:
        return None if self.how == "nothing" else lambda step: "half"


@pytest.mark.parametrize(
    ("section", "component", "why"),
    [
        ("optimizer", Vague(), "Vague.updates_in_backward returned None, which is no bool"),
        ("optimizer", Vague(how="nothing"), "Vague.build returned a NoneType, which is no Optimizer"),
        ("scheduler", Lost(how="nothing"), "Lost.build returned a NoneType"),
        ("scheduler", Lost(), "Lost returned a str"),
    ],
)
def test_what_a_component_gets_wrong_is_named(
    section: str, component: Any, why: str, model_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(GymError, match=why) as caught:
        train(make_run(model_path, tmp_path, sections={section: component}, max_steps=1))
    assert caught.value.problems[0].key == section
