"""Supervised fine-tuning and pre-training, from rows to a trained model, through the kernel."""

from __future__ import annotations

import json
import math
import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.trainer_pt_utils import LabelSmoother

from gym_core import GymError, execute, load_recipe
from gym_data import DatasetConfig, File
from gym_data.templates import Qwen3
from gym_sft import SFT, Pretrain
from gym_sft.distillation import divergence
from gym_sft.naive_losses import next_token
from gym_sft.objective import NextToken, Smoothed
from gym_sft.objective import next_token as smoothed_or_not
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.oracle import compare
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED
from gym_torch.policy import Policy

torch.set_num_threads(1)


@pytest.mark.parametrize(
    "algorithm",
    [SFT(), Pretrain(), SFT(label_smoothing=0.2), Pretrain(label_smoothing=0.9), SFT(token_metrics=True)],
    ids=str,
)
def test_loss_and_gradient_agree_with_the_formula_in_float64(bench: Bench, algorithm: Any) -> None:
    recipe = load_recipe(bench.recipe("sft" if algorithm.rows == "conversation" else "pretrain", algorithm.rows))
    assert recipe.data is not None
    data = recipe.data.build(tokenizer=bench.model(), rows=algorithm.rows, seed=0).train
    examples = [data[number] for number in range(min(4, len(data)))]
    model = AutoModelForCausalLM.from_pretrained(bench.model())
    exact = AutoModelForCausalLM.from_pretrained(bench.model()).double()
    objective = smoothed_or_not(algorithm)
    batch = objective.collate(examples)
    loss, _ = objective.loss(objective.policy(model), batch)
    loss.backward()
    wanted = next_token(algorithm, exact, examples)
    wanted.backward()
    assert objective.weight(batch) == sum(int(example.trained[1:].sum()) for example in examples)
    assert abs(loss.item() / wanted.item() - 1) < 1e-6
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-5 * theirs.grad.norm()


@pytest.mark.parametrize(
    "options",
    [
        {"name": "dft"},
        {"name": "eaft", "alpha": 0.7},
        {"name": "asft", "alpha": 0.3},
        *({"name": "gkd", "beta": beta, "temperature": 0.7, "ftx": 0.4} for beta in (0.0, 0.3, 1.0)),
    ],
    ids=str,
)
def test_weighted_losses_agree_with_their_formulas_in_float64(bench: Bench, options: dict[str, Any]) -> None:
    value, gradient = compare(load_recipe(bench.recipe(options)), bench)
    assert value <= 1e-5 and gradient <= 1e-4


def test_an_anchor_of_nothing_is_dft_and_its_reference_the_model_before_training(bench: Bench) -> None:
    made: list[Any] = [{"name": "asft", "alpha": 0}, "dft"]
    anchored, free = (
        bench.run(bench.recipe(each, learning_rate=0.003), str(n), max_steps=3) for n, each in enumerate(made)
    )
    assert anchored.series("loss") == pytest.approx(free.series("loss"), rel=1e-5)
    kl = anchored.series("kl")
    assert kl[0] == pytest.approx(0, abs=1e-6) and kl[-1] > 1e-5


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("head", ["plain", "biased", "frozen"])
def test_smoothed_labels_are_those_of_transformers(bench: Bench, packs: bool, head: str) -> None:
    """Also in a row with others, under a head that is not a product alone, and beside a frozen one; so is its evaluation."""
    recipe = load_recipe(bench.recipe("sft"))
    assert recipe.data is not None
    data = recipe.data.build(tokenizer=bench.model(), rows="conversation", seed=0).train
    examples = [data[number] for number in range(5)]
    model, other = (AutoModelForCausalLM.from_pretrained(bench.model()) for _ in range(2))
    for each in (model, other):
        projection = each.get_output_embeddings()
        if head == "biased":
            projection.bias = torch.nn.Parameter(torch.linspace(-1, 1, projection.out_features))
        projection.weight.requires_grad_(head != "frozen")
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(each.tokens.astype(np.int64)) for each in examples], True)
    labels = torch.full_like(tokens, -100)
    for row, each in enumerate(examples):
        labels[row, : len(each.tokens)][torch.tensor(each.trained)] = tokens[row, : len(each.tokens)][
            torch.tensor(each.trained)
        ]
    wanted = LabelSmoother(0.1)({"logits": other(tokens).logits}, labels, shift_labels=True)
    wanted.backward()
    assert layout_for(model) is PACKED
    if not packs:
        model.set_attn_implementation("sdpa")
    objective = Smoothed(SFT(label_smoothing=0.1), PACKED if packs else PADDED)
    batch = objective.collate(examples)
    loss, metrics = objective.loss(objective.policy(model), batch)
    (loss / objective.weight(batch)).backward()
    assert loss.item() / objective.weight(batch) == pytest.approx(wanted.item(), rel=1e-6)
    plain = NextToken(SFT()).loss(Policy(model), batch)[0]
    assert metrics["nll_loss"].numbers()[0].item() == pytest.approx(plain.item(), rel=1e-6) != loss.item()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            assert (ours.grad - theirs.grad).norm() <= 1e-5 * theirs.grad.norm()


