"""Compiled layers compute what they do as they are, whatever row they are given, and leave alone what they were not made for."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from gym_torch_packed import Lineage, assert_equal, losses, sample
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel

from gym_testkit import architectures
from gym_testkit.caches import own_cache
from gym_torch.batch import packed
from gym_torch.compiled import ahead_of_time, compiled_code
from gym_torch.compiled.compiling import Layers
from gym_torch.compiled.layer_calls import calls
from gym_torch.compiled.layer_code import CompiledForward, UnfitError
from gym_torch.compiled.layer_export import export
from gym_torch.memory.gradient_checkpointing import recomputable, recompute_layers
from gym_torch.model.layout_support import layout_for
from gym_torch.model.log_probs import head_of
from gym_torch.packing import PACKED
from gym_torch.policy import Policy

PARTS = [sample(f"s{number}", length, number) for number, length in enumerate((6, 9, 4))]
ROWS: list[Lineage] = [(PARTS[:2], ()), (PARTS, (None, 0, 0)), (PARTS[1:2], ())]


def built(name: str = "qwen3") -> PreTrainedModel:
    """Return a small model, set to rows."""
    model = architectures.build(name)
    assert layout_for(model) is PACKED
    return model


def adapted(precision: str = "fp32") -> PreTrainedModel:
    """Return a model below an adapter that is something: its embeddings are frozen, and all of its layers train."""
    model = get_peft_model(built(), LoraConfig(r=2, target_modules="all-linear")).get_base_model()
    draws = torch.Generator().manual_seed(0)
    for layer in recomputable(model):
        for weight in layer.parameters():
            weight.requires_grad_()
            weight.data.add_(torch.randn(weight.shape, generator=draws), alpha=0.02)
    Policy(model, precision)  # with its kernels
    found: PreTrainedModel = model.train()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return where the code of the layers of that model lies."""
    path = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patched, torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        patched.setenv("GYM_CACHE", own_cache(path))
        patched.setenv(compiled_code.FOLDER, str(path / "compiled"))
        assert not (found := Layers(adapted(), PACKED, precision="fp32").tried()).error, found
        yield path


@pytest.fixture
def compiled(folder: Path) -> PreTrainedModel:
    """Return that model with its layers compiled."""
    model = adapted()
    Layers(model, PACKED, precision="fp32").compile()
    assert {type(vars(layer)["forward"].__func__) for layer in recomputable(model)} == {CompiledForward}
    return model


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each forward pass of a layer was computed by its code."""
    found: list[bool] = []
    whole = CompiledForward.computed

    def noted(*given: object, **options: object) -> object:
        out = whole(*given, **options)
        found.append(out is not None)
        return out

    monkeypatch.setattr(CompiledForward, "computed", noted)
    return found


@pytest.mark.parametrize("again", [False, True, 2])
def test_values_and_gradients_are_those_of_layers_as_they_are(
    again: bool | int, compiled: PreTrainedModel, runs: list[bool]
) -> None:
    """For rows of any length and segments, the first layer whose input has no gradient, and layers that compute again."""
    model = adapted()
    heads = head_of(compiled), head_of(model)  # found by a pass of its own
    recompute_layers(compiled, again)
    runs.clear()
    for row in ROWS:
        assert_equal(losses(compiled, row, packed, heads[0]), losses(model, row, packed, heads[1]))
    assert runs and all(runs)


def test_evaluation_is_computed_by_the_same_code(compiled: PreTrainedModel, runs: list[bool]) -> None:
    policies = [Policy(model.eval()) for model in (compiled, adapted())]
    runs.clear()
    with torch.no_grad():
        found, wanted = (policy.log_probs(packed(*ROWS[1])) for policy in policies)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert len(runs) == 2 and all(runs)


def test_what_the_code_was_not_made_for_is_computed_as_before(
    compiled: PreTrainedModel, runs: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter that is switched off, a hook that looks on, a weight that is frozen, a copy, another precision, a cache."""
    layer, model = recomputable(compiled)[0], adapted()
    copied = copy.deepcopy(compiled)
    adapters = [part for part in compiled.modules() if hasattr(part, "enable_adapters")]

    def same(one: PreTrainedModel, other: PreTrainedModel) -> bool:
        heads = [head_of(each) for each in (one, other)]
        runs.clear()
        rows = [losses(each, ROWS[1], packed, head)[0] for each, head in zip((one, other), heads, strict=True)]
        torch.testing.assert_close(*rows, rtol=1e-5, atol=1e-5)
        return all(runs)

    assert same(compiled, model)
    for part in [*adapters, *(part for part in model.modules() if hasattr(part, "enable_adapters"))]:
        part._disable_adapters = True
    assert not same(compiled, model)
    for part in [*adapters, *(part for part in model.modules() if hasattr(part, "enable_adapters"))]:
        part._disable_adapters = False
    assert same(compiled, model)
    seen: list[object] = []
    handle = layer.mlp.register_forward_hook(lambda *given: seen.append(given))
    assert not same(compiled, model) and seen
    handle.remove()
    layer.mlp.up_proj.base_layer.weight.requires_grad_(False)
    assert not same(compiled, model)
    layer.mlp.up_proj.base_layer.weight.requires_grad_(True)
    with torch.no_grad():
        for weight in recomputable(copied)[0].parameters():
            weight.mul_(1.1)
    assert not same(copied, copied)
    assert not torch.equal(losses(copied, ROWS[0], packed)[0], losses(model, ROWS[0], packed)[0])
    assert capsys.readouterr().err.count("is given what it was not compiled for") == 1


