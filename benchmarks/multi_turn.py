"""Completions of several turns: how much faster they are where keys and values of earlier turns are kept.

An environment answers each turn of a 30M-parameter model with one message, four turns in all, on prompts of 512 tokens in
groups of 8. Rollouts that keep nothing compute the whole text anew in each turn. Both run in one process, one after the other.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import report
import torch
from peers.material import write_model, write_prompts
from peers.rollouts import GROUP
from peers.shape import SMALL
from transformers import AutoModelForCausalLM

from gym_core import load_recipe
from gym_data.tokenizer import Tokenizer
from gym_rl.config.local_engine import LocalEngineConfig
from gym_rl.environment import Action, Environment, StepResult
from gym_rl.local_engine import LocalEngine
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.multi_turn import MultiTurn
from gym_rl.rollouts.prompt import Prompt
from gym_rl.rollouts.trajectory import Trajectory
from gym_torch.kernels import precision_probe
from gym_torch.model.adapted import Full

DATA = "alpaca_en_demo"
TURNS, PROMPT, LONGEST = 4, 512, 768
ANSWER = 48  #: tokens of a turn, on average


class Asks:
    """Asks for more after each turn."""

    def __init__(self, *_: Any) -> None:
        """Begin."""

    def step(self, action: Action) -> StepResult:
        """Return the same message."""
        return StepResult(
            [{"role": "user", "content": "That is not it yet: " + "look at it again, and try another way. " * 2}]
        )


def measure(out: report.Report, quick: bool) -> None:
    """Compare rollouts that keep what they computed with those that do not."""
    precision = precision_probe.trial(512).precision
    with tempfile.TemporaryDirectory() as scratch:
        path = write_model(Path(scratch, "model"), SMALL, DATA, ends=SMALL // ANSWER)
        prompts = Path(scratch, "prompts.jsonl")
        write_prompts(prompts, path, DATA, 2 if quick else 4, PROMPT)
        algorithm = {"name": "grpo", "rewards": [{"name": "python", "function": "peers.rollouts:vowels"}]}
        data = {"sources": [str(prompts)]}
        recipe = load_recipe({"model": str(path), "data": data, "algorithm": algorithm, "output": scratch})
        assert recipe.data is not None
        rows = recipe.data.build(tokenizer=path, rows="prompt", seed=0).train
        asked = cast(list[Prompt], [rows[number] for number in range(len(rows)) for _ in range(GROUP)])
        _compare(out, path, asked, precision, 2 if quick else 4)


def _compare(out: report.Report, path: Path, asked: Sequence[Prompt], precision: str, times: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = Tokenizer(path)
    turns = MultiTurn(Environment(max_turns=TURNS), Asks, tokenizer)
    request = RolloutRequest([prompt.tokens.tolist() for prompt in asked], LONGEST, temperature=1.0, seed=1)
    sizes = {"kept": LocalEngineConfig().prefix_cache_bytes, "not kept": 0}
    seconds: dict[str, list[float]] = {name: [] for name in sizes}
    made: dict[str, list[Trajectory]] = {}
    for _ in range(times):
        for name, limit in sizes.items():
            config = LocalEngineConfig(prefix_cache_bytes=limit)
            engine = LocalEngine(config, adapted=Full(None, model), tokenizer=tokenizer, precision=precision)
            began = time.perf_counter()
            made[name] = turns(asked, request, lambda given, _, engine=engine: engine.generate(given))
            seconds[name].append(time.perf_counter() - began)
            print(f"{name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    apart = [_apart(*pair) for pair in zip(*made.values(), strict=True)]
    out.figures |= {
        "precision": precision,
        "completions": len(asked),
        "tokens of a completion": {name: round(fmean(one.size for one in each), 1) for name, each in made.items()},
        "turns": {name: round(fmean(len(one.observations) + 1 for one in each), 2) for name, each in made.items()},
        "seconds": {name: round(min(each), 2) for name, each in seconds.items()},
        "sampled tokens before two completions differ": round(fmean(map(len, apart)), 1),
        "largest difference of their log-probabilities": max(map(max, filter(None, apart)), default=None),
    }
    out.check(
        "times as fast with earlier turns kept", round(min(seconds["not kept"]) / min(seconds["kept"]), 2), None, 1.5
    )


def _apart(kept: Trajectory, other: Trajectory) -> list[float]:
    """Return the differences of log-probabilities of two completions, as far as both are the same tokens."""
    sampled = zip(kept.completion.tokens, other.completion.tokens, strict=False)
    same = next((at for at, (one, two) in enumerate(sampled) if one != two), len(kept.completion.tokens))
    pairs = zip(kept.completion.log_probs[:same], other.completion.log_probs[:same], strict=True)
    return [abs(one - two) for one, two in pairs]


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
