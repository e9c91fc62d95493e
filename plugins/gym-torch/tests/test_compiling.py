"""Compiled layers compute what eager ones do, in one graph for rows of any segments, and long runs alone are tried out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._inductor.config
from gym_torch_packed import assert_equal, losses, sample
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from gym_testkit import architectures
from gym_torch.batch import packed
from gym_torch.compile_ahead import wanted
from gym_torch.model import compiled_code, precision_probe
from gym_torch.model.compiling import Layers
from gym_torch.model.layout_support import layout_for
from gym_torch.model.log_probs import head_of
from gym_torch.packing import PACKED
from gym_torch.segment_spans import Spans


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
    monkeypatch.setenv(compiled_code.FOLDER, str(tmp_path / "cache" / "compiled"))
    return tmp_path / "cache"


def layers(rank: int = 0) -> Layers:
    """Return the layers of a small model, with an adapter of some rank."""
    model = architectures.build("qwen3")
    assert layout_for(model) is PACKED
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=["q_proj"])).get_base_model()
    return Layers(model, PACKED, bf16=False)


def test_short_runs_are_left_alone(gym_cache: Path) -> None:
    found = layers()
    assert not wanted(found, "auto", tokens=10_000)
    assert wanted(found, "auto", tokens=10**12)
    assert wanted(found, True, tokens=1)
    assert not wanted(found, False, tokens=10**12)


def test_layers_are_tried_once(compiled_calls: list[nn.Module], gym_cache: Path) -> None:
    found = layers()
    before = [weight.clone() for weight in found.model.parameters()]
    first = found.tried()
    assert len(compiled_calls) == 1 and not first.error and first.eager_ms > 0
    assert found.tried() == first and len(compiled_calls) == 1
    assert all(map(torch.equal, before, found.model.parameters()))
    assert all(weight.grad is None for weight in found.model.parameters())
    layers(rank=2).tried()  # an adapter is a part of the layer that is tried
    assert len(compiled_calls) == 2


def test_the_folder_follows_what_it_is_named_by_and_not_the_one_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runs of one process may differ in threads and in their cache; a folder that the user names is kept."""
    monkeypatch.setenv("GYM_CACHE", str(tmp_path))
    monkeypatch.setenv(compiled_code.FOLDER, default_cache_dir())
    threads = torch.get_num_threads()
    first = compiled_code.use()
    torch.set_num_threads(threads + 1)
    second = compiled_code.use()
    torch.set_num_threads(threads)
    assert first != second and compiled_code.use() == first and first.parent == tmp_path / "compiled"
    monkeypatch.setenv(compiled_code.FOLDER, str(tmp_path / "mine"))
    assert compiled_code.use() == tmp_path / "mine"


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


def test_where_nothing_can_be_compiled_layers_stay_as_they_are(gym_cache: Path) -> None:
    torch.compiler.reset()
    with torch._inductor.config.patch({"cpp.cxx": ("false",), "force_disable_caches": True}):
        found = layers().tried()
    assert found.error and not found.pays
    assert compiled_code.known(layers().what) is None
    torch.compiler.reset()


def test_compiled_layers_agree_with_eager_ones_and_know_rows_of_any_segments(gym_cache: Path) -> None:
    model = layers().model
    head = head_of(model)
    parts = [sample(f"s{number}", length, number) for number, length in enumerate((6, 9, 4))]
    batches = [(parts[:2], ()), (parts, (None, 0, 0)), (parts[1:2], ())]
    wanted_ones = [losses(model, batch, packed, head) for batch in batches]
    Layers(model, PACKED, bf16=False).compile()
    with torch.compiler.set_stance("fail_on_recompile"):
        found = [losses(model, batch, packed, head) for batch in batches]
    for one, right in zip(found, wanted_ones, strict=True):
        assert_equal(one, right)


def test_attention_as_an_operator_is_sound() -> None:
    """What is said of it without numbers, its gradient and its sizes are those of what it computes."""
    draws = torch.Generator().manual_seed(0)
    query, *others = (torch.randn(1, heads, 12, 8, generator=draws).requires_grad_() for heads in (4, 2, 2))
    spans = Spans((5, 4, 3), (None, 0, None)).table
    torch.library.opcheck(torch.ops.gym.attend.default, (query, *others, spans, 0.3, 4, None))
