"""Kernels of whoever it is work where a trial finds them exact and fast, and a run goes on as it began."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import ClassVar

import pytest
import torch
from gym_torch_bench import make_run
from torch import Tensor
from torch.nn.functional import silu

from gym_core import PluginError
from gym_torch import KernelLibrary, kernel_libraries
from gym_torch.kernels.kernel_functions import KernelFunctions
from gym_torch.kernels.kernel_trials import TRIALS, Choices, Trial, Work, with_gradients

GIVEN = [torch.randn(8, 16, generator=torch.Generator().manual_seed(number)) for number in range(3)]


def gated(gate: Tensor, up: Tensor, tanh: bool = False) -> Tensor:
    return silu(gate) * up


def slow(gate: Tensor, up: Tensor, tanh: bool = False) -> Tensor:
    time.sleep(0.003)
    return gated(gate, up)


def slower(gate: Tensor, up: Tensor, tanh: bool = False) -> Tensor:
    time.sleep(0.01)
    return gated(gate, up)


def broken(gate: Tensor, up: Tensor, tanh: bool = False) -> Tensor:
    raise RuntimeError("no shared memory for such blocks")


#: What kernels compute wrongly, and the word with which they are refused.
WRONG: dict[str, tuple[Callable[..., Tensor], str]] = {
    "off by a thousandth": (lambda gate, up, tanh: 1.001 * gated(gate, up), "its error is 0.001"),
    "without a gradient of one": (lambda gate, up, tanh: gated(gate, up.detach()) + 0 * up, "its error is 1"),
    "of another precision": (lambda gate, up, tanh: gated(gate, up).double(), "its error is inf"),
    "of another shape": (lambda gate, up, tanh: gated(gate, up)[None], "RuntimeError"),
    "with a gradient that is not a number": (
        lambda gate, up, tanh: gated(gate, up) + (0 * up).sqrt(),
        "its error is nan",
    ),
    "broken": (broken, "no shared memory"),
}


def library(name: str, function: Callable[..., Tensor], device: str = "cpu") -> KernelFunctions:
    return KernelFunctions(name, "1", frozenset({device}), frozenset({torch.float32}), gated=function)


def work(function: Callable[..., Tensor]) -> Work:
    """Return a trial in which torch takes three thousandths of a second."""
    *given, by_out = GIVEN
    ways = (lambda *given: function(*given, False)), slow, gated
    wide = [part.double() for part in given]
    return tuple(partial(with_gradients, way, how, by_out) for way, how in zip(ways, (given, given, wide), strict=True))


def chosen(choices: Choices, name: str = "silu of 16") -> Callable[..., Tensor] | None:
    return choices.choose(lambda each: each.gated, name, GIVEN[:2], work)


@pytest.fixture(autouse=True)
def _no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))


def test_the_fastest_that_pays_is_taken_and_what_is_wrong_refused(tmp_path):
    run = make_run(tmp_path, tmp_path / "run")
    faulty = [library(name, function) for name, (function, _) in WRONG.items()]
    others = [library("slower", slower), library("fast", gated), library("elsewhere", gated, "cuda")]
    choices = Choices("made", lambda: ())
    with choices.kept(run, [*faulty, *others]):
        assert chosen(choices) is gated
    assert run.record.read()["made"] == {"silu of 16": "fast"}
    said = dict(line.split(": ", 1) for line in run.record.read()[TRIALS]["silu of 16"])
    assert said.keys() == {*WRONG, "slower", "fast"}
    for name, (_, why) in WRONG.items():
        assert said[name].startswith("refused") and why in said[name], said[name]
    assert said["slower"].startswith("refused") and "ms of torch" in said["slower"]
    assert "refused" not in said["fast"]
    assert not choices.any() and chosen(choices) is None, "what a run names is for that run alone"


def test_torch_works_where_no_kernel_pays(tmp_path):
    choices = Choices("made", lambda: [library("slower", slower)])
    with choices.kept(make_run(tmp_path, tmp_path / "run")):
        assert choices.any() and chosen(choices) is None
    assert Trial("amx", 1.0, 2.0, 0.003, 0.003).pays
    assert not Trial("amx", 1.0, 1.05, 0.003, 0.003).pays
    assert not Trial("amx", 1.0, 9.0, 0.005, 0.003).pays


@pytest.mark.parametrize("before", ["", "fast", "of another machine"])
def test_a_resumed_run_computes_as_it_began(tmp_path, before, capsys):
    """Whatever a new trial would say, for that may be another one's machine or hour."""
    make_run(tmp_path, tmp_path / "run").record.update(made={"silu of 16": before})
    choices = Choices("made", lambda: [library("fast", broken)])
    with choices.kept(make_run(tmp_path, tmp_path / "run")):
        assert chosen(choices) is (broken if before == "fast" else None)
    assert ("of another machine, which is not here" in capsys.readouterr().err) == (before == "of another machine")


def test_nothing_is_asked_of_a_kernel_where_something_transforms_what_is_computed():
    choices = Choices("made", lambda: [library("fast", gated)])
    seen: list[bool] = []

    def look(given: Tensor) -> Tensor:
        seen.append(choices.any())
        return given.sum()

    torch.func.grad(look)(GIVEN[0])
    assert choices.any() and seen == [False]


class Strangers(KernelLibrary):
    """Gates of somebody else."""

    target: ClassVar[str] = f"{__name__}:built"

    lacks: str = ""
    """What is missing."""

    def missing(self) -> str:
        return self.lacks


def built(config: Strangers) -> KernelFunctions:
    return library("theirs", gated)


def test_what_a_machine_lacks_is_said_and_what_a_library_builds_is_held_to_its_promise(capsys):
    functions = kernel_libraries.opened(Strangers())
    assert functions and functions.gated is gated and "gym_torch" not in functions.name
    assert functions.version != "1" and "Strangers" in functions.version, "trials of other code are others"
    assert kernel_libraries.opened(Strangers(lacks="a GPU")) is None
    assert "needs a GPU" in capsys.readouterr().err

    class Wrong(Strangers):
        """Builds something else."""

        target: ClassVar[str] = "builtins:repr"

    with pytest.raises(PluginError, match="KernelFunctions"):
        kernel_libraries.opened(Wrong())


def test_what_is_untried_in_one_thread_is_tried_in_others() -> None:
    choices = Choices("record", lambda: (library("own", gated),))
    choices.always = False
    begun, ended = Event(), Event()

    def wait() -> None:
        with choices.untried():
            begun.set()
            ended.wait(10)

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait)
        begun.wait(10)
        assert not choices.any()
        with choices.untried():
            ended.set()
            waiting.result()
            assert choices.any()
    assert not choices.any()
