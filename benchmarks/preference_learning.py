"""Whether a stated preference is learnt: held-out preference accuracy before and after each of `recipes/preference`.

The preferences are three: a format, a persona, and refusing what is marked; no held-out question shares its content with
one of training. Accuracy is the share of pairs whose preferred answer a model takes: of the two answers the likelier one
(summed log-probabilities of its tokens, that of its end included), or for reward models the one of higher score. A tie
counts half. Each recipe runs with three seeds; `--quick` takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch
from learning import learnt
from report import Report, main
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Outcome
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_rewards.reward import Reward, RewardInput
from gym_rl.reward_models import Model, ProcessModel
from gym_tiny.preferences import PREFERENCES, Pair, pairs
from gym_tiny.tasks.task import user
from gym_torch.batch import Piece, padded
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.policy import Policy

RECIPES = Path(__file__).parents[1] / "recipes" / "preference"
ASKED = 480  #: held-out pairs of each preference that are drawn, equal ones counting once; of 113 the base took 56 %, of 698 48 %
BEFORE, AFTER, MINUTES = 0.55, 0.90, 2
ROWS = 64  #: sequences scored at a time

REWARDS: dict[str, type[Model]] = {"reward_model": Model, "process_reward_model": ProcessModel}
Judge = Callable[[Sequence[tuple[str, str]]], Sequence[float]]  #: (question, answer) pairs to numbers


def held_out(about: str) -> list[Pair]:
    """Return pairs whose questions no training has seen."""
    return list(dict.fromkeys(pairs(about, ASKED, seed=1, split="heldout")))


def likelihood(model: PreTrainedModel) -> Judge:
    """Return what says how likely a model is to answer a question so: the log-probability in nats."""
    tokenizer, policy = Tokenizer(locate("tiny")), Policy(model.eval())

    @torch.no_grad()
    def judge(texts: Sequence[tuple[str, str]]) -> list[float]:
        found: list[float] = []
        for start in range(0, len(texts), ROWS):
            turns = [
                [*user(question), {"role": "assistant", "content": answer}]
                for question, answer in texts[start : start + ROWS]
            ]
            batch = padded([Piece("", *tokenizer.chat(messages)) for messages in turns])
            sums = torch.zeros(len(turns)).index_add(0, batch.target_segment, policy(batch))
            found.extend(sums.tolist())
        return found

    return judge


def score(reward: Reward) -> Judge:
    """Return what says how good a reward model finds an answer."""
    judge = reward.build()
    return lambda texts: judge([RewardInput(answer, messages=user(question)) for question, answer in texts])


def accuracy(judge: Judge) -> dict[str, float]:
    """Return the share of held-out pairs whose preferred answer a judge takes, by preference and over all three."""
    shares = {}
    for about in PREFERENCES:
        asked = held_out(about)
        better = judge([(pair.question, pair.chosen) for pair in asked])
        worse = judge([(pair.question, pair.rejected) for pair in asked])
        shares[about] = fmean((a > b) + (a == b) / 2 for a, b in zip(better, worse, strict=True))
    return {about: round(share, 3) for about, share in shares.items()} | {"all": round(fmean(shares.values()), 3)}


def judged(recipe: Path, outcome: Outcome) -> dict[str, float]:
    """Return the accuracy of what a run left: a model, or a reward model."""
    if reward := REWARDS.get(recipe.stem):
        return accuracy(score(reward(path=str(outcome.output))))
    return accuracy(likelihood(open_artifact(outcome.artifact).merged()))


def measure(report: Report, quick: bool) -> None:
    """Fill the report."""
    before = accuracy(likelihood(AutoModelForCausalLM.from_pretrained(locate("tiny"))))
    report.figures["before"] = before
    report.check("held-out accuracy before training, highest preference", max(before.values()), at_most=BEFORE)
    for name, found in learnt(sorted(RECIPES.glob("*.yaml")), judged, quick):
        report.figures[name] = found
        worst = min(min(run["accuracy"].values()) for run in found)
        report.check(f"{name}: held-out accuracy, lowest preference and seed", worst, at_least=AFTER)
        minutes = max(run["seconds"] for run in found) / 60
        report.check(f"{name}: minutes, slowest seed", round(minutes, 2), at_most=MINUTES)


if __name__ == "__main__":
    main(measure, __doc__ or "")
