"""fp16: the loss is scaled as torch and DeepSpeed scale it, a step that overflows changes nothing, a run resumes across it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gym_torch_bench import (
    SGD,
    Crash,
    Event,
    Memory,
    NextToken,
    make_run,
    metrics,
    same,
    samples,
    state,
    train,
    weights,
)
from gym_torch_two import in_two
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from gym_core import GymError, RecipeError, Train
from gym_core.ranks import Ranks
from gym_core.train import Scaling
from gym_optim.config import LOMO
from gym_torch import DDP, FSDP, TorchAlgorithm
from gym_torch.batch import Batch, padded
from gym_torch.loop.loss_scale import LossScale
from gym_torch.metrics import Metrics
from gym_torch.objective import Scores

OVERFLOWS = 2.0**20  #: a scale that gradients of the model of the tests do not bear
FP16: dict[str, Any] = {"precision": "fp16", "max_steps": 6, "learning_rate": 0.01, "keep_last": 100, "save_every": 1}


class Faint(NextToken):
    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        return 1e-7 * super().loss(policy, batch)[0], {}


class Fainting(TorchAlgorithm):
    """Next-token prediction that hardly counts."""

    objective: ClassVar[str] = f"{__name__}:Faint"


def scaled(**options: Any) -> dict[str, Any]:
    return {**FP16, "loss_scale": Scaling(**options)}


def series(output: Path, name: str) -> list[Any]:
    return [line.get(name) for line in metrics(output)]


def test_the_scale_is_that_of_torch() -> None:
    """In a run of steps some of whose gradients are not finite."""
    own = LossScale(Scaling(init_scale=2.0**10, growth_interval=3, min_loss_scale=2.0**-60))
    library = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    weight = nn.Parameter(torch.ones(2))
    optimizer, draws = torch.optim.SGD([weight], lr=0.0), torch.Generator().manual_seed(0)
    for _ in range(200):
        bad = float(torch.rand((), generator=draws)) < 0.2
        library.scale(weight.sum()).backward()
        assert own.scale == library.get_scale()
        weight.grad[1] = [1.0, math.inf, math.nan][int(bad) * (1 + int(own.scale) % 2)] * weight.grad[1]
        before = weight.grad.clone()
        library.step(optimizer)
        library.update()
        theirs, weight.grad = weight.grad.clone(), before
        own.unscale([weight])
        assert torch.equal(weight.grad, theirs) or bad
        assert own.overflowed() if bad else own.passed() is None
        weight.grad = None


def test_hysteresis_and_the_smallest_scale_are_those_of_deepspeed() -> None:
    """By its rules, told once more: a scale falls at the second overflow, and waits anew after it has risen."""
    own = LossScale(Scaling(init_scale=4.0, growth_interval=2, hysteresis=2))
    told, patience, last = 4.0, 2, -1
    for number, bad in enumerate([1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1]):
        if bad:
            told, patience = (max(told / 2, 1.0), patience) if patience == 1 else (told, patience - 1)
            last = number
        elif (number - last) % 2 == 0:
            told, patience = told * 2, 2
        assert own.overflowed() if bad else own.passed() is None
        assert own.scale == told, number
    low = LossScale(Scaling(init_scale=1.5))
    assert low.overflowed() and low.scale == 1.0
    assert not low.overflowed() and low.scale == 1.0


def test_a_run_is_that_of_transformers_autocast_and_torchs_scaler(model_path: Path, tmp_path: Path) -> None:
    """With a scale that is too large at first, clipping, two passes a step, and a learning rate that waits meanwhile."""
    options = {**scaled(init_scale=2.0**22), "accumulate": 2, "batch_size": 2, "max_grad_norm": 0.5}
    options |= {"max_steps": 24, "save_every": 100, "shuffle": False, "warmup": 3.0}
    train(make_run(model_path, tmp_path, Memory(rows=8), sections={"optimizer": SGD()}, **options))
    model = AutoModelForCausalLM.from_pretrained(model_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    rows, taken, lines = samples(8), 0, metrics(tmp_path)
    for number, line in enumerate(lines):
        group = [rows[(4 * number + place) % 8] for place in range(4)]
        count = sum(int(each.trained[1:].sum()) for each in group)
        optimizer.param_groups[0]["lr"] = 0.01 * min((taken + 1) / 3, (24 - taken) / 21 if taken >= 3 else 1.0)
        total = 0.0
        for half in (group[:2], group[2:]):
            batch = padded(half)
            with torch.autocast("cpu", torch.float16):
                logits = model(input_ids=batch.tokens).logits.flatten(0, 1)[batch.target_index]
            loss = nn.functional.cross_entropy(logits.float(), batch.targets, reduction="sum") / count
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        overflowed = scaler.get_scale() < before
        assert line["learning_rate"] == pytest.approx(optimizer.param_groups[0]["lr"]), number
        assert line["loss_scale"] == scaler.get_scale(), number
        assert line["loss"] == pytest.approx(total, rel=2e-3), number
        assert ("grad_norm" in line) != overflowed
        if not overflowed:
            assert line["grad_norm"] == pytest.approx(float(norm), rel=1e-2), number
            taken += 1
    assert 2 <= lines[-1]["overflowed_steps"] == 24 - taken < 20
    record = json.loads((tmp_path / "run.json").read_text())["training"]
    assert (record["overflowed"], record["steps"], record["precision"]) == (24 - taken, 24, "fp16")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_loss_and_gradients_are_those_of_fp32_to_its_rounding(
    model_path: Path, tmp_path: Path, accumulate: int
) -> None:
    for precision in ("fp32", "fp16"):
        train(make_run(model_path, tmp_path / precision, precision=precision, accumulate=accumulate, max_grad_norm=0.1))
    for name, bound in (("loss", 2e-3), ("grad_norm", 1e-2)):
        rounded, exact = (series(tmp_path / each, name) for each in ("fp16", "fp32"))
        assert rounded != exact and rounded == pytest.approx(exact, rel=bound)
    assert all(weight.dtype == torch.float32 for weight in weights(tmp_path / "fp16").values())
    assert series(tmp_path / "fp16", "loss_scale") == [65536.0] * 10
    assert not {"loss_scale", "overflowed_steps"} & metrics(tmp_path / "fp32")[0].keys()


def test_small_gradients_do_not_vanish(model_path: Path, tmp_path: Path) -> None:
    """As they do without a scale: of a loss so small that its gradients lie below the smallest number of fp16."""
    norms = {}
    for scale, precision in ((0.0, "fp32"), (1.0, "fp16"), (2.0**30, "fp16")):
        options = {**(scaled(init_scale=scale) if scale else FP16), "max_steps": 1, "precision": precision}
        train(make_run(model_path, tmp_path / str(scale), algorithm=Fainting(), **options))
        norms[scale] = metrics(tmp_path / str(scale))[0]["grad_norm"]
    assert norms[2.0**30] == pytest.approx(norms[0.0], rel=1e-2)
    assert norms[1.0] < 0.9 * norms[0.0]


def test_a_run_says_at_its_end_how_many_steps_updated_nothing(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short one may end before the scale is small enough, with the weights that it began with."""
    train(make_run(model_path, tmp_path / "none", **{**scaled(init_scale=2.0**100), "max_steps": 2}))
    assert "2 of them updated nothing" in capsys.readouterr().err
    train(make_run(model_path, tmp_path / "all", **{**FP16, "max_steps": 2}))
    assert "updated nothing" not in capsys.readouterr().err