def test_an_evaluation_has_smoothed_labels_as_training_has(bench: Bench) -> None:
    recipe = bench.recipe({"name": "sft", "label_smoothing": 0.3}, max_steps=2, learning_rate=0.0)
    recipe["data"] = {"sources": recipe["data"], "validation": 3}
    done = bench.run(recipe)
    path = done.outcome.artifact.path
    held_out = load_recipe(recipe).data.build(tokenizer=path, rows="conversation", seed=0).validation  # type: ignore[union-attr]
    exact = AutoModelForCausalLM.from_pretrained(path).double()
    count = sum(int(each.trained[1:].sum()) for each in held_out)
    smoothed, plain = (next_token(SFT(label_smoothing=share), exact, held_out).item() / count for share in (0.3, 0.0))
    assert done.series("eval_loss")[-1] == pytest.approx(smoothed, rel=1e-5)
    assert done.series("eval_nll_loss")[-1] == pytest.approx(plain, rel=1e-5)
    assert done.series("nll_loss")[0] < done.series("loss")[0]


def thoughtful(bench: Bench) -> tuple[DatasetConfig, Path]:
    """Return conversations with thoughts, which Qwen3's template drops from earlier turns, and a model that knows its tokens."""
    turns = [
        ("user", f"{n} and 1?") if n % 2 == 0 else ("assistant", f"<think>\nhm {n}\n</think>\n\n{n}") for n in range(6)
    ]
    rows = [{"messages": [{"role": role, "content": text} for role, text in turns[: 2 * (n + 1)]]} for n in range(3)]
    data = DatasetConfig(sources=[File(path=str(bench.file(rows)))], template=Qwen3())
    return data, bench.model_for(Qwen3.needs)


@pytest.mark.parametrize("packs", [True, False])
def test_answers_that_share_what_came_before_are_learnt_as_if_apart(bench: Bench, packs: bool) -> None:
    data, path = thoughtful(bench)
    together = list(data.build(tokenizer=path, seed=0, branches=True).train)
    apart = list(data.build(tokenizer=path, seed=0).train)
    assert (len(together), len(apart)) == (3, 6)
    assert sum(len(each.tokens) for each in together) < 0.8 * sum(len(each.tokens) for each in apart)
    model, exact = (AutoModelForCausalLM.from_pretrained(path) for _ in range(2))
    assert layout_for(model) is PACKED
    if not packs:
        model.set_attn_implementation("sdpa")
    objective = NextToken(SFT(), PACKED if packs else PADDED)
    batch = objective.collate(together)
    loss, _ = objective.loss(Policy(model), batch)
    loss.backward()
    wanted = next_token(SFT(), exact.double(), apart)
    wanted.backward()
    assert objective.weight(batch) == sum(int(each.trained.sum()) for each in apart)
    assert abs(loss.item() / wanted.item() - 1) < 1e-6
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-5 * theirs.grad.norm()


