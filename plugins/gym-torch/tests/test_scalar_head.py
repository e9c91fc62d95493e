"""A head beside the model: trained, kept and put back as the model is, and never a part of it."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gym_torch_bench import Crash, Event, Memory, furthest, make_run, metrics, same, state, train, weights
from gym_torch_heads import Guessing, shared
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gym_core import GymError
from gym_testkit import families
from gym_torch.batch import Piece, packed, padded
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.layout_support import layout_for
from gym_torch.model.scalar_head import FILE, ScalarHead, freeze_lm_head

SETTINGS: dict[str, Any] = {"save_every": 3, "keep_last": 9}


@pytest.fixture(scope="module")
def whole(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a run that nothing disturbed."""
    output = tmp_path_factory.mktemp("heads") / "run"
    artifact = train(make_run(model_path, output, Memory(), Guessing(), **SETTINGS))
    assert artifact.path == output / "model"
    return output


def head(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model" / FILE)


def test_it_learns_with_the_model_and_lies_beside_it(whole: Path, model_path: Path) -> None:
    losses = [line["loss"] for line in metrics(whole)]
    assert losses[-1] < 0.7 * losses[0]
    assert {name: tuple(weight.shape) for name, weight in head(whole).items()} == {
        "v_head.summary.weight": (1, 32),
        "v_head.summary.bias": (1,),
    }
    assert all(weight.abs().max() > 0 for weight in head(whole).values())
    assert not same(weights(whole), load_file(model_path / "model.safetensors"))


def test_it_is_no_part_of_the_model(whole: Path, model_path: Path) -> None:
    assert weights(whole).keys() == load_file(model_path / "model.safetensors").keys()
    adapted = open_artifact(train(make_run(model_path, whole, Memory(), Guessing(), **SETTINGS)))
    assert not any("head.summary" in name or "auxiliary" in name for name, _ in adapted.merged().named_parameters())
    AutoModelForCausalLM.from_pretrained(whole / "model")


def test_it_is_read_again_without_the_run(whole: Path) -> None:
    found = ScalarHead.read(whole / "model")
    assert torch.equal(found.weight, head(whole)["v_head.summary.weight"])
    with pytest.raises(GymError, match=f"there is no {FILE}"):
        ScalarHead.read(whole)


def test_a_head_of_another_width_is_refused(whole: Path) -> None:
    with pytest.raises(GymError, match="weight differs"):
        ScalarHead(7).restore(whole / "model")


@pytest.mark.parametrize("step", [2, 6, 8])
def test_a_crash_changes_nothing(model_path: Path, whole: Path, tmp_path: Path, step: int) -> None:
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, Memory(), Guessing(), {"callbacks": (Event(step=step),)}, **SETTINGS))
    train(make_run(model_path, tmp_path, Memory(), Guessing(), **SETTINGS))
    assert same(weights(tmp_path), weights(whole))
    assert same(head(tmp_path), head(whole))
    ours, theirs = state(tmp_path, 9), state(whole, 9)
    assert same(ours[0], theirs[0]) and ours[1] == theirs[1]
    assert metrics(tmp_path) == metrics(whole)


def test_its_bias_does_not_decay(whole: Path) -> None:
    _, optimizer = state(whole, 9)
    decay = {name: group["weight_decay"] for group in optimizer["groups"] for name in group["params"]}
    assert decay["auxiliary.head.weight"] == 0.1 and decay["auxiliary.head.bias"] == 0


def test_a_damaged_head_is_noticed(model_path: Path, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, Memory(), Guessing(), {"callbacks": (Event(step=8),)}, **SETTINGS))
    save_file({}, tmp_path / "checkpoints" / "step-00000006" / FILE)
    train(make_run(model_path, tmp_path, Memory(), Guessing(), **SETTINGS))
    assert (tmp_path / "checkpoints" / "refused-step-00000006").is_dir()
    assert same(head(tmp_path), head(whole))


def test_another_algorithm_does_not_take_up_the_checkpoint(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, Memory(), Guessing(), {"callbacks": (Event(step=8),)}, **SETTINGS))
    with pytest.raises(GymError, match=r"auxiliary\.head\.bias was \[1\], is absent"):
        train(make_run(model_path, tmp_path, Memory(), **SETTINGS))


def test_in_shards_it_learns_the_same(model_path: Path, tmp_path: Path) -> None:
    settings = {"max_steps": 3, "batch_size": 2, "accumulate": 2, "save_every": 2}
    train(make_run(model_path, tmp_path / "alone", Memory(), Guessing(), **settings))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gym_torch_heads", "gym_torch.assembly", "gym_torch.distributed.fsdp"])
    members = [context.Process(target=shared, args=(rank, model_path, tmp_path, port, settings)) for rank in (0, 1)]
    for member in members:
        member.start()
    for member in members:
        member.join(60)
        assert member.exitcode == 0
    # Adam divides a gradient by its own size, so the rounding of one near zero shows; a wrong one moves by the learning rate.
    assert furthest(head(tmp_path / "0"), head(tmp_path / "alone")) < 1e-4
    assert furthest(weights(tmp_path / "0"), weights(tmp_path / "alone")) < 1e-4


def test_it_computes_in_fp32_whatever_the_states_are_in() -> None:
    states = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    made = ScalarHead(8)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1, 1, 8)[None] / 3)
        made.bias.fill_(0.1)
    with torch.autocast("cpu", torch.bfloat16):
        found = made(states)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, states.float() @ made.weight[0] + made.bias)


@pytest.mark.parametrize("lay_out", [packed, padded])
def test_the_states_at_the_ends_of_samples(model_path: Path, lay_out: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path).eval()
    texts = [torch.arange(5, 5 + length) for length in (3, 9, 1)]
    wanted = [model.base_model(input_ids=text[None]).last_hidden_state[0, -1] for text in texts]
    if lay_out is packed:
        layout_for(model)
    batch = lay_out([Piece("", text.int().numpy(), np.zeros(len(text), dtype=bool)) for text in texts])
    torch.testing.assert_close(hidden_states(model, batch, batch.ends), torch.stack(wanted), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "left"), [("llama", ["lm_head.weight"]), ("gemma", []), ("inkling_text", ["lm_head.weight"])]
)
def test_a_language_head_that_is_no_embedding_rests(name: str, left: list[str]) -> None:
    model = families.build(name)  # the last one's configuration says nothing of ties
    freeze_lm_head(model)
    assert [name for name, weight in model.named_parameters() if not weight.requires_grad] == left