def test_a_step_that_overflows_changes_neither_weights_nor_optimizer(model_path: Path, tmp_path: Path) -> None:
    """Also the first one, and one in the middle of a run; the scale is halved, and the learning rate waits."""
    train(make_run(model_path, tmp_path, **scaled(init_scale=2 * OVERFLOWS, growth_interval=1)))
    scales = [2 * OVERFLOWS, *series(tmp_path, "loss_scale")]
    fell = [number for number in range(1, 7) if scales[number] == scales[number - 1] / 2]
    rose = [number for number in range(1, 7) if scales[number] == scales[number - 1] * 2]
    assert 1 in fell and set(rose) & set(range(2, 6)) and sorted([*fell, *rose]) == list(range(1, 7))
    assert any(number > min(rose) for number in fell), scales
    assert series(tmp_path, "overflowed_steps")[-1] == len(fell)
    held = [load_file(model_path / "model.safetensors")]
    held += [load_file(tmp_path / f"checkpoints/step-{number:08d}/model.safetensors") for number in range(1, 7)]
    for number in range(1, 7):
        assert same(held[number - 1], held[number]) == (number in fell)
        assert (metrics(tmp_path)[number - 1].get("grad_norm") is None) == (number in fell)
        if number in fell and number > 1:
            (before, plain), (after, other) = state(tmp_path, number - 1), state(tmp_path, number)
            assert same(before, after) and plain["states"] == other["states"]
    assert state(tmp_path, 1)[0] == {}
    rates = series(tmp_path, "learning_rate")
    assert all(rates[number] == rates[number - 1] for number in fell if number < 6)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_crash_beside_a_step_that_overflows_changes_nothing(model_path: Path, tmp_path: Path, step: int) -> None:
    options = scaled(init_scale=2 * OVERFLOWS, growth_interval=2, hysteresis=2) | {"save_every": 2, "log_every": 2}
    train(make_run(model_path, tmp_path / "whole", **options))
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path / "cut", sections={"callbacks": (Event(step=step),)}, **options))
    train(make_run(model_path, tmp_path / "cut", **options))
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert same(state(tmp_path / "cut", 6)[0], state(tmp_path / "whole", 6)[0])
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    found = [
        json.loads((tmp_path / each / "checkpoints/step-00000006/state.json").read_text())["loss_scale"]
        for each in ("cut", "whole")
    ]
    assert found[0] == found[1] and metrics(tmp_path / "whole")[-1]["overflowed_steps"] >= 2


