"""Answers on the disk: which are kept, and what `gym rollouts show` prints of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gym_core import GymError
from gym_rl.commands import rollouts
from gym_rl.rollout_log.files import HELD_OUT, TRAINING, RolloutLog, Sample
from gym_rl.rollout_log.ranking import rank


def samples(first: int, last: int, rewards: list[float | None]) -> list[Sample]:
    return [
        Sample(
            (first, last),
            f"row {number // 2}",
            f"<|im_start|>user\nquestion {number // 2}",
            f"answer {number}\x1b[31m\x85\u2028",
            3 + number,
            number > 0,
            reward,
            {"exact": reward, "format": None},
            0.5,
        )
        for number, reward in enumerate(rewards)
    ]


@pytest.fixture
def kept(tmp_path: Path) -> RolloutLog:
    made = RolloutLog(tmp_path)
    made.write(TRAINING, samples(1, 4, [0.0, 1.0, None, 0.25, 1.0, 0.0]))
    made.write(TRAINING, samples(9, 12, [0.5]))
    made.write(HELD_OUT, samples(10, 10, [0.75, 0.5]))
    return made


def test_what_is_written_is_read_by_any_step_of_its_round(kept: RolloutLog) -> None:
    wanted = samples(1, 4, [0.0, 1.0, None, 0.25, 1.0, 0.0])
    assert kept.read(TRAINING, 1) == kept.read(TRAINING, 4) == wanted
    assert kept.read(TRAINING) == kept.read(TRAINING, 10) == samples(9, 12, [0.5])
    assert kept.read(HELD_OUT) == samples(10, 10, [0.75, 0.5])
    with pytest.raises(GymError, match="step 5 are kept") as caught:
        kept.read(TRAINING, 5)
    assert "1, 9" in caught.value.problems[0].fix
    with pytest.raises(GymError, match="no samples are kept"):
        RolloutLog(kept.folder).read(TRAINING)


def test_a_round_that_is_made_again_is_there_once(kept: RolloutLog) -> None:
    kept.write(TRAINING, samples(9, 12, [0.5]))
    assert kept.steps(TRAINING) == [1, 9]
    assert len(kept.read(TRAINING, 9)) == 1


def test_the_best_and_the_worst_are_not_the_same(kept: RolloutLog) -> None:
    found = rank(kept.read(TRAINING, 1), 3, 3)
    assert [sample.reward for sample in found.best] == [1.0, 1.0, 0.25]
    assert [sample.reward for sample in found.worst] == [0.0, 0.0]
    assert [sample.answer[:8] for sample in found.best + found.worst] == [f"answer {n}" for n in (1, 4, 3, 0, 5)]
    assert (found.answers, found.prompts, found.judged, found.truncated) == (6, 3, 5, 1)
    assert found.reward == pytest.approx(0.45)


def test_the_same_answer_to_the_same_prompt_is_listed_once(kept: RolloutLog) -> None:
    one, *others = samples(1, 1, [1.0, 1.0, 0.5])
    found = rank([one, one, *others, one], 3, 3)
    assert (found.best, found.worst) == ([one, *others], [])
    assert (found.answers, found.judged) == (5, 5)


def test_the_command_shows_them(kept: RolloutLog) -> None:
    run, run_dir = CliRunner(), str(kept.folder.parent)
    done = run.invoke(rollouts, ["show", run_dir, "--step", "2", "--best", "1", "--worst", "1"], catch_exceptions=False)
    assert done.exit_code == 0 and "\x1b" not in done.output
    for text in (
        "steps 1 to 4",
        "6 completions of 3 prompts",
        "1 not scored",
        "1 cut off",
        "best 1",
        "worst 1",
        "question",
    ):
        assert text in done.output
    assert "best 2" not in done.output and "answer 1" in done.output and "answer 4" not in done.output
    machine = run.invoke(rollouts, ["show", run_dir, "--held-out", "--json"], catch_exceptions=False)
    found = json.loads(machine.output)
    assert found["steps"] == [10, 10] and [sample["reward"] for sample in found["best"]] == [0.75, 0.5]
    assert run.invoke(rollouts, ["show", str(kept.folder / "nowhere")]).exit_code == 2
