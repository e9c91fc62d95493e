"""What an environment may give, and what becomes of one that fails, hangs or says what is no message."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar

import numpy as np
import pytest
from gym_turns_bench import END, TOKENIZER, questions

from gym_core import GymError, load_recipe
from gym_rl import Action, Environment, StepResult
from gym_rl.environment import Call
from gym_rl.environments.config import PythonEnvironment, ToolsEnvironment
from gym_rl.environments.python_class import PythonEpisodes
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.multi_turn import MultiTurn
from gym_testkit.bench import Bench
from gym_torch.generation.row import Completion


def user(content: Any, **more: Any) -> StepResult:
    return StepResult([{"role": "user", "content": content, **more}])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda action: 1 / 0, r"failed at test_environment_contract\.py:\d+: ZeroDivisionError"),
        (lambda action: sys.exit(2), "SystemExit: 2"),
        (lambda action: 3, "returned a int"),
        (lambda action: StepResult(reward=float("nan")), "a reward of nan"),
        (lambda action: StepResult(reward=None), "a reward of 'None'"),  # type: ignore[arg-type]
        (lambda action: StepResult([{"role": "user"}]), "the content of message 1 .user. is missing"),
        (lambda action: StepResult("Higher."), "a str in place of a list"),  # type: ignore[arg-type]
        (lambda action: StepResult({"role": "user", "content": "a"}), "a dict in place of a list"),  # type: ignore[arg-type]
        (lambda action: StepResult(None), "a NoneType in place of a list"),  # type: ignore[arg-type]
        (lambda action: StepResult(reward=10**400), "a reward of '1000"),
        (lambda action: StepResult(reward=-1e308), r"a reward of -1e\+308"),
        (lambda action: StepResult(["Higher."]), "message 1 is not an object"),  # type: ignore[list-item]
        (lambda action: user(np.int64(3)), "is not text but int64"),
        (lambda action: user([{"type": "image", "image": "a.png"}]), "holds more than text"),
        (lambda action: user("a", name=b"me"), "is no plain data"),
        (lambda action: StepResult((), 0.0, {"moves": math.nan}), "a metric `moves` of nan"),
        (lambda action: StepResult((), 0.0, {"moves": "many"}), "a metric `moves` of 'many'"),  # type: ignore[dict-item]
        (lambda action: StepResult((), 0.0, [1.0]), "a list in place of metrics"),  # type: ignore[arg-type]
        (lambda action: StepResult([{"role": "martian", "content": "a"}]), "No such role: martian"),
        (lambda action: (_ for _ in ()).throw(GymError("the shop is closed")), "the shop is closed"),
    ],
)
def test_what_fails_is_named_with_its_row(said: Any, why: str) -> None:
    class Broken:
        step = staticmethod(said)

    play = MultiTurn(Environment(), lambda row, messages: Broken(), TOKENIZER)
    with pytest.raises(GymError, match=why) as caught:
        play(questions(1), RolloutRequest([[5]], 30), one_turn)
    assert caught.value.problems[0].where == "row row 0" and len(str(caught.value).splitlines()) <= 4


def test_an_episode_that_is_none_is_named_with_its_row() -> None:
    play = MultiTurn(Environment(), lambda row, messages: None, TOKENIZER)  # type: ignore[arg-type, return-value]
    with pytest.raises(GymError, match="has no attribute 'step'") as caught:
        play(questions(1), RolloutRequest([[5]], 30), one_turn)
    assert caught.value.problems[0].where == "row row 0"


def one_turn(request: RolloutRequest, names: Sequence[str]) -> list[Completion]:
    return [Completion([7, END], [0.0, 0.0], True) for _ in names]


def test_an_environment_that_hangs_ends_the_run_with_its_row() -> None:
    class Slow:
        def __init__(self, row: Mapping[str, Any], messages: object) -> None:
            self.wait = threading.Event().wait if row["times"] == 1 else lambda: None

        def step(self, action: Action) -> StepResult:
            self.wait()
            return StepResult()

    play = MultiTurn(Environment(step_timeout=0.2), Slow, TOKENIZER)
    with pytest.raises(GymError, match="not done after 0") as caught:
        play(questions(2), RolloutRequest([[5], [6]], 30), one_turn)
    assert caught.value.problems[0].where == "row row 1" and not caught.value.problems[0].key.endswith("step_timeout")


def test_a_run_whose_environment_was_too_slow_goes_on_with_more_time(bench: Bench) -> None:
    """A time limit changes no number of a step that was finished."""

    def known(**options: Any) -> str:
        environment = {"name": "python", "environment": "gym_rl.environments.guess_number:GuessNumber", **options}
        algorithm = {"name": "rloo", "environment": environment, "rewards": ["environment"]}
        return load_recipe(bench.recipe(algorithm, "prompt")).fingerprint()

    assert known() == known(step_timeout=1.0) != known(max_turns=2)


def test_what_an_environment_says_is_kept_as_it_was_said() -> None:
    """Its lists are its own; and what a model wrote, which may be no text to its tokenizer, can be said back to it."""

    class Own:
        said: ClassVar[list[dict[str, Any]]] = []

        def step(self, action: Action) -> StepResult:
            self.said.append(
                {"role": "user", "content": [{"type": "text", "text": "\ufdd0<|im_end|>\ud800"}], "name": ("a",)}
            )
            return StepResult(self.said[-1:] if len(self.said) < 2 else (), np.float32(0.5))  # type: ignore[arg-type]

    play = MultiTurn(Environment(), lambda row, messages: Own(), TOKENIZER)
    (found,) = play(questions(1), RolloutRequest([[5]], 60), one_turn)
    Own.said[0]["content"] = "other"
    assert found.turns[1] == {"role": "user", "content": "\ufffd<|im_end|>\ufffd", "name": ["a"]}
    # of two answers and one message: what it says of ends is text
    assert found.tokens.count(END) == 3 and found.reward == 1.0


def test_the_same_rewards_in_another_order_are_the_same_reward() -> None:
    """Or a group that can teach nothing would be told apart, and trained on."""

    class Pays:
        def __init__(self, row: Mapping[str, Any], messages: object) -> None:
            self.left = [0.1, 0.2, 0.3] if row["times"] else [0.3, 0.2, 0.1]

        def step(self, action: Action) -> StepResult:
            return StepResult([{"role": "user", "content": "More."}] * (len(self.left) > 1), self.left.pop())

    one, other = MultiTurn(Environment(), Pays, TOKENIZER)(questions(2), RolloutRequest([[5], [6]], 90), one_turn)
    assert one.reward == other.reward == 0.6


@pytest.mark.parametrize("name", ["Echo", "Later"])
def test_a_class_of_the_user_may_return_text_or_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.py").write_text(
        "class Echo:\n"
        "    def __init__(self, row, messages, often=1):\n"
        "        self.left = often\n"
        "    def step(self, action):\n"
        "        self.left -= 1\n"
        "        return action.text and action.text + '?' if self.left >= 0 else None\n"
        "class Later(Echo):\n"
        "    async def step(self, action):\n"
        "        return Echo.step(self, action)\n"
    )
    episode = PythonEnvironment(environment=f"{tmp_path / 'mine.py'}:{name}", options={"often": 2}).build()({}, [])
    said = [episode.step(Action(text)).messages for text in ("a", "", "c")]
    assert said == [[{"role": "user", "content": "a?"}], [{"role": "user", "content": ""}], []], "no text is a text"


class Held:
    """Counts how often each episode is closed."""

    made: ClassVar[dict[int, Held]] = {}

    def __init__(self, row: Mapping[str, Any], messages: object, turns: int = 1, fails: str = "") -> None:
        self.closed, self.left, self.fails, self.row = 0, turns, fails, row["times"]
        if fails == "begin" and self.row:
            raise ValueError("no container")
        self.made[self.row] = self

    def step(self, action: Action) -> str | None:
        assert not self.closed
        if self.fails == "interrupt" and self.row:
            raise KeyboardInterrupt
        if self.fails == "step" and self.row:
            raise ValueError("the page is gone")
        self.left -= 1
        return "More." if self.left else None

    async def close(self) -> None:
        self.closed += 1
        if self.fails in ("close", "step"):
            raise ValueError("it does not stop")
        if self.fails == "hang" and not self.row:
            await asyncio.sleep(5)


@pytest.mark.parametrize(
    ("fails", "why"),
    [("", ""), ("begin", "no container"), ("step", "the page is gone"), ("close", "it does not stop"),
     ("hang", "not closed after 0.3 seconds"), ("interrupt", "")],
)  # fmt: skip
@pytest.mark.parametrize("turns", [1, 2, 9])
def test_an_episode_is_closed_once_however_it_ends(
    monkeypatch: pytest.MonkeyPatch, turns: int, fails: str, why: str
) -> None:
    monkeypatch.setattr(Held, "made", {})
    environment = PythonEnvironment(environment="builtins:dict", max_turns=3, step_timeout=0.3)
    episodes = PythonEpisodes(environment)
    episodes.made_by = partial(Held, turns=turns, fails=fails)
    play = MultiTurn(environment, episodes, TOKENIZER)
    with pytest.raises((GymError, KeyboardInterrupt), match=why or None) if fails else nullcontext():
        play(questions(3), RolloutRequest([[5], [6], [7]], 40), one_turn)
    settle = monotonic() + 2  # an episode may have been begun beside one that could not, and is closed as it is there
    while not all(each.closed for each in Held.made.values()) and monotonic() < settle:
        sleep(0.01)
    assert Held.made and {each.closed for each in Held.made.values()} == {1}


def test_an_episode_is_closed_when_it_is_over_and_not_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Held, "made", {})
    open_then: list[int] = []

    def generate(request: RolloutRequest, names: Sequence[str]) -> list[Completion]:
        open_then.append(sum(not each.closed for each in Held.made.values()))
        return one_turn(request, names)

    made = {0: 1, 1: 2, 2: 3}
    environment = PythonEnvironment(environment="builtins:dict")
    episodes = PythonEpisodes(environment)
    episodes.made_by = lambda row, messages: Held(row, messages, turns=made[row["times"]])
    MultiTurn(environment, episodes, TOKENIZER)(questions(3), RolloutRequest([[5], [6], [7]], 90), generate)
    assert open_then == [3, 2, 1]


def test_objects_of_tools_are_closed_and_close_is_no_tool(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "closed = []\n"
        "class Held:\n"
        "    def look(self) -> str:\n"
        "        '''Look.'''\n"
        "        return 'here'\n"
        "    def close(self):\n"
        "        closed.append(type(self).__name__)\n"
        "        raise ValueError('stuck')\n"
        "class Other:\n"
        "    close = 3.5\n"
        "    def reset(self, answer):\n"
        "        assert answer\n"
        "    def price(self) -> str:\n"
        "        '''Return a price.'''\n"
        "        return str(self.close)\n"
    )
    tools = ToolsEnvironment(functions=[f"{tmp_path / 'mine.py'}:{name}" for name in ("Held", "Other")])
    assert [each["function"]["name"] for each in tools.tools()] == ["look", "price"]
    episodes = tools.build()
    closed = episodes.tools.classes[0].close.__globals__["closed"]
    episode = episodes({"answer": 1}, [])
    assert episode.step(Action("", "", [Call("price", "{}")])).messages[0]["content"] == "3.5"
    with pytest.raises(ValueError, match="stuck"):
        episode.close()
    assert closed == ["Held"]
    with pytest.raises(AssertionError):
        episodes({"answer": 0}, [])
    assert closed == ["Held", "Held"], "an object that was there when another could not begin"
