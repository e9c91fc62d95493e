"""The loop: one denominator for a step, however it is cut; nothing is updated that is not finite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gym_torch_bench import (
    SGD,
    VOCABULARY,
    Counting,
    Memory,
    NextToken,
    Samples,
    furthest,
    make_run,
    metrics,
    same,
    samples,
    train,
    weights,
)
from gym_torch_two import in_two, losses
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM, TrainingArguments

from gym_core import DataError, GymError, RecipeError
from gym_core.ranks import Ranks
from gym_optim.config import Constant
from gym_testkit import families
from gym_torch import FSDP, EarlyStopping
from gym_torch.batch import padded
from gym_torch.distributed.accelerator import new_accelerator
from gym_torch.distributed.ddp import Replicated
from gym_torch.loop.lr_schedule import schedule
from gym_torch.loop.step_batches import reseed
from gym_torch.loop.unreached import unreached
from gym_torch.policy import Policy


def trained(model: Path, output: Path, **options: Any) -> dict[str, torch.Tensor]:
    sections = {"optimizer": SGD(), **options.pop("sections", {})}
    settings = {"learning_rate": 0.5, "max_steps": 3, **options}
    if "batch_tokens" in settings:
        settings["batch_size"] = None
    train(make_run(model, output, settings.pop("data", None), sections=sections, **settings))
    return weights(output)


def test_loss_and_gradient_agree_with_the_formula_in_float64(model_path: Path) -> None:
    group = [samples(5)[index] for index in range(5)]
    model = AutoModelForCausalLM.from_pretrained(model_path)
    exact = AutoModelForCausalLM.from_pretrained(model_path).double()
    loss, _ = NextToken(None).loss(Policy(model), padded(group))
    loss.backward()
    wanted = torch.zeros((), dtype=torch.float64)
    for sample in group:
        logits = exact(input_ids=torch.tensor([sample.tokens.tolist()])).logits[0]
        for position in range(1, len(sample.tokens)):
            if sample.trained[position]:
                wanted = wanted - logits[position - 1].log_softmax(0)[int(sample.tokens[position])]
    wanted.backward()
    assert abs(loss.item() / wanted.item() - 1) < 1e-6
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() < 1e-5 * theirs.grad.norm()


def test_sixteen_at_once_and_one_by_one_are_the_same(model_path: Path, tmp_path: Path) -> None:
    cuts = [(16, 1), (1, 16), (4, 4)]
    found = [
        trained(model_path, tmp_path / f"{size}x{times}", batch_size=size, accumulate=times, max_grad_norm=0.5)
        for size, times in cuts
    ]
    start = load_file(model_path / "model.safetensors")
    assert furthest(found[0], start) > 1e-2
    assert all(furthest(found[0], other) < 2e-6 for other in found[1:])
    for size, times in cuts[1:]:
        for ours, theirs in zip(metrics(tmp_path / f"{size}x{times}"), metrics(tmp_path / "16x1"), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)


def test_metrics_are_divided_by_what_they_count_and_the_largest_is_kept(model_path: Path, tmp_path: Path) -> None:
    trained(model_path, tmp_path / "each", batch_size=4, accumulate=4, data=Memory(rows=16, held_out=5), eval_every=2)
    trained(model_path, tmp_path / "window", batch_size=16, log_every=3, data=Memory(rows=16))
    model = AutoModelForCausalLM.from_pretrained(model_path)
    batch = padded([samples(16)[index] for index in range(16)])
    log_probs = Policy(model)(batch).detach()
    lines = metrics(tmp_path / "each")
    assert lines[0]["likelihood"] == pytest.approx(float(log_probs.exp().mean()), rel=1e-5)
    assert lines[0]["by_sample"] == pytest.approx(float(log_probs.exp().sum()) / 16, rel=1e-5)
    assert lines[0]["surprise"] == pytest.approx(float(-log_probs.min()), rel=1e-5)
    (window,) = metrics(tmp_path / "window")
    steps = [line for line in lines if "loss" in line]
    assert window["by_sample"] == pytest.approx(sum(line["by_sample"] for line in steps) / 3, rel=1e-4)
    assert window["surprise"] == pytest.approx(max(line["surprise"] for line in steps), rel=1e-4)
    final = Policy(AutoModelForCausalLM.from_pretrained(tmp_path / "each" / "model"))
    held_out = final(padded([samples(5, seed=1)[index] for index in range(5)])).detach()
    measured = [line for line in lines if "eval_loss" in line][-1]
    assert measured["eval_by_sample"] == pytest.approx(float(held_out.exp().sum()) / 5, rel=1e-4)
    assert measured["eval_surprise"] == pytest.approx(float(-held_out.min()), rel=1e-4)
    assert not any(name.endswith("of_nothing") for line in [*lines, window] for name in line), "it has no mean"


def test_the_gradient_of_a_step_is_the_same_however_it_is_cut(model_path: Path, tmp_path: Path) -> None:
    """One step of plain descent, so long that the weights before it are lost in rounding, leaves the gradient."""
    settings = {"max_steps": 1, "warmup": 0.0, "learning_rate": 1e6, "max_grad_norm": 0.0}
    gradients = []
    for size, times in [(16, 1), (1, 16), (4, 4)]:
        moved = trained(model_path, tmp_path / f"{size}x{times}", batch_size=size, accumulate=times, **settings)
        gradients.append(torch.cat([weight.flatten() for weight in moved.values()]))
    for other in gradients[1:]:
        assert float((gradients[0] - other).norm() / gradients[0].norm()) < 1e-6


def test_batches_of_tokens_and_of_samples_are_the_same_step(model_path: Path, tmp_path: Path) -> None:
    data = Memory(rows=8)
    tokens = int(samples(8).lengths.sum())
    whole = trained(model_path, tmp_path / "a", data=data, batch_size=8)
    budget = {"batch_tokens": -(-tokens // 4), "accumulate": 4}  # all eight fit into a step, and no ninth
    assert furthest(whole, trained(model_path, tmp_path / "b", data=data, **budget)) < 2e-6


def test_gradients_are_clipped_to_the_norm_asked_for(model_path: Path, tmp_path: Path) -> None:
    start = load_file(model_path / "model.safetensors")
    settings = {"max_steps": 1, "warmup": 0.0, "learning_rate": 1.0}
    moved = {
        norm: trained(model_path, tmp_path / str(norm), max_grad_norm=norm, **settings) for norm in (0.0, 0.5, 1e9)
    }
    lengths = {
        norm: sum(((found[name] - start[name]) ** 2).sum() for name in start) ** 0.5 for norm, found in moved.items()
    }
    assert lengths[0.5] == pytest.approx(0.5, rel=1e-4)
    assert lengths[0.0] == pytest.approx(metrics(tmp_path / "0.5")[0]["grad_norm"], rel=1e-4)
    assert same(moved[0.0], moved[1e9])


def test_the_learning_rate_follows_warm_up_and_schedule(model_path: Path, tmp_path: Path) -> None:
    trained(model_path, tmp_path, max_steps=6, warmup=2.0, learning_rate=1.0)
    assert [line["learning_rate"] for line in metrics(tmp_path)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_a_warm_up_below_one_is_a_share_of_the_steps(model_path: Path, tmp_path: Path) -> None:
    trained(model_path, tmp_path, max_steps=8, warmup=0.5, learning_rate=1.0)
    assert [line["learning_rate"] for line in metrics(tmp_path)[:4]] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("share", [0.01, 0.03, 0.05, 0.07, 0.1, 0.2, 0.5])
def test_a_share_of_warm_up_has_the_steps_that_transformers_gives_it(share: float, tmp_path: Path) -> None:
    asked = TrainingArguments(warmup_steps=share, report_to="none")
    recipe = make_run(tmp_path, tmp_path, warmup=share, sections={"scheduler": Constant()}).recipe
    for total in (1, 9, 12, 30, 91, 100):
        factor = schedule(recipe, total)
        risen = next(step for step in range(total) if factor(step) == 1.0)  # 0 for one step as for none
        assert risen == max(0, asked.get_warmup_steps(total) - 1), (total, share)


def test_a_seed_is_a_trajectory(model_path: Path, tmp_path: Path) -> None:
    first, again, other = (
        trained(model_path, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert same(first, again)
    assert not same(first, other)


def test_every_step_and_process_has_random_numbers_of_its_own() -> None:
    drawn = []
    for seed, step, rank in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]:
        reseed(seed, step, rank)
        drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[4]
    assert len(set(drawn)) == 4


def test_bf16_computes_over_fp32_weights(model_path: Path, tmp_path: Path) -> None:
    exact = trained(model_path, tmp_path / "fp32")
    rounded = trained(model_path, tmp_path / "bf16", precision="bf16")
    assert all(weight.dtype == torch.float32 for weight in rounded.values())
    start = load_file(model_path / "model.safetensors")
    assert 0 < furthest(exact, rounded) < 0.1 * furthest(exact, start)


def test_evaluation_measures_the_same_thing_and_disturbs_nothing(model_path: Path, tmp_path: Path) -> None:
    without = trained(model_path, tmp_path / "without")
    evaluated = trained(model_path, tmp_path / "with", data=Memory(held_out=5), eval_every=2)
    assert same(without, evaluated)
    lines = [line for line in metrics(tmp_path / "with") if "eval_loss" in line]
    assert [line["step"] for line in lines] == [2, 3]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "with" / "model")
    held_out = samples(5, seed=1)
    batch = padded([held_out[index] for index in range(5)])
    wanted = -Policy(model)(batch).mean().item()
    assert lines[-1]["eval_loss"] == pytest.approx(wanted, rel=1e-5)


def test_weights_that_overflow_are_named(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(GymError, match=r"gradient of model\.\S+ is not finite|weights model\.\S+ hold") as caught:
        trained(model_path, tmp_path, learning_rate=1e30, max_steps=9)
    assert "row " in str(caught.value) or "weights" in str(caught.value)
    assert not (tmp_path / "model").exists()


class Poisoned(NextToken):
    """Gives samples that start with a certain token a loss that is not a number."""

    def loss(self, policy: Any, batch: Any) -> Any:
        total, sums = super().loss(policy, batch)
        if self.config.token in [int(batch.tokens[part.row, part.start]) for part in batch.segments]:
            total = total * float("nan")
        return total, sums


def test_a_sample_that_makes_the_loss_nan_is_named_and_nothing_is_updated(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = samples(24)
    culprit = data[13]
    monkeypatch.setattr("gym_torch_bench.NextToken", type("P", (Poisoned,), {}))
    monkeypatch.setattr(
        Poisoned,
        "__init__",
        lambda self, config, layout: vars(self).update(
            config=type("C", (), {"token": int(culprit.tokens[0])}), layout=layout
        ),
    )
    shared = [sample.id for sample in data.samples if sample.tokens[0] == culprit.tokens[0]]
    with pytest.raises(GymError, match="is not finite") as caught:
        trained(model_path, tmp_path, batch_size=24, save_every=1)
    assert all(name in str(caught.value) for name in shared)
    assert str(caught.value).count("row ") == len(shared)
    assert "the gradient of model." in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4
    assert not (tmp_path / "model").exists()


class Overflown(NextToken):
    """Has one weight get a gradient that is not finite."""

    factor = float("nan")
    hit = "model.model.layers.1.mlp.up_proj.weight"

    def loss(self, policy: Any, batch: Any) -> Any:
        policy.get_parameter(self.hit).register_hook(lambda gradient: gradient * self.factor)
        return super().loss(policy, batch)


class Infinite(Overflown):
    """Likewise."""

    factor = float("inf")


class Overflowing(Counting):
    objective: ClassVar[str] = f"{__name__}:Overflown"


class Growing(Counting):
    objective: ClassVar[str] = f"{__name__}:Infinite"


@pytest.mark.parametrize("algorithm", [Overflowing(), Growing()], ids=["nan", "inf"])
def test_the_weight_is_named_whose_gradient_is_not_finite(model_path: Path, tmp_path: Path, algorithm: Any) -> None:
    """Clipping by such a norm would make NaN of those of all others."""
    with pytest.raises(GymError, match=rf"the gradient of {Overflown.hit} is not finite"):
        train(make_run(model_path, tmp_path, algorithm=algorithm))


class Odd(NextToken):
    """Gives one sample a loss that is not a number."""

    def loss(self, policy: Any, batch: Any) -> Any:
        total, sums = super().loss(policy, batch)
        return total * (float("nan") if "row 5" in batch.ids else 1.0), sums


class OddAlgorithm(Counting):
    objective: ClassVar[str] = f"{__name__}:Odd"


def member(ranks: Ranks, rank: int, model: Path, root: Path) -> None:
    """Be one of two processes that each hold a part of a model."""
    sections = {"distributed": FSDP()}
    run = make_run(model, root / str(rank), algorithm=OddAlgorithm(), sections=sections, batch_size=12, accumulate=2)
    run.ranks = ranks
    with pytest.raises(GymError, match=r"is not finite; samples: row 5\n"):
        train(run)


def test_a_sample_is_not_blamed_for_that_of_another_process(model_path: Path, tmp_path: Path) -> None:
    """Where each holds a part of the model, what one sample does to gradients reaches all of them."""
    in_two(tmp_path, member, model_path, tmp_path)


def test_a_step_without_anything_to_learn_is_an_error(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = Samples([type(sample)(sample.id, sample.tokens, sample.trained & False) for sample in samples(4).samples])
    monkeypatch.setattr("gym_torch_bench.samples", lambda *args, **kwargs: blank)
    with pytest.raises(DataError, match="nothing to learn from: row"):
        trained(model_path, tmp_path)


def test_early_stopping_ends_and_says_why(model_path: Path, tmp_path: Path) -> None:
    stop = EarlyStopping(patience=2, threshold=100.0)
    trained(
        model_path,
        tmp_path,
        data=Memory(held_out=4),
        sections={"callbacks": (stop,)},
        eval_every=1,
        log_every=50,
        max_steps=9,
    )
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines if "eval_loss" in line] == [1, 2, 3]
    assert "eval_loss" in json.loads((tmp_path / "run.json").read_text())["training"]["stopped"]


def test_early_stopping_without_evaluations_is_an_error(model_path: Path, tmp_path: Path) -> None:
    stop = {"callbacks": (EarlyStopping(),)}
    with pytest.raises(GymError, match="eval"):
        trained(model_path, tmp_path / "once", data=Memory(held_out=4), sections=stop)
    with pytest.raises(RecipeError, match="nothing is held out") as caught:
        trained(model_path, tmp_path / "never", sections=stop, eval_every=1)
    assert caught.value.problems[0].key == "callbacks"


def test_what_text_does_not_reach_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which tokens an indexer chooses has no gradient."""
    model = families.build("deepseek_v32")
    model.resize_token_embeddings(VOCABULARY)
    model.save_pretrained(tmp_path / "model")
    run = make_run(tmp_path / "model", tmp_path / "run", max_steps=2)
    wasted = sum(weight.numel() for name, weight in model.named_parameters() if "indexer" in name)
    train(run)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "no gradient" in line)
    assert f"came to {wasted:,} of {sum(weight.numel() for weight in model.parameters()):,} parameters: " in line
    assert ": model.model.layers.0.self_attn.indexer, model.model.layers.1.self_attn.indexer, model" in line


