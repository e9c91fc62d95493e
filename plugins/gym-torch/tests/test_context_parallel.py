"""Processes that share the tokens of a row compute what one does: values and gradients, in float64, for every architecture."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import make_run
from gym_torch_contexts import alone, shared_by
from gym_torch_packed import Lineage, sample, separate, shared
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import GymError, RecipeError
from gym_testkit import architectures
from gym_torch import DDP, FSDP
from gym_torch.attention.context_parallel import ContextGroup
from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import packed, padded
from gym_torch.distributed.context_parallel import check_dropout, check_model
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.loading import LoadedModel
from gym_torch.model.mean_log_probs import label_and_mean_log_probs
from gym_torch.packing import PACKED, PADDED
from gym_torch.policy import Policy

(_PARTS, _PREFIXES), (_MORE, _) = shared(), separate()
ROW: Lineage = ([*_PARTS, *_MORE], (*_PREFIXES, *[None] * len(_MORE)))  #: shared prefixes, and segments by themselves
ROUNDS = {"gemma2": 1e-5, "gemma3_text": 1e-5, "qwen3_moe": 1e-5}  #: what computes in fp32 whatever it is given


def model_of(name: str) -> PreTrainedModel:
    model = architectures.build(name).double()
    model.set_attn_implementation(NAME)
    model.set_experts_implementation("eager")  # the other one knows no float64
    return model


def likelihoods(row: Lineage):
    batch = packed(*row)

    def work(policy: Policy[Any]) -> Tensor:
        found = policy(batch)
        return found * torch.linspace(0.5, 1.5, len(found), dtype=found.dtype)

    return work


def with_means(row: Lineage):
    batch = packed(*row)

    def work(policy: Policy[Any]) -> Tensor:
        return policy.at_labels(batch, lambda states, targets: label_and_mean_log_probs(states, policy.head, targets).T)

    return work


def check(model: PreTrainedModel, work, size: int, bound: float = 1e-9) -> None:
    """Every process finds the values, and the mean of their gradients is `size` times that of the sum which one has."""
    value, gradients = alone(model, work)
    found = shared_by(size, model, work)
    for part, _ in found:
        torch.testing.assert_close(part, value, rtol=bound, atol=bound)
    for name, wanted in gradients.items():
        total = torch.stack([own[name] for _, own in found]).sum(0) / size
        torch.testing.assert_close(total, wanted, rtol=bound, atol=bound * float(wanted.abs().max()) + 1e-12)


@pytest.mark.parametrize("name", architectures.FAMILIES)
def test_two_share_a_row(name: str) -> None:
    check(model_of(name), likelihoods(ROW), 2, ROUNDS.get(name, 1e-9))


@pytest.mark.parametrize("lengths", [(1, 2), (3,)])
def test_rows_shorter_than_there_are_processes(lengths: tuple[int, ...]) -> None:
    check(model_of("qwen3"), likelihoods(([sample("s", length, 4, 1.0) for length in lengths], ())), 4)


def test_more_than_there_are_heads_of_keys() -> None:
    check(model_of("qwen3 with windows"), likelihoods(ROW), 4)


@pytest.mark.parametrize("policy", [True, "selective", "tiled", "offload"])
def test_layers_that_compute_again(policy: bool | str) -> None:
    model = model_of("qwen3").train()
    recompute_layers(model, policy)
    check(model, likelihoods(ROW), 2)


def test_an_adapter() -> None:
    model = model_of("qwen3").requires_grad_(False)
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    check(model.double(), likelihoods(ROW), 2)


@pytest.mark.parametrize("chosen", ["targets", "ends", "none"])
def test_hidden_states_are_whole_in_every_process(chosen: str) -> None:
    batch = packed(*ROW)
    places = {"targets": None, "ends": batch.ends, "none": batch.ends[:0]}[chosen]
    direction = torch.linspace(-1, 1, 32, dtype=torch.float64)
    check(model_of("qwen3"), lambda policy: policy.hidden(batch, places) @ direction, 2)


def test_labels_that_lie_with_one_process_alone() -> None:
    """The others score none, and their layers learn from what these see of their tokens."""
    whole = sample("s", 12, 1)
    whole.trained[:] = [place in (3, 7, 11) for place in range(12)]
    check(model_of("qwen3"), likelihoods(([whole], ())), 4)


def test_means_over_the_vocabulary() -> None:
    check(model_of("qwen3"), with_means(ROW), 2)


def test_whole_rows_for_a_while() -> None:
    policy: Policy[Any] = Policy(model_of("qwen3"))
    policy.context = ContextGroup(1, 2)
    batch = packed(*ROW)
    with policy.context.whole_rows():
        found = policy(batch)
    policy.context = None
    assert torch.equal(found, policy(batch))


def test_a_process_holds_its_share_of_the_activations() -> None:
    """What a layer keeps for the backward pass, counted by its tensors, is a share of what one process keeps."""
    batch = packed([sample("long", 512, 1)])
    kept: dict[int, int] = {}

    def counted(policy: Policy[Any]) -> Tensor:
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        known = {weight.untyped_storage().data_ptr() for weight in [*policy.parameters(), *policy.buffers()]}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found = policy(batch)
        size = policy.context.size if policy.context else 1
        kept[size] = sum(size for place, size in seen.items() if place not in known)
        return found

    model = model_of("qwen3")
    alone(model, counted)
    shared_by(4, model, counted)
    assert kept[4] < 0.4 * kept[1], kept


def test_rows_that_are_not_packed_are_refused() -> None:
    policy: Policy[Any] = Policy(model_of("qwen3"))
    policy.context = ContextGroup(0, 2)
    with pytest.raises(GymError, match="not packed"):
        policy(padded(*separate()))


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(GymError, match="3 processes cannot share 4 attention heads"):
        shared_by(3, model_of("qwen3"), likelihoods(ROW))


LOADED = {"layout": PACKED, "path": Path("nowhere"), "name": "m"}


@pytest.mark.parametrize(
    ("name", "options", "key", "why"),
    [
        ("qwen3", {"layout": PADDED}, "distributed.context_parallel_size", "samples are padded, not packed"),
        ("qwen3", {"compile": True}, "model.compile", "layers are not compiled"),
        ("qwen3", {"neftune_noise_alpha": 5.0}, "model.neftune_noise_alpha", "its noise is that of whole samples"),
        ("qwen3_moe", {"router_aux_loss_coef": 0.1}, "model.router_aux_loss_coef", "load-balancing loss"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(name: str, options: dict[str, Any], key: str, why: str) -> None:
    loaded = LoadedModel(architectures.ready(name), **LOADED | options)
    with pytest.raises(RecipeError, match=why) as refused:
        check_model(loaded, 2)
    assert refused.value.problems[0].key == key
    check_model(loaded, 1)


def test_dropout_is_refused_by_name() -> None:
    model = copy.deepcopy(architectures.ready("qwen3"))
    check_dropout(model, 2)
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1))
    with pytest.raises(RecipeError, match=r"Dropout has a dropout of 0\.1"):
        check_dropout(model, 2)


@pytest.mark.parametrize("strategy", [DDP, FSDP])
def test_processes_that_make_no_groups_are_refused(strategy: type[DDP], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 processes cannot be cut into groups of 2"):
        strategy(processes=3, context_parallel_size=2)
    with pytest.raises(RecipeError, match="1 process cannot be cut into groups of 2"):
        strategy(context_parallel_size=2).build(output=tmp_path)


def test_an_algorithm_that_does_not_declare_it_is_refused(tmp_path: Path, model_path: Path) -> None:
    run = make_run(model_path, tmp_path / "run", sections={"distributed": DDP(context_parallel_size=2)})
    with pytest.raises(RecipeError, match="does not say that processes may share"):
        run.recipe.algorithm.check_recipe(run.recipe)
