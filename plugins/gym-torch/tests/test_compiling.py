"""Compiled layers compute what eager ones do, for rows of any length, and long runs alone are tried out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._inductor.config
from gym_torch_bench import make_run, train
from gym_torch_packed import assert_equal, losses, sample
from peft import LoraConfig, get_peft_model
from torch import nn

from gym_testkit import architectures
from gym_torch.batch import packed
from gym_torch.model import compiling, precision_probe
from gym_torch.model.layout_support import layout_for
from gym_torch.model.log_probs import head_of
from gym_torch.packing import PACKED


@pytest.fixture
def compiled_calls(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Return the layers that were compiled, which then run as they are."""
    calls: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: calls.append(self))
    return calls


@pytest.fixture
def gym_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty cache."""
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_short_runs_are_left_alone(compiled_calls: list[nn.Module], gym_cache: Path) -> None:
    model = architectures.build("qwen3")
    assert layout_for(model) is PACKED
    assert not compiling.decide("auto", model, PACKED, False, tokens=10_000)
    assert not compiled_calls
    assert compiling.decide(True, model, PACKED, False, tokens=1)
    assert not compiling.decide(False, model, PACKED, False, tokens=10**12)


def test_long_runs_are_tried_once(compiled_calls: list[nn.Module], gym_cache: Path) -> None:
    model = architectures.build("qwen3")
    layout_for(model)
    before = [weight.clone() for weight in model.parameters()]
    first = compiling.decide("auto", model, PACKED, False, tokens=10**12)
    assert len(compiled_calls) == 1
    assert len(list(gym_cache.glob("probe/*.json"))) == 2
    assert compiling.decide("auto", model, PACKED, False, tokens=10**12) is first
    assert all(map(torch.equal, before, model.parameters()))
    assert all(weight.grad is None for weight in model.parameters())


def test_a_measurement_is_named_by_what_was_measured_and_made_again_where_it_cannot_be_read(
    gym_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def measured(what: str = "a") -> dict[str, int]:
        return precision_probe.remembered("kind", what, lambda: made.append(1) or {"ms": len(made)})

    assert measured() == measured() == {"ms": 1}
    for damage in ("", "null", "{"):
        (file,) = gym_cache.glob("probe/*.json")
        file.write_text(damage)
        assert measured() == {"ms": len(made)}
    assert len(made) == 4
    monkeypatch.setattr(precision_probe, "maker", lambda package: {"code": "another version"})
    assert measured() == {"ms": 5}


def test_an_adapter_is_a_part_of_the_layer_that_is_tried(compiled_calls: list[nn.Module], gym_cache: Path) -> None:
    for rank in (0, 2):
        model = architectures.build("qwen3")
        layout_for(model)
        if rank:
            model = get_peft_model(model, LoraConfig(r=rank, target_modules=["q_proj"])).get_base_model()
        compiling.decide("auto", model, PACKED, False, tokens=10**12)
    assert len(compiled_calls) == 2


def test_where_nothing_can_be_compiled_layers_stay_as_they_are(
    gym_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = architectures.build("qwen3")
    layout_for(model)
    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(gym_cache / "code"))
    with torch._inductor.config.patch({"cpp.cxx": ("false",), "force_disable_caches": True}):
        assert not compiling.decide("auto", model, PACKED, False, tokens=10**12)
    assert "layers are not compiled" in capsys.readouterr().err
    torch.compiler.reset()


def test_a_resumed_run_does_as_it_did(model_path: Path, tmp_path: Path, compiled_calls: list[nn.Module]) -> None:
    run = make_run(model_path, tmp_path)
    run.record.update(compiled=True)
    resumed = make_run(model_path, tmp_path)
    assert resumed.resuming
    train(resumed)
    assert len(compiled_calls) == 2


def test_compiled_layers_agree_with_eager_ones() -> None:
    """Every sample of a batch is code of its own, so there are few: two of them, and a prompt with its answer."""
    model = architectures.build("qwen3")
    model.model.layers = model.model.layers[:1]  # all are alike, and each is compiled for itself
    layout_for(model)
    head = head_of(model)
    parts = [sample(f"s{number}", length, number) for number, length in enumerate((6, 9))]
    batches = [(parts, ()), (parts, (None, 0))]
    wanted = [losses(model, batch, packed, head) for batch in batches]
    compiling.compile_layers(model)
    for batch, right in zip(batches, wanted, strict=True):
        assert_equal(losses(model, batch, packed, head), right)
