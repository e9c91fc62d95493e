"""References: an adapter left out, a second copy and a separate load are the same model, and none of them is trained."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_adapters import LoRA
from gym_core import GymError, Run, load_recipe
from gym_core.record import RunRecord
from gym_testkit import tiny
from gym_torch.batch import Batch, Piece, packed
from gym_torch.checkpoints.resuming import conditions_of
from gym_torch.config import Further
from gym_torch.following_reference import FollowingReference
from gym_torch.model.adapted import AdaptedModel, adapt
from gym_torch.model.layout_support import layout_for
from gym_torch.model.loading import LoadedModel
from gym_torch.packing import PACKED
from gym_torch.policy import Policy
from gym_torch.reference import Reference

torch.set_num_threads(1)


def batch() -> Batch:
    random = np.random.default_rng(0)
    return packed(
        [Piece(str(n), random.integers(3, 60, n).astype(np.int32), np.ones(n, dtype=bool)) for n in (9, 4, 7)]
    )


def trained(path: Path, adapter: str | None) -> tuple[LoadedModel, AdaptedModel, Policy, Run]:
    """Return a model after a few steps of training."""
    recipe = load_recipe(
        {"model": str(path), "data": "none.jsonl", "algorithm": "sft", **({"adapter": adapter} if adapter else {})}
    )
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    loaded = LoadedModel(model, path, str(path), "fp32", layout_for(model))
    assert loaded.layout is PACKED
    adapted = adapt(model, recipe)
    policy = Policy(adapted.model)
    optimizer = torch.optim.SGD([weight for weight in policy.parameters() if weight.requires_grad], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (-policy(batch()).sum()).backward()
        optimizer.step()
    return loaded, adapted, policy, Run(recipe, path.parent, RunRecord(path.parent / "run.json"))


def moved(policy: Policy, path: Path) -> torch.Tensor:
    """Return how far training moved the labels."""
    plain = Policy(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))
    with torch.no_grad():
        return (policy(batch()) - separate(plain)).abs()


def separate(plain: Policy) -> torch.Tensor:
    """Return what a model loaded by itself says, segment after segment, with its own attention."""
    whole = batch()
    with torch.no_grad():
        parts = []
        for segment in whole.segments:
            tokens = whole.tokens[:, segment.start : segment.stop]
            logits = plain.model.eval()(input_ids=tokens).logits[0, :-1].log_softmax(1)
            parts.append(logits.gather(1, tokens[0, 1:, None])[:, 0])
    return torch.cat(parts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model", 0)


@pytest.mark.parametrize("adapter", [None, "lora"])
def test_it_is_the_base_as_loaded_by_itself(path: Path, adapter: str | None) -> None:
    model, adapted, policy, run = trained(path, adapter)
    plain = Policy(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))
    assert float(moved(policy, path).max()) > 0.1, "training should have moved the policy away"
    before = policy(batch())
    marks = {name: weight.requires_grad for name, weight in policy.named_parameters()}
    found = Reference(Further(None), policy, adapted, model, run).load()(batch())
    torch.testing.assert_close(found, separate(plain), rtol=0, atol=1e-5)
    assert not found.requires_grad
    assert torch.equal(policy(batch()), before), "scoring the reference changed the policy"
    assert {name: weight.requires_grad for name, weight in policy.named_parameters()} == marks
    assert policy.training


def test_an_adapter_needs_no_second_model(path: Path) -> None:
    model, adapted, policy, run = trained(path, "lora")
    assert Reference(Further(None), policy, adapted, model, run).load().policy is policy
    model, adapted, policy, run = trained(path, None)
    other = Reference(Further(None), policy, adapted, model, run).load().policy
    assert other is not policy
    assert not any(weight.requires_grad for weight in other.parameters())


@pytest.mark.parametrize("named", [False, True])
def test_it_follows_the_policy_where_that_is_asked_for(path: Path, tmp_path: Path, named: bool) -> None:
    """It scores as a model with the mixture for weights, whatever was computed with it before, and after a checkpoint."""
    model, adapted, policy, run = trained(path, None)
    other = tiny.write_model(tmp_path / "other", 1) if named else path
    made = [
        FollowingReference(
            Reference(Further(str(other) if named else None, follows=True), policy, adapted, model, run), 2, 0.25
        )
        for _ in range(2)
    ]
    following, again = made
    following.reference(batch())
    for step in (0, 1, 2, 2, 3):
        following.before(step)
    mixed = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float64)
    own = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, weight in mixed.named_parameters():
            weight.copy_(0.25 * own[name].double() + 0.75 * weight)
    expected = separate(Policy(mixed)).float()
    torch.testing.assert_close(following.reference(batch()), expected, rtol=1e-5, atol=1e-5)
    again.load(following.moved, {name: weight.clone() for name, weight in following.tensors().items()})
    assert torch.equal(again.reference(batch()), following.reference(batch()))
    again.before(2)
    assert torch.equal(again.reference(batch()), following.reference(batch())), "it moved twice at one step"


def test_what_has_no_weights_of_its_own_or_others_does_not_follow(path: Path, tmp_path: Path) -> None:
    model, adapted, policy, run = trained(path, "lora")
    with pytest.raises(GymError, match="without its adapter"):
        FollowingReference(Reference(Further(None, follows=True), policy, adapted, model, run), 2, 0.5)
    model, adapted, policy, run = trained(path, None)
    other = Further(str(tiny.write_model(tmp_path / "other", 1, hidden=48)), follows=True)
    with pytest.raises(GymError, match=r"algorithm\.ref_model: .*cannot follow the policy"):
        FollowingReference(Reference(other, policy, adapted, model, run), 1, 0.5).before(1)


def test_another_model_may_be_named(path: Path, tmp_path: Path) -> None:
    other = tiny.write_model(tmp_path / "other", 1)
    model, adapted, policy, run = trained(path, "lora")
    found = Reference(Further(str(other)), policy, adapted, model, run).load()(batch())
    plain = Policy(AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32))
    torch.testing.assert_close(found, separate(plain), rtol=0, atol=1e-5)


def test_a_model_of_other_tokens_is_refused(path: Path, tmp_path: Path) -> None:
    other = tiny.write_model(tmp_path / "other", 1, extra=["<tool>"])
    model, adapted, policy, run = trained(path, None)
    with pytest.raises(GymError, match=r"algorithm\.ref_model: .*tokenizer"):
        Reference(Further(str(other)), policy, adapted, model, run).load()


def test_what_is_no_model_is_refused_by_the_key_that_names_it(path: Path, tmp_path: Path) -> None:
    model, adapted, policy, run = trained(path, "lora")
    adapted.save(tmp_path / "adapter", str(path))
    for named, why in (("./none", "no such folder"), (str(tmp_path / "adapter"), "holds an adapter.*\n.*gym export")):
        further = Further(named)
        for asked in (
            Reference(further, policy, adapted, model, run).load,
            lambda further=further: conditions_of(run, model, SimpleNamespace(further=lambda: [further])),
        ):
            with pytest.raises(GymError, match=rf"(?s)algorithm\.ref_model: .*{why}"):
                asked()


def test_modules_trained_whole_are_left_out_too(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    adapted = LoRA(target_modules="q_proj", modules_to_save="norm").build(model=model, seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.1)
    tokens = batch().tokens
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with adapted.disable_adapter(), torch.no_grad():
        torch.testing.assert_close(model.eval()(input_ids=tokens).logits, plain.eval()(input_ids=tokens).logits)
    with torch.no_grad():
        assert not torch.allclose(model(input_ids=tokens).logits, plain(input_ids=tokens).logits, atol=1e-3)
