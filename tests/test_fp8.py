"""Runs whose linear layers multiply in fp8: planned, trained, compared with a reference, evaluated and resumed as others are.

A CPU computes the same products slowly; a run on it is refused, unless a test says that it has them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gym_core import Callback, GymError, execute, load_recipe
from gym_plan.plan import plan
from gym_testkit.bench import Bench, Finished, fingerprint
from gym_testkit.caches import own_cache
from gym_torch.model import fp8_products
from gym_torch.observer import Observer

TRAIN = {"precision": "bf16", "max_steps": 4, "save_every": 2, "batch_size": 2, "learning_rate": 1e-3}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("GYM_CACHE", own_cache(tmp_path / "cache"))
    monkeypatch.setattr(fp8_products, "has_products", lambda: True)
    return Bench(tmp_path)


def recipe(bench: Bench, algorithm: str = "sft", fp8: str | None = "rowwise", **sections) -> dict:
    shape = "preference" if algorithm == "dpo" else "conversation"
    made = bench.recipe(algorithm, shape, **TRAIN) | sections
    return made | {"model": {"path": made["model"], "fp8": fp8}}


def said(run: Finished) -> list[dict]:
    return [
        {key: value for key, value in line.items() if key not in ("tokens_per_second", "seconds")}
        for line in run.metrics
    ]


@pytest.mark.parametrize("fp8", ["rowwise", "rowwise_with_gw_hp"])
def test_a_whole_model_learns_about_the_same_as_in_bf16(bench, fp8):
    found = bench.run(recipe(bench, fp8=fp8), "fp8").series("loss")
    plain = bench.run(recipe(bench, fp8=None), "bf16").series("loss")
    assert found != plain and found == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_a_policy_begins_as_its_reference(bench, adapter):
    """The adapter left out, or a second copy of the model that is loaded: both multiply in fp8 as the policy does."""
    run = bench.run(recipe(bench, "dpo", adapter=adapter))
    assert run.series("loss")[0] == pytest.approx(math.log(2), abs=1e-6)


class Stopped(Exception):
    """Ends a run between two checkpoints."""


class Stopping(Callback, Observer):
    """A callback that ends the run after its third step."""

    def build(self, **_):
        return self

    def stepped(self, progress):
        if progress.step == 3:
            raise Stopped


def test_a_resumed_run_is_the_same_bit_for_bit(bench):
    asked = recipe(bench, adapter={"name": "lora", "rank": 4})
    whole = bench.run(asked, "whole")
    half = load_recipe({**asked, "output": str(bench.path("half"))})
    with pytest.raises(Stopped):
        execute(replace(half, callbacks=(Stopping(),)))
    resumed = bench.finished(execute(half))
    assert not resumed.outcome.repeated and said(resumed) == said(whole)
    weights = [fingerprint(bench.root / name / "model", ".safetensors") for name in ("whole", "half")]
    assert weights[0] == weights[1] and weights[0]


def test_a_plan_knows_such_layers(bench):
    found, plain = (plan(load_recipe(recipe(bench, fp8=fp8, output="unused"))) for fp8 in ("rowwise", None))
    assert found.flops_per_token == pytest.approx(plain.flops_per_token, rel=0.05)  # tokens are filled up to 16


def test_what_cannot_be_is_refused_before_the_model_is_loaded(bench, monkeypatch):
    with pytest.raises(GymError, match="computes in fp32"):
        bench.run(recipe(bench, train=TRAIN | {"precision": "fp32"}), "fp32")
    both = recipe(bench)
    both["model"]["quantization"] = "bnb_4bit"
    with pytest.raises(GymError, match="not both"):
        load_recipe(both | {"adapter": "lora"}).check()
    monkeypatch.undo()
    with pytest.raises(GymError, match="no products in fp8") as caught:
        bench.run(recipe(bench), "cpu")
    assert len(str(caught.value).splitlines()) <= 4
