"""The glossary: a term stands for something in the code, and no algorithm logs a metric that is not explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from gym_core.discovery import entries
from gym_core.loading import load
from gym_testkit.bench import Bench
from gym_testkit.caches import own_cache
from gym_testkit.distribution import Brought
from gym_torch import TorchAlgorithm

GLOSSARY = yaml.safe_load((Path(__file__).parents[1] / "docs/glossary.yaml").read_text(encoding="utf-8"))
ALGORITHMS: dict[str, type[TorchAlgorithm]] = {
    entry.name: kind for entry in entries("algorithms") if issubclass(kind := load(entry), TorchAlgorithm)
}
#: One algorithm for each objective and baseline, which decide what is logged.
SHAPES = {
    (kind.objective, getattr(kind, "greedy_baseline", False)): name
    for name, kind in sorted(ALGORITHMS.items(), reverse=True)
}
KINDS = sorted(SHAPES.values())
ROLLOUTS = {"max_new_tokens": 4, "group_size": 2, "max_resample": 1, "on_error": "mask", "beta": 0.1}
ROLLOUTS |= {"off_policy_mask_threshold": 0.1}
JUDGE = """
def judge(completions, log_metric):
    log_metric("spaces", sum(text.count(" ") for text in completions))
    return [float(len(text) % 2) for text in completions]
"""
#: Of smoothed labels, of fp16, of mixtures of experts, of pairs of unequal length, of a model behind a server, with an
#: environment, and of completions that end by themselves.
ELSEWHERE = {
    "nll_loss",
    "loss_scale",
    "overflowed_steps",
    "aux_loss",
    "length_bias",
    "teaching_groups",
    "experiences",
    "cost",
}
ELSEWHERE |= {"num_turns/mean", "completions/mean_observation_length", "environment/NAME"}
ELSEWHERE |= {"tools/call_frequency", "tools/failure_frequency", "kl_coef", "entropy_coef"}
ELSEWHERE |= {f"completions/{name}_terminated_length" for name in ("mean", "min", "max")}
#: Of steps that were spikes, and of texts that belong together where rows are held out.
ELSEWHERE |= {f"skipped_{name}" for name in ("loss", "grad_norm", "loss_limit", "grad_norm_limit")}
ELSEWHERE |= {"mrr@10", "ndcg@10", "spearman", "pearson"}
FOUND: dict[str, set[str]] = {}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Return a bench whose model all cases share."""
    root = tmp_path_factory.mktemp("glossary")
    (root / "judge.py").write_text(JUDGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYM_CACHE", own_cache(root / "cache"))
        yield Bench(root)


def explained(name: str) -> str:
    """Return under which name a metric is explained, or nothing."""
    if name in GLOSSARY["metrics"]:
        return name
    shapes = {key: re.escape(key).replace("NAME", "[^/]+").replace("METRIC", "[^/]+") for key in GLOSSARY["metrics"]}
    return next((key for key, shape in shapes.items() if re.fullmatch(shape, name)), "")


@pytest.mark.parametrize("name", KINDS)
def test_every_metric_is_explained(bench: Bench, name: str) -> None:
    kind = ALGORITHMS[name]
    options = Brought("algorithms", name, kind).options()
    if kind.rows == "prompt":
        options = ROLLOUTS | {"rewards": [{"name": "python", "function": f"{bench.root}/judge.py:judge"}]}
    options |= {"token_metrics": True} if "token_metrics" in kind.model_fields else {}
    run = bench.run(bench.recipe({"name": name, **options}, kind.rows, max_steps=1), name)
    FOUND[name] = set().union(*run.metrics)
    unknown = {metric for metric in FOUND[name] if not explained(metric.removeprefix("eval_"))}
    assert not unknown, f"docs/glossary.yaml does not explain {', '.join(sorted(unknown))}"


def test_every_metric_explained_is_logged() -> None:
    if FOUND.keys() != set(KINDS):
        pytest.skip("not all algorithms were run")
    logged = {explained(metric) for metrics in FOUND.values() for metric in metrics}
    assert GLOSSARY["metrics"].keys() == logged | ELSEWHERE


@pytest.mark.parametrize(("term", "meaning", "where"), GLOSSARY["terms"], ids=[term for term, *_ in GLOSSARY["terms"]])
def test_a_term_names_a_module(term: str, meaning: str, where: str) -> None:
    assert term and meaning and find_spec(where), where