def transposed(mlp: Any) -> None:
    """Have a weight lie otherwise in memory."""
    weight = mlp.up_proj.base_layer.weight
    weight.data = weight.data.t().contiguous().t()


def exchanged(mlp: Any) -> None:
    """Have another module in the place of one."""
    mlp.up_proj = copy.deepcopy(mlp.up_proj)
    mlp.up_proj.base_layer.weight.data.mul_(2)


def biased(mlp: Any) -> None:
    """Have a weight where there was none."""
    mlp.up_proj.base_layer.bias = nn.Parameter(torch.ones(mlp.up_proj.base_layer.out_features))


def in_another_mode(mlp: Any) -> None:
    """Have one module evaluate while the others train."""
    mlp.up_proj.eval()


@pytest.mark.parametrize("change", [transposed, exchanged, biased, in_another_mode])
def test_a_layer_that_was_changed_is_computed_as_it_is_now(
    change: Callable[[Any], None], compiled: PreTrainedModel, runs: list[bool]
) -> None:
    model = adapted()
    heads = head_of(compiled), head_of(model)
    for one in (compiled, model):
        change(recomputable(one)[0].mlp)
    runs.clear()
    rows = [losses(one, ROWS[1], packed, head) for one, head in zip((compiled, model), heads, strict=True)]
    torch.testing.assert_close(rows[0][0], rows[1][0], rtol=1e-5, atol=1e-5)
    assert runs == [False, True]


def test_a_hook_that_sees_all_modules_sees_those_of_compiled_layers(
    compiled: PreTrainedModel, runs: list[bool]
) -> None:
    head, seen = head_of(compiled), set[type]()
    runs.clear()
    handle = register_module_forward_hook(lambda module, *_: seen.add(type(module)))
    try:
        losses(compiled, ROWS[1], packed, head)
    finally:
        handle.remove()
    assert type(recomputable(compiled)[0].mlp) in seen and not any(runs)


def changed(monkeypatch: pytest.MonkeyPatch, training: float, evaluating: float) -> None:
    """Have layers compute otherwise than their code was made for, by factors, which nothing that names that code tells."""
    kind = type(recomputable(built())[0])
    whole = kind.forward

    def forward(self: nn.Module, *given: object, **options: object) -> object:
        return whole(self, *given, **options) * (training if self.training else evaluating)

    monkeypatch.setattr(kind, "forward", forward)


def test_evaluation_that_differs_from_training_is_computed_as_it_is(
    folder: Path, runs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, 1.0, 2.0)
    compiled, model = adapted(), adapted()
    Layers(compiled, PACKED, precision="fp32").compile()
    heads = head_of(compiled), head_of(model)
    runs.clear()
    assert_equal(losses(compiled, ROWS[1], packed, heads[0]), losses(model, ROWS[1], packed, heads[1]))
    assert runs and all(runs)
    with torch.no_grad():
        found, wanted = (Policy(one.eval()).log_probs(packed(*ROWS[1])) for one in (compiled, model))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture
