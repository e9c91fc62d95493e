"""The load-balancing loss of experts: what transformers computes, a float64 oracle, every layout, and a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gym_torch_bench import Memory, make_run, metrics, train
from gym_torch_compiled import begun, other_code
from gym_torch_two import in_two
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import GymError, RecipeError
from gym_core.ranks import Ranks
from gym_testkit import families
from gym_testkit.architectures import write_mixture
from gym_torch import FSDP, Transformers
from gym_torch.batch import Batch, alone, packed, padded
from gym_torch.loop.changeover import RECORD
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.layout_support import layout_for
from gym_torch.model.load_balancing import balance_of
from gym_torch.policy import Policy

LENGTHS = (13, 4, 9)


def mixture(name: str = "mixtral") -> PreTrainedModel:
    model = families.build(name)
    layout_for(model)
    return model


def texts() -> list[families.Piece]:
    return [families.samples()[number] for number in (1, 2, 3)]


def ours(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch and its gradient by all weights, flat."""
    model.zero_grad()
    policy = Policy(model).train()
    balance = balance_of(model, 0.5)
    assert balance is not None
    policy.balance = balance
    policy(batch)
    loss = balance.loss()
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return loss.detach(), torch.cat([grads[name].flatten() for name in sorted(grads) if "lm_head" not in name])


def oracle(model: PreTrainedModel, pieces: list[families.Piece]) -> Tensor:
    """Return the loss token by token in float64, from the equations."""
    logits = [
        torch.cat(
            [
                model(torch.from_numpy(piece.tokens).long()[None], output_router_logits=True).router_logits[layer]
                for piece in pieces
            ]
        )
        for layer in range(model.config.num_hidden_layers)
    ]
    experts, chosen = logits[0].shape[1], model.config.num_experts_per_tok
    counts, shares = torch.zeros(experts, dtype=torch.float64), torch.zeros(experts, dtype=torch.float64)
    for token in torch.cat(logits).double():
        probabilities = token.exp() / token.exp().sum()
        shares = shares + probabilities
        for expert in probabilities.argsort(descending=True)[:chosen]:
            counts[expert] += 1
    rows = sum(map(len, logits))
    return experts * (counts / rows * shares / rows).sum()


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "qwen2_moe"])
def test_it_is_what_transformers_computes_with_padding(name: str) -> None:
    model = mixture(name)
    batch = padded(texts())
    mask = torch.zeros_like(batch.tokens)
    for segment in batch.segments:
        mask[segment.row, : segment.stop] = 1
    with torch.no_grad():
        theirs = model(batch.tokens, attention_mask=mask, output_router_logits=True).aux_loss
    torch.testing.assert_close(ours(model, batch)[0], theirs, rtol=1e-5, atol=1e-6)


def test_value_and_gradient_are_those_of_the_equations_in_every_layout() -> None:
    model = mixture().double()
    model.set_experts_implementation("eager")  # the fused one knows no fp64
    found = {lay_out.__name__: ours(model, lay_out(texts())) for lay_out in (packed, padded, alone)}
    model.zero_grad()
    wanted = oracle(model, texts())
    wanted.backward()  # type: ignore[no-untyped-call]
    grads = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    gradient = torch.cat([grads[name].flatten() for name in sorted(grads) if "lm_head" not in name])
    for value, own in found.values():
        torch.testing.assert_close(value, wanted.detach(), rtol=1e-9, atol=0)
        assert float((own - gradient).norm() / gradient.norm()) < 1e-6  # norms of the model round to fp32


def test_layers_that_compute_again_change_nothing() -> None:
    model = mixture()
    plain = ours(model, packed(texts()))
    recompute_layers(model)
    again = ours(model, packed(texts()))
    torch.testing.assert_close(again, plain, rtol=1e-5, atol=1e-6)


def test_it_is_off_unless_the_recipe_or_the_configuration_says_so() -> None:
    model = mixture()
    assert balance_of(model, None) is None
    own = balance_of(model, "own")
    assert own is not None and own.coefficient == model.config.router_aux_loss_coef
    model.config.output_router_logits = True
    found = balance_of(model, None)
    assert found is not None and found.coefficient == model.config.router_aux_loss_coef
    dense = families.build("llama")
    assert balance_of(dense, None) is None
    for name in ("llama", "deepseek_v3", "doge"):
        with pytest.raises(GymError, match=r"load-balancing loss|balances its experts"):
            balance_of(families.build(name), 0.01)


def test_a_run_adds_it_to_its_loss_and_names_it(model_path: Path, tmp_path: Path) -> None:
    path = write_mixture(tmp_path / "mixture", model_path)
    logs = []
    for coefficient in (None, 0.5):
        backend = Transformers(path=str(path), router_aux_loss_coef=coefficient)
        run = make_run(
            path, tmp_path / f"run {coefficient}", Memory(), sections={"model": backend}, max_steps=2, log_every=1
        )
        train(run)
        logs.append([json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()])
    (plain, *_), (with_it, *_) = logs
    assert "aux_loss" not in plain
    assert with_it["loss"] == pytest.approx(plain["loss"] + 0.5 * with_it["aux_loss"], rel=1e-5)
    assert logs[0][1]["loss"] != pytest.approx(logs[1][1]["loss"] - 0.5 * logs[1][1]["aux_loss"], rel=1e-7), "it trains"


def test_layers_whose_routers_are_watched_are_not_compiled(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their code nobody would see what routers do, and the run would end with the first step after the change-over."""
    other_code(monkeypatch, tmp_path / "compiled")
    path = write_mixture(tmp_path / "mixture", model_path)
    for asked in ("auto", True):
        begun(tmp_path / str(asked), 1)
        backend = Transformers(path=str(path), router_aux_loss_coef=0.5, compile=asked)
        run = make_run(path, tmp_path / str(asked), sections={"model": backend}, max_steps=2)
        if asked == "auto":
            train(run)
            assert run.record.read()[RECORD] == {"from_step": 1}, "they were compiled"
            continue
        with pytest.raises(RecipeError, match="nobody sees those in compiled layers"):
            train(run)


def member(ranks: Ranks, rank: int, model: Path, root: Path) -> None:
    """Be one of two processes that each hold a part of a mixture."""
    backend = Transformers(path=str(model), router_aux_loss_coef=0.5)
    run = make_run(
        model, root / str(rank), sections={"model": backend, "distributed": FSDP()}, max_steps=2, accumulate=2
    )
    run.ranks = ranks
    train(run)


def test_a_run_in_shards_adds_it_too(model_path: Path, tmp_path: Path) -> None:
    path = write_mixture(tmp_path / "mixture", model_path)
    in_two(tmp_path, member, path, tmp_path)
    backend = Transformers(path=str(path), router_aux_loss_coef=0.5)
    train(make_run(path, tmp_path / "one", sections={"model": backend}, max_steps=2, accumulate=2))
    for found, wanted in zip(metrics(tmp_path / "0"), metrics(tmp_path / "one"), strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)
