"""Every algorithm and every adapter computes in fp16 what it computes in fp32, to the rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gym_core.discovery import entries
from gym_core.loading import load
from gym_testkit.bench import Bench, Finished
from gym_testkit.caches import own_cache
from gym_testkit.distribution import Brought
from gym_torch import TorchAlgorithm

torch.set_num_threads(1)
ALGORITHMS: dict[str, type[TorchAlgorithm]] = {
    entry.name: kind for entry in entries("algorithms") if issubclass(kind := load(entry), TorchAlgorithm)
}
#: One algorithm for each objective, which computes the loss.
KINDS = sorted({kind.objective: name for name, kind in sorted(ALGORITHMS.items(), reverse=True)}.values())
ADAPTERS = {entry.name: load(entry) for entry in entries("adapters") if entry.name != "expert_lora"}
SCALE = 1024.0  #: which gradients of rows so short bear, also those of an adapter with large factors


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Return a bench whose model all cases share."""
    root = tmp_path_factory.mktemp("fp16")
    (root / "judge.py").write_text(
        "def judge(completions):\n    return [float(len(text) % 2) for text in completions]\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYM_CACHE", own_cache(root / "cache"))
        yield Bench(root)


def first_steps(bench: Bench, recipe: dict[str, Any], name: str) -> tuple[Finished, Finished]:
    """Return a run in fp16 and the same in fp32, of one step of plain rows."""
    scaled = {"fp16": {"loss_scale": {"init_scale": SCALE}}, "fp32": {}}
    found = [bench.run(recipe, f"{name}-{kind}", precision=kind, max_steps=1, **more) for kind, more in scaled.items()]
    assert found[0].series("loss_scale") == [SCALE] and found[0].series("overflowed_steps") == [0]
    return found[0], found[1]


def check(rounded: Finished, exact: Finished) -> None:
    assert rounded.series("loss") == pytest.approx(exact.series("loss"), rel=5e-3, abs=1e-3)
    assert rounded.series("grad_norm") == pytest.approx(exact.series("grad_norm"), rel=3e-2)


@pytest.mark.parametrize("name", KINDS)
def test_an_algorithm_in_fp16(bench: Bench, name: str) -> None:
    kind = ALGORITHMS[name]
    options = Brought("algorithms", name, kind).options()
    if kind.rows == "prompt":
        options |= {"max_new_tokens": 6, "group_size": 2}
        options |= {"rewards": [{"name": "python", "function": f"{bench.root}/judge.py:judge"}]}
    runs = first_steps(bench, bench.recipe({"name": name, **options}, kind.rows), name)
    if kind.rows != "prompt":  # what is sampled is other text
        check(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_in_fp16(bench: Bench, name: str) -> None:
    options = Brought("adapters", name, ADAPTERS[name]).options()
    check(*first_steps(bench, {**bench.recipe("sft"), "adapter": {"name": name, **options}}, name))