def test_a_run_shares_what_came_before_and_says_what_it_saved(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    data, path = thoughtful(bench)
    recipe = bench.recipe("sft") | {"model": str(path)}
    recipe["data"] = {"sources": [data.sources[0].path], "template": "qwen3"}
    run = bench.run(recipe, max_steps=2)
    record = json.loads((run.outcome.output / "run.json").read_text())
    assert record["data"]["report"]["examples"] == 3
    assert "what these begin with is computed once" in capsys.readouterr().err
    assert record["training"]["samples"] == 2 * 8  # conversations, however many segments they are laid out in


def test_prompts_are_read_and_not_learnt(bench: Bench) -> None:
    recipe = load_recipe(bench.recipe("sft"))
    assert recipe.data is not None
    data = recipe.data.build(tokenizer=bench.model(), rows="conversation", seed=0).train
    assert all(0 < int(data[number].trained.sum()) < len(data[number].tokens) for number in range(len(data)))


def test_plain_text_is_learnt_whole(bench: Bench) -> None:
    recipe = load_recipe(bench.recipe("pretrain", "text"))
    assert recipe.data is not None
    data = recipe.data.build(tokenizer=bench.model(), rows="text", seed=0).train
    assert all(np.all(data[number].trained[1:]) for number in range(len(data)))


@pytest.mark.parametrize(("name", "shape"), [("sft", "conversation"), ("pretrain", "text")])
def test_it_learns(bench: Bench, name: str, shape: str) -> None:
    losses = bench.run(bench.recipe(name, shape), max_steps=12).series("loss")
    assert losses[-1] < 0.8 * losses[0]


def test_a_run_says_what_it_learnt_from(bench: Bench) -> None:
    output = bench.run(bench.recipe("sft")).outcome.output
    record = json.loads((Path(output) / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["data"]["fingerprint"]
    assert record["training"]["steps"] == 2


def test_the_package_names_what_it_brings() -> None:
    points = {(point.group, point.name) for point in distribution("gym-sft").entry_points}
    assert {("gym.algorithms", "sft"), ("gym.algorithms", "pretrain")} <= points


@pytest.mark.parametrize(("algorithm", "shape"), [("sft", "conversation"), ("pretrain", "text")])
def test_streamed_rows_go_on_where_a_run_ended_bit_for_bit(bench: Bench, algorithm: str, shape: str) -> None:
    recipe = bench.recipe(algorithm, shape, max_steps=9, batch_size=2) | {"scheduler": "constant"}
    recipe["data"] = {"sources": recipe["data"], "streaming": True, "buffer_size": 5, "validation": 2, "cutoff": 32}
    whole = bench.run(recipe, "whole")
    output = str(bench.path("longer"))
    for steps in (4, 9):
        made = execute(load_recipe({**recipe, "output": output, "train": {**recipe["train"], "max_steps": steps}}))
    assert bench.finished(made).series("loss") == whole.series("loss")
    assert fingerprint(made.artifact.path, ".safetensors") == fingerprint(whole.outcome.artifact.path, ".safetensors")
    reports = [
        json.loads((run / "run.json").read_text())["data"]["report"] for run in (made.output, whole.outcome.output)
    ]
    assert reports[0] == reports[1], "rows are counted over all processes of a run"


@pytest.mark.parametrize("algorithm", ["sft", "asft"])
def test_accuracy_is_that_of_greedy_tokens_averaged_over_answers(bench: Bench, algorithm: str) -> None:
    asked = {"name": algorithm, "compute_accuracy": True}
    recipe = bench.recipe(asked, max_steps=2, batch_size=2, learning_rate=0.0) | {"model": "tiny"}
    recipe["data"] = {"sources": recipe["data"], "validation": 3}
    done = bench.run(recipe)
    path = done.outcome.artifact.path
    prepared = load_recipe(recipe).data.build(tokenizer=path, rows="conversation", seed=0)  # type: ignore[union-attr]
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    shares = []
    for example in prepared.validation:
        guessed = model(torch.tensor(example.tokens[None].astype(np.int64))).logits[0].argmax(1)[:-1].numpy()
        shares.append((guessed == example.tokens[1:])[example.trained[1:]].mean())
    assert len(shares) == 3 and 0 < np.mean(shares) < 1
    assert done.series("eval_accuracy")[-1] == pytest.approx(np.mean(shares), abs=1e-9)


@pytest.mark.parametrize("name", ["sft", "dft"])
def test_what_is_said_of_tokens_is_that_of_plain_logits(bench: Bench, name: str) -> None:
    asked = {"name": name, "token_metrics": True}
    recipe = bench.recipe(
        asked, max_steps=2, batch_size=2, learning_rate=0.0, metric_for_best_model="mean_token_accuracy"
    ) | {"model": "tiny"}
    recipe["data"] = {"sources": recipe["data"], "validation": 3}
    done = bench.run(recipe)
    path = done.outcome.artifact.path
    prepared = load_recipe(recipe).data.build(tokenizer=path, rows="conversation", seed=0)  # type: ignore[union-attr]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
    right, unsure = [], []
    for example in prepared.validation:
        logits = model(torch.tensor(example.tokens[None].astype(np.int64))).logits[0, :-1][example.trained[1:]].detach()
        right += (logits.argmax(1).numpy() == example.tokens[1:][example.trained[1:]]).tolist()
        unsure += torch.distributions.Categorical(logits=logits).entropy().tolist()
    assert 0 < np.mean(right) < 1
    assert done.series("eval_mean_token_accuracy")[-1] == pytest.approx(np.mean(right), abs=1e-7)
    assert done.series("eval_entropy")[-1] == pytest.approx(np.mean(unsure), rel=1e-5)
    assert len(done.series("mean_token_accuracy")) == len(done.series("entropy")) == len(done.series("loss"))


def test_what_is_held_out_of_each_source_is_measured_by_itself_as_well(bench: Bench) -> None:
    rows = [json.loads(line) for line in Path(bench.data("conversation")).read_text().splitlines()]
    parts = [str(bench.file(rows[:3])), str(bench.file(rows[3:8]))]
    recipe = bench.recipe({"name": "sft", "compute_accuracy": True}, max_steps=1, learning_rate=0.0) | {"model": "tiny"}
    aside = {"sources": recipe["data"], "validation_sources": parts}
    together = bench.run(recipe | {"data": {**aside, "validation_apart": True}}, "together").metrics[-1]
    for number, part in enumerate(parts):
        alone = bench.run(recipe | {"data": aside | {"validation_sources": [part]}}, f"only-{number}").metrics[-1]
        for name in ("loss", "accuracy"):
            assert (
                together[f"eval_{part}_{name}"] == pytest.approx(alone[f"eval_{name}"], rel=1e-6)
                and alone[f"eval_{name}"]
            )
    assert together["eval_loss"] == pytest.approx(
        bench.run(recipe | {"data": aside}, "all").series("eval_loss")[-1], rel=1e-6
    )
    with pytest.raises(GymError, match="measures all that is held out at once"):
        load_recipe(bench.recipe("kto", "feedback") | {"data": {**aside, "validation_apart": True}}).check()


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_the_divergence_from_a_teacher_is_that_of_its_definition(beta: float) -> None:
    """By enumeration; near its ends it is a KL divergence but for a factor, and it is 0 between equals alone."""
    torch.manual_seed(0)
    student, teacher = (torch.randn(5, 7, dtype=torch.float64).log_softmax(1) for _ in range(2))
    found = divergence(student, teacher, beta)
    for row in range(5):
        p, q = teacher[row].exp().tolist(), student[row].exp().tolist()
        m = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
        forward, backward = (sum(a * math.log(a / c) for a, c in zip(some, m, strict=True)) for some in (p, q))
        kl = sum(a * math.log(a / b) for a, b in zip(*((p, q) if beta == 0 else (q, p)), strict=True))
        assert found[row].item() == pytest.approx(beta * forward + (1 - beta) * backward if 0 < beta < 1 else kl)
    for end in (1e-7, 1 - 1e-7):
        torch.testing.assert_close(
            divergence(student, teacher, end) / min(end, 1 - end),
            divergence(student, teacher, round(end)),
            rtol=1e-5,
            atol=1e-6,
        )
    assert divergence(student, student, beta).abs().max() < 1e-12
    silent = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert torch.isfinite(divergence(torch.zeros(1, 3).log_softmax(1), silent, min(beta, 0.9))).all()


def test_a_student_becomes_its_teacher(bench: Bench, tmp_path: Path) -> None:
    """Also where the teacher's vocabulary has more rows than the tokenizer has tokens."""
    teacher = AutoModelForCausalLM.from_pretrained(bench.model())
    torch.manual_seed(1)
    for weight in teacher.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    teacher.resize_token_embeddings(teacher.config.vocab_size + 24)
    teacher.get_output_embeddings().weight.data[-24:] = 1.0
    shutil.copytree(bench.model(), tmp_path / "teacher")
    teacher.save_pretrained(tmp_path / "teacher")
    recipe = bench.recipe({"name": "gkd", "teacher_model": str(tmp_path / "teacher")}, learning_rate=3e-3)
    found = bench.run(recipe, max_steps=40).series("divergence")
    assert found[-1] < 0.25 * found[0]


def test_a_model_that_teaches_itself_needs_something_to_learn(bench: Bench) -> None:
    with pytest.raises(GymError, match="teacher_model"):
        load_recipe(bench.recipe("gkd"))