def stale(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Have whatever is compiled come out as it did before, in a folder of the test; return where to."""
    shutil.copytree(folder / "compiled", tmp_path / "compiled")
    monkeypatch.setenv(compiled_code.FOLDER, str(tmp_path / "compiled"))
    before = tmp_path / "stale"
    shutil.copytree(compiled_code.folder_of(Layers(adapted(), PACKED, precision="fp32").what), before)
    made: list[Path] = []

    def make(groups: list[Any], _precision: str, into: Path) -> list[Any]:
        made.append(into)
        shutil.copytree(before, into, dirs_exist_ok=True)
        return [alike.layers[0] for alike in groups]

    monkeypatch.setattr(ahead_of_time, "make", make)
    return made


def test_code_on_the_disk_that_computes_something_else_is_made_again(
    stale: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And layers stay as they are where that is no better."""
    changed(monkeypatch, 2.0, 2.0)
    model = adapted()
    layers = Layers(model, PACKED, precision="fp32")
    assert layers.compile() is None
    said = capsys.readouterr().err
    assert len(stale) == 1 and said.count("computes something else") == 2
    assert said.index("are compiled again") < said.index("stay as they are")
    assert not any("forward" in vars(layer) for layer in recomputable(model))
    assert compiled_code.known(layers.what) is None


@pytest.mark.parametrize("times", [1, 2])
def test_what_one_process_finds_holds_for_all(times: int, stale: list[Path]) -> None:
    """Else some compute by their code and others do not, and a resumed run computes something else again."""
    model, asked = adapted(), 0

    def everywhere(own: list[str]) -> list[str]:
        nonlocal asked
        asked += 1
        return [*own, "elsewhere it computes something else"] if asked in (1, 3)[:times] else own

    took = Layers(model, PACKED, precision="fp32").compile(everywhere)
    assert (took is None) is (times == 2) and len(stale) == 1
    assert all(("forward" in vars(layer)) is (times == 1) for layer in recomputable(model))


@pytest.mark.parametrize("name", ["layer.json", "*.so"])
def test_code_that_cannot_be_read_is_made_again(
    name: str, stale: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    layers = Layers(adapted(), PACKED, precision="fp32")
    for file in compiled_code.folder_of(layers.what).rglob(name):
        file.write_bytes(b"")
    assert layers.compile() is not None
    assert len(stale) == 1 and "are compiled again: their code cannot be read" in capsys.readouterr().err


def test_layers_that_compute_otherwise_have_code_of_their_own() -> None:
    found = calls(built("qwen3 with windows"), PACKED, precision="fp32")
    assert [len(alike.layers) for alike in found] == [1, 1]
    model = built()
    (alike,) = calls(model, PACKED, precision="fp32")
    assert len(alike.layers) == 2 and alike.learns == {"/0/0"}
    assert alike.sizes["/0/0"] == [1, "n1021", 32] and alike.sizes["/1/spans"] == ["n46"]
    recomputable(model)[1].self_attn.scaling *= 2
    assert len(calls(model, PACKED, precision="fp32")) == 2


@pytest.mark.parametrize("what", ["random numbers", "a hook looks on", "for other sizes", "returns more than hidden"])
def test_a_layer_that_cannot_be_compiled_says_why(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built().train()
    (alike,) = calls(model, PACKED, precision="fp32")
    layer = alike.layers[0]
    forward = type(layer.mlp).forward
    if what == "a hook looks on":
        layer.mlp.register_forward_hook(lambda *_: None)
    elif what == "for other sizes":
        monkeypatch.setattr(
            type(layer.mlp), "forward", lambda self, x: forward(self, x) * (2 if x.shape[1] > 900 else 1)
        )
    elif what == "returns more than hidden":
        whole = type(layer).forward
        monkeypatch.setattr(type(layer), "forward", lambda *given, **options: (whole(*given, **options),))
    with pytest.raises(UnfitError, match=what):
        if what == "random numbers":
            layer.mlp.act_fn = torch.nn.Dropout(0.5)
            ahead_of_time.compare(layer, alike, "fp32", None)  # type: ignore[arg-type]
        else:
            monkeypatch.setattr("gym_torch.compiled.layer_export._compile", lambda *_: None)
            export(alike, "fp32", tmp_path)
