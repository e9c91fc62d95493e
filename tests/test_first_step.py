"""Every adapter under every algorithm that compares: the first step finds a policy that is its own reference, or is refused.

An adapter that declares to start unchanged is measured from the base, every other one from itself as it begins; dropout and
whatever else is there in training alone stands on neither side.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gym_core import GymError, execute, load_recipe
from gym_core.discovery import entries
from gym_core.loading import load
from gym_testkit.architectures import write_mixture
from gym_testkit.bench import Bench
from gym_testkit.caches import own_cache
from gym_torch import TorchAlgorithm
from gym_torch.kinds import Adapter

ADAPTERS: dict[str, type[Adapter]] = {entry.name: load(entry) for entry in entries("adapters")}
ALGORITHMS: dict[str, type[TorchAlgorithm]] = {
    entry.name: kind
    for entry in entries("algorithms")
    if issubclass(kind := load(entry), TorchAlgorithm) and kind.disable_dropout
}
SMALL: dict[str, Any] = {
    "rank": 4,
    "dropout": 0.5,
    "target_rank": 2,
    "block_size": 4,
    "blocks": 2,
    "trainable_layers": 1,
}
TOKENS: dict[str, Any] = {
    "trainable_tokens": {"tokens": [97, 98]},
    "prompt_tuning": {"num_virtual_tokens": 4},
    "prefix_tuning": {"num_virtual_tokens": 4},
}
FORMS: dict[str, Any] = {"live": {"precompute_ref_log_probs": False}, "cached": {"precompute_ref_log_probs": True}}
ROLLOUTS = {"max_new_tokens": 8, "group_size": 4, "rewards": [{"name": "regex", "pattern": "[ -7]"}]}
WHOLE = {"mask_truncated_completions": False}  #: as all are, there would be no gradient
#: One algorithm for each way of comparing: pairs, judged answers, whole distributions, answers of its own.
WAYS = {"dpo", "kto", "tdpo2", "rloo"}
#: One adapter for each way of standing aside: left out, a copy of what trains, tokens in front, a base that is changed.
ASIDE = {"lora", "freeze", "prompt_tuning", "loftq"}
IN_TRAINING_ONLY = {"longlora"}  #: attends in groups while it trains


def forms(kind: type[TorchAlgorithm]) -> dict[str, dict[str, Any]]:
    """Return the ways in which an algorithm may be given its reference; none where it has none."""
    if "precompute_ref_log_probs" in kind.model_fields:
        return FORMS
    if "rewards" in kind.model_fields:
        options = {**ROLLOUTS, "beta": 0.1, **WHOLE}
        return {"live": {name: value for name, value in options.items() if name in kind.model_fields}}
    return {"live": {}} if "ref_model" in kind.model_fields else {}


def cases() -> Iterator[Any]:
    for adapter, (name, kind) in product(ADAPTERS, ALGORITHMS.items()):
        for form, options in forms(kind).items():
            brief = (name, form) == ("dpo", "live") or (name in WAYS and adapter in ASIDE)
            marks = [] if brief else [pytest.mark.slow]
            yield pytest.param(adapter, name, options, id=f"{adapter}-{name}-{form}", marks=marks)


def test_every_algorithm_with_a_reference_is_compared_without_dropout() -> None:
    kinds = {entry.name: load(entry) for entry in entries("algorithms")}
    fields = {name: kind.model_fields.keys() for name, kind in kinds.items() if issubclass(kind, TorchAlgorithm)}
    assert {name for name, have in fields.items() if {"ref_model", "rewards"} & have} <= ALGORITHMS.keys()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Return a bench with a model of its own, and tokens and scores that all cases share."""
    root = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYM_CACHE", own_cache(root / "cache"))
        yield Bench(root)


def options_of(adapter: str) -> dict[str, Any]:
    fields = ADAPTERS[adapter].model_fields
    found = {name: value for name, value in SMALL.items() if name in fields and (name, adapter) != ("rank", "oft")}
    return found | TOKENS.get(adapter, {})


@pytest.mark.parametrize(("adapter", "algorithm", "options"), cases())
def test_a_policy_begins_as_its_own_reference(
    bench: Bench, tmp_path: Path, adapter: str, algorithm: str, options: dict[str, Any]
) -> None:
    shape = ALGORITHMS[algorithm].rows
    recipe = bench.recipe({"name": algorithm, **options}, shape, max_steps=1, batch_size=8, learning_rate=1e-9)
    recipe |= {"adapter": {"name": adapter, **options_of(adapter)}, "output": str(tmp_path / "run")}
    if ADAPTERS[adapter].needs_experts:
        recipe["model"] = str(mixture(bench))
    if adapter in IN_TRAINING_ONLY:
        with pytest.raises(GymError, match="in training the policy computes other"):
            execute(load_recipe(recipe))
        return
    first = bench.finished(execute(load_recipe(recipe))).metrics[0]
    for name in first.keys() & {
        "kl",
        "rewards/margins",
        "kl/chosen",
        "kl/rejected",
        "rewards/chosen",
        "rewards/rejected",
    }:
        assert first[name] == pytest.approx(0, abs=1e-5), name
    assert first.keys() & {"kl", "rewards/margins"}, "nothing was compared"


def mixture(bench: Bench) -> Path:
    path = bench.root / "mixture"
    return path if path.exists() else write_mixture(path, bench.model())