def shared(ranks: Ranks, rank: int, model: Path, output: Path, distributed: Any, options: dict[str, Any]) -> None:
    run = make_run(model, output / str(rank), sections={"distributed": distributed}, **options)
    run.ranks = ranks
    train(run)


@pytest.mark.parametrize("distributed", [DDP(), FSDP()], ids=["ddp", "fsdp"])
def test_two_processes_agree_on_which_steps_overflow(model_path: Path, tmp_path: Path, distributed: Any) -> None:
    """What each adds to the mean of both is twice as large as its part of one process's gradient, and bears half the scale."""
    options = {**FP16, "batch_size": 2, "accumulate": 2, "save_every": 100}
    scales = [Scaling(init_scale=scale, growth_interval=2) for scale in (OVERFLOWS, OVERFLOWS / 2)]
    train(make_run(model_path, tmp_path / "alone", loss_scale=scales[0], **options))
    in_two(tmp_path, shared, model_path, tmp_path / "two", distributed, options | {"loss_scale": scales[1]})
    alone, both = tmp_path / "alone", tmp_path / "two" / "0"
    assert series(both, "overflowed_steps")[-1] == series(alone, "overflowed_steps")[-1] >= 1
    assert series(both, "loss_scale") == [scale / 2 for scale in series(alone, "loss_scale")]
    assert series(both, "loss") == pytest.approx(series(alone, "loss"), rel=2e-3)
    for name, weight in weights(both).items():
        torch.testing.assert_close(weight, weights(alone)[name], rtol=0, atol=5e-3)


def test_gradients_that_no_scale_makes_finite_are_named(model_path: Path, tmp_path: Path) -> None:
    options = scaled(init_scale=OVERFLOWS, min_loss_scale=OVERFLOWS)
    with pytest.raises(GymError, match=r"gradient of \S+ is not finite, in fp16, which ends at 65504.*row "):
        train(make_run(model_path, tmp_path, **options))


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(model_path: Path, tmp_path: Path) -> None:
    """What overflows in the forward pass would overflow with any."""
    model, rows = AutoModelForCausalLM.from_pretrained(model_path), samples(24)
    token = int(rows[3].tokens[1])
    hit = [each.id for each in rows if token in each.tokens[:-1]]
    with torch.no_grad():  # a direction that one token alone has, and gates that are too large for it
        table = model.get_input_embeddings().weight
        table[:, 0], table[token] = 0.0, 0.0
        table[token, 0] = 1.0
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight[0] = 0.0
            if "gate_proj" in name or "up_proj" in name:
                weight[:, 0] = 3e4
    shutil.copytree(model_path, tmp_path / "large")
    model.save_pretrained(tmp_path / "large")
    with pytest.raises(GymError, match=r"is not finite, in fp16.*samples: row") as caught:
        train(make_run(tmp_path / "large", tmp_path / "run", **FP16))
    assert any(each in str(caught.value) for each in hit)
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(1e38)
    model.save_pretrained(tmp_path / "large")
    with pytest.raises(GymError, match="logits that are not finite"):
        train(make_run(tmp_path / "large", tmp_path / "never", **FP16))


@pytest.mark.gpu
def test_a_gpu_scales_as_a_cpu_does(model_path: Path, tmp_path: Path) -> None:
    """Loss and gradients are those of fp32, what overflows changes nothing, and a run goes on across it bit for bit."""
    for precision in ("fp32", "fp16"):
        train(make_run(model_path, tmp_path / precision, precision=precision, max_grad_norm=0.1))
    for name, bound in (("loss", 5e-3), ("grad_norm", 3e-2)):
        assert series(tmp_path / "fp16", name) == pytest.approx(series(tmp_path / "fp32", name), rel=bound)
    assert series(tmp_path / "fp16", "overflowed_steps")[-1] == 0
    options = scaled(init_scale=2 * OVERFLOWS, growth_interval=1)
    train(make_run(model_path, tmp_path / "whole", **options))
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path / "cut", sections={"callbacks": (Event(step=3),)}, **options))
    train(make_run(model_path, tmp_path / "cut", **options))
    assert series(tmp_path / "cut", "loss_scale") == series(tmp_path / "whole", "loss_scale")
    assert series(tmp_path / "whole", "overflowed_steps")[0] == 1
    first = load_file(tmp_path / "whole/checkpoints/step-00000001/model.safetensors")
    assert same(first, load_file(model_path / "model.safetensors"))


def test_what_cannot_be_is_refused_by_name(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="LOMO works in the backward pass"):
        train(make_run(model_path, tmp_path, sections={"optimizer": LOMO()}, **FP16 | {"max_grad_norm": 0.0}))
    with pytest.raises(ValueError, match="loss_scale is for fp16"):
        Train(precision="bf16", loss_scale=Scaling(init_scale=2.0))
    with pytest.raises(ValueError, match="init_scale is below"):
        Scaling(init_scale=2.0, min_loss_scale=4.0)
