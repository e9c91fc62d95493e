"""Peak memory of PPO with a critic of its own beside GRPO: the same model, prompts and optimizer, measured and accounted.

fp32, 30M parameters, a vocabulary of 8,192; every weight trained, then LoRA, where a critic of its own is a second base.
What the process held before it loaded the model is taken off; what remains are weights, gradients, optimizer state, activations,
logits and the caches of the answers. In both, groups of answers share a prompt, and there is no reference and no reward model.

The accountant counts what a parameter costs in mixed precision: 16 bytes where it trains (weight, gradient and two moments, each
fp32), 2 where it is frozen (bf16).
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import report
from peers.material import DATA, source, write_model
from peers.process import Result
from peers.runs import run
from peers.shape import SMALL
from peers.supervised import Tuning

PROMPTS, CUTOFF, ANSWERS, LENGTH = "alpaca_en_demo", 128, 16, 64
TRAINED, FROZEN = 16, 2  #: bytes a parameter
#: who is in memory beside the policy: how many trained, how many frozen
PARTIES = {
    "PPO with reference and reward model": (2, 2),
    "PPO with reference": (2, 1),
    "PPO": (2, 0),
    "GRPO with reference and reward model": (1, 2),
    "GRPO with reference": (1, 1),
    "GRPO": (1, 0),
}
ADAPTERS: dict[str, dict[str, Any] | None] = {"full": None, "lora": {"name": "lora", "rank": 8}}


def measure(out: report.Report, quick: bool) -> None:
    """Account for the parameters, then run two steps of each."""
    account(out)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        model = write_model(scratch / "model", SMALL, PROMPTS)
        rewards = [{"name": "length", "maximum": 16}]
        options = {"rewards": rewards, "group_size": 8, "num_mini_batches": 1, "max_new_tokens": LENGTH}
        spec = Tuning(
            model=str(model),
            data={**source(PROMPTS, CUTOFF), "overlong": "drop"},
            output=str(scratch / "run"),
            steps=2,
            rows=ANSWERS,
        )
        algorithms: dict[str, dict[str, Any]] = {
            "grpo": {"name": "grpo", **options},
            "ppo": {"name": "ppo", "critic": str(model), **options},
            "ppo, value head": {"name": "ppo", **options},
        }
        for kind, adapter in list(ADAPTERS.items())[: 1 if quick else 2]:
            specs = {name: replace(spec, algorithm=one, adapter=adapter) for name, one in algorithms.items()}
            peaks = {name: _peak(run("gym", one)) for name, one in specs.items()}
            out.figures[kind] = {"peak_mib": {name: round(peak / 2**20) for name, peak in peaks.items()}}
            head, ratio = peaks["ppo, value head"] / peaks["grpo"], peaks["grpo"] / peaks["ppo"]
            out.figures[kind] |= {"grpo / ppo": round(ratio, 3), "ppo, value head / grpo": round(head, 3)}
    full = out.figures["full"]
    out.check("GRPO / PPO with a critic of its own, peak", full["grpo / ppo"], at_most=0.62)
    out.check("PPO with a value head / GRPO, peak", full["ppo, value head / grpo"], at_most=1.1)


def account(out: report.Report) -> None:
    """Add up what a parameter of the model costs each party."""
    cost = {name: TRAINED * trained + FROZEN * frozen for name, (trained, frozen) in PARTIES.items()}
    out.figures["bytes_per_parameter"] = cost


def _peak(result: Result) -> int:
    return result.peak_bytes - result.base_bytes


if __name__ == "__main__":
    assert DATA.is_dir(), "set GYM_DATA to the folder of the datasets"
    report.main(measure, __doc__ or "")