@pytest.mark.parametrize(
    "how", [{"max_steps": 4}, {"max_steps": 3, "accumulate": 2, "gradient_checkpointing": True}], ids=["", "again"]
)
def test_two_processes_go_on_where_one_does(tmp_path: Path, how: dict[str, object]) -> None:
    """With ddp too, what no gradient comes to stays as it is."""
    model = families.build("deepseek_v32")
    model.resize_token_embeddings(VOCABULARY)
    model.save_pretrained(tmp_path / "model")
    train(make_run(tmp_path / "model", tmp_path / "one", **how))
    in_two(tmp_path, beside, tmp_path / "model", tmp_path / "two", how)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


def beside(ranks: Ranks, rank: int, model: Path, output: Path, how: dict[str, object]) -> None:
    """Be one of two processes that each hold all of a model."""
    run = make_run(model, output if rank == 0 else output.with_name("beside"), **how)
    run.ranks = ranks
    train(run)


def opt(folder: Path, layerdrop: float) -> Path:
    """Write a model that leaves out layers at random."""
    config = OPTConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=3, ffn_dim=16, num_attention_heads=2)
    config.update({"word_embed_proj_dim": 16, "max_position_embeddings": 64, "layerdrop": layerdrop, "dropout": 0.1})
    torch.manual_seed(0)
    OPTForCausalLM(config).save_pretrained(folder)
    return folder


