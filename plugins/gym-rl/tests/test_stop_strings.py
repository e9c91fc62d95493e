"""Stop strings: a completion ends where one first stands, and what is trained, scored and shown is what was drawn up to there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_rl_bench import algorithm, arbitrary, prompts, rounds
from gym_turns_bench import END, TOKENIZER, questions
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gym_core import GymError
from gym_data.tokenizer import Tokenizer
from gym_rewards import RewardInput
from gym_rl import Action, Environment, StepResult
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollout_log.files import HELD_OUT, TRAINING, RolloutLog
from gym_rl.rollout_log.from_experience import samples
from gym_rl.rollouts.dynamic_sampling import concatenate, select_groups
from gym_rl.rollouts.engine_output_check import check
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.multi_turn import MultiTurn
from gym_testkit import tiny
from gym_testkit.bench import Bench
from gym_torch.generation.generator import Generator
from gym_torch.generation.row import Completion
from gym_torch.generation.stop_strings import StopStrings

torch.set_num_threads(1)
TEXTS = ("</answer>", "é", "a\nb", "<|im_end|>", "\N{GRINNING FACE}")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("stop") / "model", 0)


def drawn(path: Path, **options: Any) -> tuple[Experience, list[RewardInput]]:
    """Return the first round of the model under `path`, and what its reward was given."""
    seen = list[RewardInput]()

    def judging(answers: Sequence[RewardInput]) -> list[float]:
        seen.extend(answers)
        return arbitrary(answers)

    source = rounds(path, judging, max_new_tokens=12, temperature=2.0, **options)
    next(source.steps(0))
    assert source.experience is not None
    return source.experience, seen


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40), st.sampled_from(TEXTS), st.integers(0, 40))
def test_the_token_that_makes_a_text_whole_is_found(tokens: list[int], text: str, place: int) -> None:
    """However the text is cut into tokens, and whatever stands before it: by the definition, which decodes everything."""
    stop = StopStrings(("never said", text), TOKENIZER.decode)
    tokens = [*tokens[:place], *TOKENIZER.encode(text), *tokens[place:]]
    holds = [count for count in range(1, len(tokens) + 1) if text in TOKENIZER.decode(tokens[:count])]
    ended = [stop.ended_by(tokens[:count]) for count in range(1, len(tokens) + 1)]
    first = next((count for count, found in enumerate(ended, 1) if found), None)
    assert first == (holds or [None])[0]
    assert stop.end(tokens) == ((first, text) if first else (len(tokens), None))


def test_a_text_is_found_behind_tokens_that_are_none() -> None:
    """A decoder may leave tokens out; then many may stand within a text."""
    decode: Callable[[Sequence[int]], str] = lambda tokens: "".join("ab"[token] for token in tokens if token < 2)  # noqa: E731
    tokens = [0, *[2] * 60, 1]
    assert StopStrings(("ab",), decode).ended_by(tokens) == "ab"


def test_what_is_trained_and_scored_is_what_was_drawn_up_to_the_text(path: Path) -> None:
    tokenizer = Tokenizer(path)
    whole, _ = drawn(path)
    every = [part.tolist() for part in whole.tokens.split(whole.lengths.tolist())]
    log_probs = whole.columns["sampling_log_probs"].split(whole.lengths.tolist())
    letters = [text for tokens in every for text in tokenizer.decode(tokens[:-1]) if text != "\ufffd"]
    texts = sorted({*letters}, key=letters.count)[-3:]
    made, seen = drawn(path, stop=texts)
    assert made.stopped is not None and made.stopped.sum() > 3, "the test is of nothing"
    parts = made.tokens.split(made.lengths.tolist())
    for number, (tokens, own) in enumerate(zip(every, parts, strict=True)):
        holds = [
            count for count in range(1, len(tokens) + 1) if any(map(tokenizer.decode(tokens[:count]).count, texts))
        ]
        assert own.tolist() == tokens[: (holds or [None])[0]]
        kept = made.columns["sampling_log_probs"].split(made.lengths.tolist())[number]
        torch.testing.assert_close(kept, log_probs[number][: len(own)], rtol=0, atol=1e-5)
        assert bool(made.stopped[number]) == bool(holds) and (not holds or bool(made.finished[number]))
        if holds:
            assert seen[number].text == tokenizer.decode(own.tolist()) and seen[number].finished
    shown = list(samples(made, prompts(6), tokenizer, (1, 1)))
    assert [one.answer for one in shown] == [one.text for one in seen]
    assert made.rewards.tolist() == arbitrary(seen)
    told = Experience.from_tensors(made.tensors())  # as a checkpoint holds it
    odd = torch.arange(int(told.groups[-1]) + 1) % 2 == 1
    again = concatenate([select_groups(told, odd), select_groups(told, ~odd)])
    assert sorted(one.answer for one in samples(again, prompts(6), tokenizer, (1, 1))) == sorted(
        one.text for one in seen
    )


def test_an_engine_that_does_not_end_there_is_stopped_by_name() -> None:
    tokens = [*TOKENIZER.encode("7</answer> and more"), END]
    stop = StopStrings(("</answer>",), TOKENIZER.decode)
    count, text = stop.end(tokens)
    log_probs = [-1.0] * len(tokens)
    check([Completion(tokens[:count], log_probs[:count], True, stop=text)], ["a"], 99, "`mine`", stop)
    wrong = (
        (Completion(tokens, log_probs, True), "algorithm.stop: rollouts `mine` went on behind '</answer>'"),
        (Completion(tokens[:count], log_probs[:count]), "does not say that '</answer>' ended"),
        (Completion(tokens[-1:], [-1.0], True, stop=text), "which does not hold it"),
    )
    for made, why in wrong:
        with pytest.raises(GymError, match="row a") as caught:
            check([made], ["a"], 99, "`mine`", stop)
        assert why in str(caught.value) and len(str(caught.value).splitlines()) <= 4


class Search:
    """Answers what stands between the marks, once."""

    asked = 0

    def step(self, action: Action) -> StepResult:
        self.asked += 1
        return StepResult([{"role": "user", "content": action.text.upper()}] if self.asked < 3 else [])


@pytest.mark.parametrize("ended", ["</search>", "<|im_end|>"])
def test_a_turn_ends_there_and_the_template_goes_on_as_behind_any_turn(ended: str) -> None:
    """What ends a turn in the template stands between what was sampled and what is shown, once, and is not trained on."""
    said = [*TOKENIZER.encode("<search>cats"), *([END] if ended == "<|im_end|>" else TOKENIZER.encode(ended))]

    def generate(request: RolloutRequest, names: Sequence[str]) -> list[Completion]:
        assert request.stop == (ended,)
        first = [[*TOKENIZER.encode("ok"), END], [-1.0] * (1 + len(TOKENIZER.encode("ok")))]
        later = len(request.prompts[0]) > len(questions(1)[0].tokens) + 60
        tokens, log_probs = first if later else (said, [-1.0] * len(said))
        return [Completion(list(tokens), list(log_probs), True, stop=None if later else ended)]

    row = questions(1)[0]
    request = RolloutRequest([row.tokens.tolist()], 400, stop=(ended,))
    (one,) = MultiTurn(Environment(), lambda row, messages: Search(), TOKENIZER)([row], request, generate)
    turn = "<search>cats</search>" if ended == "</search>" else "<search>cats<|im_end|>"
    assert one.turns[0] == {"role": "assistant", "content": turn}
    text = TOKENIZER.decode(one.tokens)
    between = f"\n<|im_start|>user\n{turn.upper().replace('<|IM_END|>', '')}"
    close = "<|im_end|>" if ended == "</search>" else ""
    assert text.startswith(turn + close + between)
    shown = one.observations[len(said)]
    assert TOKENIZER.decode(shown).startswith(close + "\n<|im_start|>user\n")


def test_empty_texts_are_refused(path: Path) -> None:
    with pytest.raises(ValidationError, match="at least 1 character"):
        algorithm(stop=["</answer>", ""])
    with pytest.raises(GymError, match="no tokenizer"):
        Generator(torch.nn.Linear(1, 1), None).generate([[1]], 3, stop=["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["grpo", "remax"])
def test_runs_end_there_in_training_and_on_held_out_prompts(bench: Bench, name: str) -> None:
    """The reward is for what ends there: nothing that was cut off, and no end token, has the text at its end."""
    rewards = [
        {"name": "regex", "pattern": "[aeinorst]$"},
        {"name": "length", "maximum": 2, "slack": 14, "weight": 0.3},
    ]
    options = {
        "name": name,
        "rewards": rewards,
        "group_size": 2,
        "max_new_tokens": 12,
        "stop": [*"aeinorst"],
        "eval_temperature": 1.0,
    }
    made = bench.recipe(options, "prompt", max_steps=2, eval_every=2)
    bench.run(made | {"data": {"sources": [made["data"]], "validation": 8}})
    for kind in (HELD_OUT, TRAINING):
        found = RolloutLog(bench.root / "run").read(kind, 2)
        assert any(sample.answer.endswith((*"aeinorst",)) for sample in found)
        for sample in found:
            ends = sample.answer.endswith((*"aeinorst",))
            assert sample.rewards["regex"] == ends and (sample.finished or not ends)
