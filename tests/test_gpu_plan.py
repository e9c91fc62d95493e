"""What `benchmarks/gpu.py` plans: shapes and FLOPs as torch counts them, what fits, what peers are told, and what is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from gym_core import load_recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from gpu import chosen, measure  # noqa: E402
from peers import generation, rollouts, supervised  # noqa: E402
from peers.gpu_runs import WAYS, Bench, Scale  # noqa: E402
from peers.sizes import GIB, PEERS, SIZES, TINY, Case, cases, of_llamafactory  # noqa: E402
from peers.supervised import Tuning, recipe_of  # noqa: E402

TOKENS = 32


@pytest.fixture(scope="module")
def counted() -> tuple[int, int, int]:
    """FLOPs of a tiny model forward, and forward and backward, and its parameters, without data in any tensor."""
    config = AutoConfig.for_model(**TINY.config, attn_implementation="eager")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        loss = model(tokens).logits.sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    parameters = sum(weight.numel() for weight in model.parameters())
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops(), parameters


def test_the_flops_of_a_step_are_those_that_torch_counts(counted):
    """Eager attention computes all pairs, those across the diagonal too."""
    forward, both, parameters = counted
    # Rotary angles are a product with one column, which is no part of the model's work.
    assert forward == pytest.approx(TOKENS * TINY.forward(TOKENS), rel=5e-3)
    assert both == pytest.approx(TOKENS * TINY.step("full", TOKENS), rel=5e-3)
    norms = TINY.config["hidden_size"] * (2 * 2 + 1) + 2 * 2 * TINY.config["head_dim"]
    assert parameters == TINY.parameters + norms


def test_a_frozen_weight_costs_a_third_less_and_an_adapter_little():
    for size in SIZES.values():
        assert 0.66 < size.step("lora", 500) / size.step("full", 500) < 0.70
        assert size.step("qlora", 500) == size.step("lora", 500)
        assert size.state("qlora") < size.state("lora") < size.state("full")
    assert [round(size.parameters / 1e9, 2) for size in SIZES.values()] == [0.60, 6.74]


def test_what_does_not_fit_is_left_out_with_its_reason():
    small = {f"{case.size} {case.way}": case for case in cases(24 * GIB, quick=False)}
    assert not small["7B full"].peers and "100 GiB of 24 GiB" in small["7B full"].left_out
    assert small["7B qlora"].peers[0] == small["0.6B full"].peers[0] == "gym"
    large = list(cases(139 * GIB, quick=False))
    assert [case.way for case in large] == 2 * list(PEERS) and all(case.peers for case in large)
    assert {case.size for case in cases(139 * GIB, quick=True)} == {"0.6B"}


@pytest.mark.parametrize("way", ["full", "lora", "qlora"])
def test_what_llamafactory_is_told_are_its_keys(way, tmp_path):
    """As Gym reads such a file, in which a key that LLaMA-Factory has not is an error."""
    told = of_llamafactory("tiny", str(tmp_path), "rows", way, str(tmp_path / "out"), 3, 4, 64, way == "full")
    (tmp_path / "dataset_info.json").write_text('{"rows": {"file_name": "rows.json"}}')
    (tmp_path / "rows.json").write_text('[{"instruction": "a", "input": "", "output": "b"}]')
    packs = {"packing", "neat_packing"}  # Gym packs in any case, and says so
    recipe = load_recipe({key: value for key, value in told.items() if key not in packs})
    assert recipe.train.max_steps == 3 and recipe.train.batch_size == 4
    assert recipe.adapter.saves_model == (way == "full")
    assert (recipe.model.quantization is None) == (way != "qlora")
    own = Tuning(
        model="tiny", output=str(tmp_path), steps=3, rows=4, data={"sources": ["tiny-tasks"]}, recompute=way == "full",
        adapter=None if way == "full" else {"name": "lora", "rank": 16}, quantized=way == "qlora", kernels=["triton"],
    )  # fmt: skip
    ours = load_recipe(recipe_of(own))
    assert ours.adapter is None if way == "full" else type(ours.adapter) is type(recipe.adapter)
    assert type(ours.model.quantization) is type(recipe.model.quantization)
    assert ours.train.gradient_checkpointing == recipe.train.gradient_checkpointing == (way == "full")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, BENCHMARKS / "gpu.py", "--quick"], capture_output=True, text=True)
    assert done.returncode == 77 and "no GPU" in done.stderr and not done.stdout


WORKERS = {"full": supervised.gym, "qlora": supervised.gym, "grpo": rollouts.gym, "decode": generation.gym}


@pytest.fixture(scope="module")
def bench(data, tmp_path_factory):
    scale = Scale(length=64, rows=1, steps=2, warm=1, answers=8, prompt=24, answer=3, rounds=2, decoded=2)
    return Bench(tmp_path_factory.mktemp("gpu"), 1e12, scale)


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way != "decode")) for way in WORKERS])
def test_a_worker_does_in_small_what_it_does_on_a_gpu(bench, way):
    spec, figures = WAYS[way](bench, Case("miniature", way, ()), "gym")
    found = figures(WORKERS[way](spec))
    speed = found["answers_per_second" if way == "grpo" else "tokens_per_second"]
    assert speed > 0 and found["peak_gib"] > 0 and json.dumps(found)


def test_what_was_measured_is_kept_and_what_fails_or_has_no_time_is_said(tmp_path, capsys):
    class Runs:
        done: list[str] = []

        def run(self, case, peer):
            self.done.append(f"{case.size} {case.way} {peer}")
            if peer == "trl":
                raise SystemExit("trl failed\nTraceback\nOutOfMemoryError: 80 GiB")
            return {"tokens_per_second": 7}

    into, later = tmp_path / "gpu.json", time.monotonic() + 1e6
    planned = [Case("7B", "lora", ("gym", "gym fp8", "trl")), Case("7B", "qlora", ("gym",))]
    assert [peer for _, peer in chosen(planned, ["7B lora gym"])] == ["gym", "gym fp8"]
    runs = list(chosen(planned, []))
    assert len(runs) == 4 and not measure(Runs(), runs, into, time.monotonic()) and not into.exists()
    found = measure(Runs(), runs[1:], into, later)
    assert found["7B lora trl"] == "Traceback OutOfMemoryError: 80 GiB" and json.loads(into.read_text()) == found
    assert len(measure(Runs(), runs, into, later)) == 4
    assert Runs.done == [*found, "7B lora gym", "7B lora trl"], "a figure is not measured again, a failure is"
    assert "not begun" in capsys.readouterr().err
