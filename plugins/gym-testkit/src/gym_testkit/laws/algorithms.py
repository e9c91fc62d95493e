"""Laws of algorithms, asked of whole runs: they hold for any trainer, whatever it is made of."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import yaml

from gym_core import execute, load_recipe
from gym_data.kinds import DataAlgorithm
from gym_testkit.bench import Bench, Finished, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

#: What a step of training is known by; the rest of a line of `metrics.jsonl` is about time.
TRAJECTORY = ("step", "loss", "grad_norm", "learning_rate")
STEPS = 6
SIGKILL = -9

laws = laws_of("algorithms", "algorithm")


@laws("learns a tiny task")
def learns(brought: Brought, bench: Bench) -> None:
    """In 60 steps its measure improves by a fifth on sixteen rows."""
    cls = _class(brought)
    values = bench.run(_recipe(brought, bench), max_steps=60).series(cls.measure)
    first, last = fmean(values[:3]), fmean(values[-3:])
    gain = first - last if cls.better == "lower" else last - first
    assert gain >= 0.2 * abs(first), f"{cls.measure} went from {first:.4g} to {last:.4g}; {cls.better} is better"


def _shows_what_is_good(brought: Brought) -> bool:
    """Whether its rows show what is to become likelier, and it trains a language model and nothing beside it."""
    cls = brought.cls
    if not (
        issubclass(cls, DataAlgorithm)
        and cls.likelier
        and cls.rows in ("conversation", "text", "preference", "feedback")
    ):
        return False
    if not _on_gym_torch(brought):
        return True
    from gym_core.component import construct
    from gym_torch import TorchAlgorithm
    from gym_torch.objective import Objective

    objective = construct(cast(type[TorchAlgorithm], cls).objective, cls(**brought.options()))
    return type(objective).auxiliary_modules is Objective.auxiliary_modules


@laws("what its rows show as good becomes likelier", _shows_what_is_good)
def likelier(brought: Brought, bench: Bench) -> None:
    """Measured by plain transformers and not by the loss, which falls as well where its sign is wrong."""
    from gym_testkit.likelihood import advantage

    recipe = _recipe(brought, bench)
    made = bench.run(recipe, max_steps=30).outcome.artifact.path
    before, after = (advantage(load_recipe(recipe), path, bench) for path in (bench.model(), made))
    assert after > before + 0.01, f"the mean log-probability of a token went from {before:.4g} to {after:.4g} nats"


@laws("same seed = same trajectory")
def same_seed(brought: Brought, bench: Bench) -> None:
    """Two runs agree in every step, and in the weights bit for bit."""
    first, second = (bench.run(_recipe(brought, bench), name, max_steps=STEPS) for name in ("first", "second"))
    assert _trajectory(first) == _trajectory(second)
    assert _weights(first) == _weights(second)


@laws("8 x 1 = 4 x 2 accumulation")
def accumulation(brought: Brought, bench: Bench) -> None:
    """Eight sequences in one pass, or four in each of two passes: the same step."""
    recipe = _recipe(brought, bench, even=True)
    together = bench.run(recipe, "together", max_steps=STEPS, batch_size=8, accumulate=1)
    apart = bench.run(recipe, "apart", max_steps=STEPS, batch_size=4, accumulate=2)
    _agree(together, apart)


@laws("packing, padding and shared prefixes change nothing")
def packing(brought: Brought, bench: Bench) -> None:
    """Sequences of very different lengths in one packed row, side by side with padding, or each alone: the same step.

    Half of them begin alike. In a packed row that stands once where the algorithm's `shares_prefixes` says that it may.
    """
    recipe = _recipe(brought, bench) | {"data": str(bench.data(_class(brought).rows, alike=True))}
    aside = {**recipe, "model": {"path": recipe["model"], "attention": "sdpa"}}
    packed = bench.run(recipe, "packed", max_steps=STEPS, batch_size=8, accumulate=1)
    padded = bench.run(aside, "padded", max_steps=STEPS, batch_size=8, accumulate=1)
    alone = bench.run(recipe, "alone", max_steps=STEPS, batch_size=1, accumulate=8)
    _agree(packed, alone)
    _agree(padded, alone)


@laws("10 steps = 5 + kill -9 + resume + 5, bit for bit")
def resumes(brought: Brought, bench: Bench) -> None:
    """A run is killed after its checkpoint; the same command again ends with the weights of the run that was not."""
    recipe = _recipe(brought, bench, max_steps=10, save_every=5)
    whole = bench.run(recipe, "whole")
    output = bench.path("killed")
    file = bench.path("recipe.yaml")
    file.write_text(
        yaml.safe_dump({**recipe, "output": str(output), "callbacks": [{"name": "gym-testkit/kill", "step": 7}]}),
        encoding="utf-8",
    )
    killed = bench.gym("train", str(file))
    assert killed.returncode == SIGKILL, f"exit code {killed.returncode}\n{killed.stdout}\n{killed.stderr}"
    again = bench.gym("train", str(file))
    assert again.returncode == 0, again.stdout + again.stderr
    resumed = bench.finished(execute(load_recipe(file)))
    assert resumed.outcome.repeated
    assert _trajectory(resumed) == _trajectory(whole)
    assert _weights(resumed) == _weights(whole)


def _on_gym_torch(brought: Brought) -> bool:
    """Whether it trains with the loop of gym-torch, which several processes can share."""
    return any(base.__module__.startswith("gym_torch") for base in brought.cls.__mro__)


@laws("one process = two processes", _on_gym_torch)
def processes(brought: Brought, bench: Bench) -> None:
    """Two processes share every step of the run that one does alone."""
    from gym_testkit.team import start

    recipe = _recipe(brought, bench, max_steps=STEPS, batch_size=2, accumulate=4)
    alone = bench.run(recipe, "alone")
    output, file = bench.path("shared"), bench.path("recipe.yaml")
    file.write_text(yaml.safe_dump({**recipe, "output": str(output)}), encoding="utf-8")
    team = start(2, str(file))
    assert team.codes(within=300) == [0, 0], team.errors()
    _agree(bench.finished(execute(load_recipe(file))), alone)


@laws("evaluations give the metrics that it declares", _on_gym_torch)
def evaluated(brought: Brought, bench: Bench) -> None:
    """What `evaluation_metrics` names is in the log with `eval_` before it, beside what training improves."""
    recipe = _recipe(brought, bench, max_steps=1)
    recipe["data"] = {key: [recipe["data"]] for key in ("sources", "validation_sources")}
    config = cast(DataAlgorithm, load_recipe(recipe).algorithm)
    run = bench.run(recipe)
    found = {name.removeprefix("eval_") for line in run.metrics for name in line if name.startswith("eval_")}
    missing = {config.measure, *config.evaluation_metrics()} - found
    assert not missing, f"an evaluation gives no {', '.join(sorted(missing))}, but {', '.join(sorted(found))}"


def _rewarded(brought: Brought) -> bool:
    """Whether it learns from rewards, as the algorithms of gym-rl do."""
    return {
        "rewards",
        "num_mini_batches",
        "max_resample",
        "mask_truncated_completions",
    } <= brought.cls.model_fields.keys()


JUDGE = """
calls = 0

