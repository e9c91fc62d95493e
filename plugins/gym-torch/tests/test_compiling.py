"""Layers are compiled once, where it pays, and what was found is kept; what they compute is in `test_layer_code`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

import peft
import pytest
import torch
import torch._inductor.config
import transformers
from peft import LoraConfig, get_peft_model
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from gym_data.provenance import maker
from gym_testkit import architectures
from gym_torch.compile_ahead import wanted
from gym_torch.compiled import ahead_of_time, compiled_code
from gym_torch.compiled.compiling import Layers
from gym_torch.compiled.layer_code import UnfitError
from gym_torch.compiled.layer_description import described, made_by
from gym_torch.compiled.layer_state import LayerState
from gym_torch.kernels import precision_probe
from gym_torch.memory.gradient_checkpointing import recomputable
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.segment_spans import Spans


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
    return Layers(model, PACKED, precision="fp32")


def test_short_runs_are_left_alone(gym_cache: Path) -> None:
    found = layers()
    assert not wanted(found, "auto", tokens=10_000)
    assert wanted(found, "auto", tokens=10**12)
    assert wanted(found, True, tokens=1)
    assert not wanted(found, False, tokens=10**12)


def test_what_was_found_is_noted_beside_the_code(gym_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure leaves nothing behind, and is tried again."""
    monkeypatch.setattr(ahead_of_time, "make", lambda groups, *_: [alike.layers[0] for alike in groups])
    found = layers()
    before = [weight.clone() for weight in found.model.parameters()]
    first = found.tried()
    assert not first.error and first.eager_ms > 0
    assert all(map(torch.equal, before, found.model.parameters()))
    assert all(weight.grad is None for weight in found.model.parameters())
    monkeypatch.setattr(ahead_of_time, "make", lambda *_: 1 // 0)
    assert layers().tried() == first
    others = layers(rank=2)  # an adapter is a part of the layer
    assert "division" in others.tried().error and compiled_code.known(others.what) is None
    assert list((gym_cache / "compiled").iterdir()) == [compiled_code.folder_of(found.what)]


def test_code_is_named_by_all_packages_that_its_classes_are_from() -> None:
    """By their versions, and by the text of each class and of those that it inherits from."""
    texts, packages = json.loads(layers(rank=2).what)[2]
    assert {"peft.tuners.tuners_utils", "torch.nn.modules.module"} <= set(texts)
    for package in (peft, torch, transformers):
        assert [[package.__name__, package.__version__]] in packages
    (own,) = (each for each in made_by({"gym_adapters.tuners.ia3"})[1] if each["package"] == "gym_adapters")
    assert own["code"] == maker("gym_adapters")["code"]


@dataclass
class Held:
    """Something that a module may hold."""

    value: object


VALUES: list[Callable[[object], object]] = [
    lambda value: value,
    lambda value: (value,),
    lambda value: {"a": [(0, value)]},
    lambda value: {0, value},
    Held,
    lambda value: [lambda given, factor=value: given],
    lambda value: partial(Held, value=value),
    lambda value: (torch.tensor([0, value]),),
]


@pytest.mark.parametrize("made", VALUES)
def test_whatever_a_module_holds_tells_layers_from_others(made: Callable[[object], object]) -> None:
    one, other = (recomputable(layers().model)[0] for _ in range(2))
    one.mlp.held = other.mlp.held = made(1)
    assert described(one) == described(other)
    state = LayerState(one)
    assert state.lasts(training=False)
    one.mlp.held = made(2)
    assert described(one) != described(other) and not state.lasts(training=False)


def test_what_changes_in_place_is_noticed() -> None:
    layer = recomputable(layers().model)[0]
    nested, things, tensor = {"a": [{1}]}, Held([1]), torch.zeros(2)
    layer.mlp.held = (nested, things, tensor)
    changes: list[Callable[[], object]] = [
        lambda: nested["a"][0].add(2),
        lambda: setattr(things, "value", [2]),
        lambda: tensor.add_(1),
        lambda: layer.mlp.register_forward_hook(lambda *_: None),
    ]
    for change in changes:
        state = LayerState(layer)
        assert state.lasts(training=False) and not state.lasts(training=True)
        change()
        assert not state.lasts(training=False)
    (number,) = layer.mlp._forward_hooks
    state = LayerState(layer)
    layer.mlp._forward_hooks[number] = lambda *_: None
    assert not state.lasts(training=False)


def test_what_cannot_be_described_is_named_and_not_compiled(gym_cache: Path) -> None:
    found = layers()
    recomputable(found.model)[0].mlp.held = Lock()
    assert "holds what cannot be named: lock" in found.tried().error


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
    monkeypatch.setattr(precision_probe, "features", lambda: b"a processor with other products")
    assert measured() == measured() == {"ms": 6}


def test_a_measurement_that_cannot_be_kept_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "file" / "cache"))
    assert [precision_probe.remembered("kind", "a", lambda ms=ms: {"ms": ms}) for ms in (1, 2)] == [
        {"ms": 1},
        {"ms": 2},
    ]


def test_where_nothing_can_be_compiled_layers_stay_as_they_are(gym_cache: Path) -> None:
    with torch._inductor.config.patch({"cpp.cxx": ("false",), "cpp.vec_isa_ok": True}):
        found = layers().tried()
    assert found.error and not found.pays
    assert compiled_code.known(layers().what) is None
    with pytest.raises(UnfitError, match="keeps what compiled layers do not"):
        Layers(layers().model, PACKED, precision="fp32", recomputed="selective").compile()


def test_attention_as_an_operator_is_sound() -> None:
    """What is said of it without numbers, its gradient and its sizes are those of what it computes."""
    draws = torch.Generator().manual_seed(0)
    query, *others = (torch.randn(1, heads, 12, 8, generator=draws).requires_grad_() for heads in (4, 2, 2))
    spans = Spans((5, 4, 3), (None, 0, None)).table
    torch.library.opcheck(torch.ops.gym.attend.default, (query, *others, spans, 0.3, 4, None))