def test_layers_that_are_left_out_at_random_hold_no_process_up(tmp_path: Path) -> None:
    """Not in the first step, in which a gradient comes to all, but in one of the others."""
    model, how = opt(tmp_path / "model", 0.1), {"max_steps": 6, "accumulate": 2}
    train(make_run(model, tmp_path / "one", **how))
    in_two(tmp_path, beside, model, tmp_path / "two", how)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


def in_shards(ranks: Ranks, rank: int, model: Path, root: Path) -> None:
    """Be one of two processes that each hold a part of a model with layers that are left out at random."""
    run = make_run(model, root / str(rank), sections={"distributed": FSDP()})
    run.ranks = ranks
    with pytest.raises(GymError, match=r"layerdrop of the model is 0\.1: each process leaves out other layers"):
        train(run)


def test_layers_that_are_left_out_at_random_are_in_no_shards(tmp_path: Path) -> None:
    in_two(tmp_path, in_shards, opt(tmp_path / "model", 0.1), tmp_path)


class Mixture(nn.Module):
    """Layers of experts, of which a batch chooses one each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(2, 2) for _ in range(3)) for _ in range(2))

    def forward(self, chosen: tuple[int, ...], values: Tensor) -> Tensor:
        for layer, expert in zip(self.layers, chosen, strict=True):
            values = layer[expert](values)
        return values.sum()


STEPS = [[(0, 0), (1, 1), (2, 2), (0, 2)], [(0, 0), (0, 0), (0, 0), (0, 0)], [(1, 0), (2, 0), (2, 1), (0, 2)]]


def chosen_apart(ranks: Ranks, rank: int) -> None:
    """Be one of two processes whose batches choose other experts, all of them in the first step."""
    spread = Replicated(new_accelerator())
    torch.manual_seed(0)
    alone, ours = Mixture(), Mixture()
    ours.load_state_dict(alone.state_dict())
    wrapped = spread.wrap(ours)  # type: ignore[arg-type]
    for number, step in enumerate([STEPS[0], *STEPS]):
        values = [torch.full([2], float(number + place)) for place in range(4)]
        for each, chosen in zip(values, step, strict=True):
            (alone(chosen, each) / 2).backward()
        for place in (rank, rank + 2):
            with spread.backward(wrapped, last=place > 1):
                wrapped(step[place], values[place]).backward()
        for one, two in zip(alone.parameters(), ours.parameters(), strict=True):
            assert (one.grad is None) == (two.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(two.grad, one.grad)
            one.grad = two.grad = None


def test_experts_that_a_later_step_does_not_choose_hold_no_process_up(tmp_path: Path) -> None:
    in_two(tmp_path, chosen_apart)


ROUTED = [f"layers.{layer}.experts.{expert}.{name}" for layer in (0, 1) for expert in (0, 1) for name in ("up", "down")]


@pytest.mark.parametrize(
    ("trained", "reached", "left"),
    [
        (ROUTED, ROUTED[:2] + ROUTED[-2:], []),
        (ROUTED, ROUTED[:1] + ROUTED[2:], ROUTED[1:2]),
        (ROUTED, ROUTED[:4], []),  # a layer may be dropped
        ([*ROUTED, "layers.1.router"], ROUTED[:4], [*ROUTED[4:], "layers.1.router"]),
        (["layers.0.k", "layers.0.q", "layers.1.k", "layers.1.q"], ["layers.0.k", "layers.0.q", "layers.1.q"], ["layers.1.k"]),
        (["vision.0.k", "vision.1.k", "text.0.k"], ["text.0.k"], ["vision.0.k", "vision.1.k"]),
    ],
)  # fmt: skip
def test_what_a_router_did_not_choose_is_not_called_unreached(
    trained: list[str], reached: list[str], left: list[str]
) -> None:
    assert unreached(trained, reached) == left