def judge(texts):
    global calls
    calls += 1
    return [sum(map(ord, text)) % 7 / 6 if calls == 1 else None for text in texts]
"""


@laws("a round with nothing to learn from leaves every weight as it was", _rewarded)
def nothing_to_learn(brought: Brought, bench: Bench) -> None:
    """After a round that moved the weights, and the state of the optimizer, comes one that nothing judged."""
    file = bench.path("judge.py")
    file.write_text(JUDGE, encoding="utf-8")
    recipe = _recipe(brought, bench)
    rewards = [{"name": "python", "function": f"{file}:judge"}]
    recipe["algorithm"] |= {"rewards": rewards, "max_resample": 0, "mask_truncated_completions": False}
    parts = load_recipe(recipe).algorithm.model_dump()["num_mini_batches"]
    run = bench.run(recipe, max_steps=2 * parts, save_every=parts)
    learnt, after = sorted((run.outcome.output / "checkpoints").glob("step-*"))
    assert fingerprint(after, ".safetensors") == fingerprint(learnt, ".safetensors") | _rounds(after)
    assert [line["steps_without_update"] for line in run.metrics if "loss" in line] == [0.0] * parts + [1.0] * parts


def _rounds(checkpoint: Path) -> dict[str, str]:
    """Return the files of a checkpoint that hold answers."""
    return {name: value for name, value in fingerprint(checkpoint, ".safetensors").items() if name.startswith("source")}


def _names_an_oracle(brought: Brought) -> bool:
    """Whether its author gives the formula that its objective must agree with."""
    if not _on_gym_torch(brought):
        return False
    from gym_torch import TorchAlgorithm

    return bool(cast(type[TorchAlgorithm], brought.cls).oracle)


@laws("agrees with its float64 oracle in value and gradient", _names_an_oracle)
def oracle(brought: Brought, bench: Bench) -> None:
    """The objective on the tiny model, against the author's formula in float64."""
    from gym_testkit.oracle import compare

    value, gradient = compare(load_recipe(_recipe(brought, bench)), bench)
    assert value <= 1e-5, f"relative difference of the loss {value:.3g}"
    assert gradient <= 1e-4, f"relative difference of the gradient {gradient:.3g}"


def _class(brought: Brought) -> type[DataAlgorithm]:
    """Return the class of an algorithm, which says what data its laws need."""
    assert issubclass(brought.cls, DataAlgorithm), (
        f"{brought.cls.__name__} is no gym_data.kinds.DataAlgorithm: its rows are unknown"
    )
    return brought.cls


def _recipe(brought: Brought, bench: Bench, even: bool = False, **train: Any) -> dict[str, Any]:
    return bench.recipe({"name": brought.name, **brought.options()}, _class(brought).rows, even, **train)


def _trajectory(run: Finished) -> list[dict[str, Any]]:
    """Return what each step did; a step that was done again after a kill counts as it was done last."""
    steps = {line["step"]: {key: line.get(key) for key in TRAJECTORY} for line in run.metrics if "loss" in line}
    return [steps[number] for number in sorted(steps)]


def _weights(run: Finished) -> dict[str, str]:
    return fingerprint(run.outcome.artifact.path, ".safetensors")


def _agree(one: Finished, other: Finished) -> None:
    """Compare step by step; sums in another order differ in rounding, which training amplifies slowly."""
    pairs = list(zip(_trajectory(one), _trajectory(other), strict=True))
    for left, right in pairs:
        for key in ("loss", "grad_norm"):
            assert math.isclose(left[key], right[key], rel_tol=2e-3, abs_tol=1e-5), (
                f"step {left['step']}: {key} {left[key]!r} and {right[key]!r}"
            )
    assert pairs, "no step was logged"
