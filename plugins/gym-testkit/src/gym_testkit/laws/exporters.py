"""Laws of exporters: all or nothing, and what comes back is the model: adapter merged, head kept, or refused by name."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from gym_core import Artifact, Exporter, GymError
from gym_testkit import weights
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

laws = laws_of("exporters", "exporter")

RANK, ALPHA = 4, 8
TOKENS = (72, 101, 108, 108, 111, 257, 10, 33)
HEAD = "value_head.safetensors"


def _class(brought: Brought) -> type[Exporter]:
    return cast(type[Exporter], brought.cls)


def _by_weights(brought: Brought) -> bool:
    return _class(brought).compares == "weights"


@laws("reloads and agrees", _by_weights)
def reloads(brought: Brought, bench: Bench) -> None:
    """What `reload` returns has the names, the shapes and, within the declared bound, the numbers of the model."""
    model = bench.model()
    _agree(brought, _exported(brought, bench, Artifact(model)), weights.read(model))


@laws("an adapter is merged", lambda brought: _by_weights(brought) and "adapter" in _class(brought).artifacts)
def merges(brought: Brought, bench: Bench) -> None:
    """Of a LoRA beside its base comes the base with the update in it, and none of the factors."""
    artifact, merged = _lora(bench)
    _agree(brought, _exported(brought, bench, artifact), merged, rounding=1e-6)


@laws("what it answers agrees, adapters merged", lambda brought: not _by_weights(brought))
def answers(brought: Brought, bench: Bench) -> None:
    """What the runtime answers are the logits of the model, within the declared bound; of a LoRA, of base and update."""
    sources = [(Artifact(bench.model()), bench.model())]
    if "adapter" in _class(brought).artifacts:
        lora, merged = _lora(bench)
        sources.append((lora, bench.model_with(merged, "merged")))
    for number, (artifact, plain) in enumerate(sources):
        exporter = brought.sample().build()
        written = exporter.export(artifact, bench.root / f"answers-{number}")
        wanted, found = _logits(plain), weights.from_array(exporter.answers(artifact, written, TOKENS))
        error = weights.distance({"": wanted}, {"": found}) / weights.size({"": wanted})
        bound = cast(Exporter, brought.sample()).error_bound()
        assert error <= bound, f"relative error {error:.4g}, declared at most {bound:.4g}"


@laws("verifies again, and notices what changed")
def verifies(brought: Brought, bench: Bench) -> None:
    """`verify` returns what it measured; a flipped byte, a truncated file, one too many and another model raise an error."""
    model, into = bench.model(), bench.path("export")
    exporter = brought.sample().build()
    written = exporter.export(Artifact(model), into)
    assert exporter.verify(Artifact(model), written), "`verify` says nothing of what it found"
    for file in [file for file in written.rglob("*") if file.is_file()] if written.is_dir() else [written]:
        before = file.read_bytes()
        flipped = bytearray(before)
        flipped[len(before) // 2] ^= 1
        for changed in (bytes(flipped), before[: len(before) // 2]):
            file.write_bytes(changed)
            with pytest.raises(GymError):
                exporter.verify(Artifact(model), written)
        file.write_bytes(before)
    exporter.verify(Artifact(model), written)
    with pytest.raises(GymError):
        exporter.verify(Artifact(bench.model(7)), written)


@laws("a head of numbers is kept", lambda brought: {*_class(brought).tasks} != {"causal-lm"})
def keeps_heads(brought: Brought, bench: Bench) -> None:
    """Of a model that scores come the weights of its head too."""
    for task in {*_class(brought).tasks} - {"causal-lm"}:
        artifact, head = _scoring(bench, task)
        found = _exported(brought, bench, artifact, f"export-{task}")
        kept = [tensor for tensor in found.values() if tensor.shape == head.shape]
        bound = max(cast(Exporter, brought.sample()).error_bound(), 1e-6)
        near = [weights.distance({"": head}, {"": tensor}) / weights.size({"": head}) for tensor in kept]
        assert min(near, default=1.0) <= bound, f"the head of {task} is not in what was written"


@laws("what it cannot carry is refused by name")
def refuses(brought: Brought, bench: Bench) -> None:
    """An artifact of a kind or for a task that it does not declare raises an error, from the hook that calls it."""
    able, exporter = _class(brought), cast(Exporter, brought.sample())
    lora, _ = _lora(bench)
    strange = [Artifact(bench.model(), "delta"), lora, *(_scoring(bench, task)[0] for task in _TASKS)]
    for artifact in strange:
        if artifact.kind in able.artifacts and artifact.task in able.tasks:
            continue
        with pytest.raises(GymError, match="cannot write an artifact of"):
            exporter.carries(artifact)


@laws("is atomic: a disk that fills up leaves nothing behind")
def atomic(brought: Brought, bench: Bench) -> None:
    """An export that fails half-way raises and leaves no file where a reader would look."""
    model, into = bench.model(), bench.path("export")
    exporter = brought.sample().build()
    with _largest_file(4096), pytest.raises(Exception):  # noqa: B017 - what a full disk raises is the library's affair
        exporter.export(Artifact(model), into)
    left = [path for path in into.rglob("*") if path.is_file()] if into.is_dir() else [into] if into.exists() else []
    assert not left, f"left behind: {', '.join(str(path.relative_to(bench.root)) for path in left)}"
    assert exporter.export(Artifact(model), into).exists(), "it does not succeed afterwards"


@laws("the model is untouched")
def untouched(brought: Brought, bench: Bench) -> None:
    """Not one byte of the artifact changes."""
    model = bench.model()
    before = fingerprint(model)
    brought.sample().build().export(Artifact(model), bench.path("export"))
    assert fingerprint(model) == before


_TASKS = ("sequence-classification", "token-classification")


def _exported(brought: Brought, bench: Bench, artifact: Artifact, name: str = "export") -> dict[str, weights.Tensor]:
    """Return what an exporter reads back of what it wrote of an artifact."""
    into, exporter = bench.root / name, brought.sample().build()
    shutil.rmtree(into, ignore_errors=True)
    written = exporter.export(artifact, into)
    assert isinstance(written, Path) and written.exists(), f"`export` returned {written!r}, no path of what it wrote"
    assert written == into or into in written.parents, f"{written} is not under {into}"
    return {name: weights.from_array(array) for name, array in exporter.reload(written).items()}


def _agree(
    brought: Brought, found: Mapping[str, weights.Tensor], wanted: Mapping[str, weights.Tensor], rounding: float = 0.0
) -> None:
    """Hold what was read back to a model; `rounding` is what even an exporter may be off that declares no error."""
    error = weights.distance(wanted, found) / weights.size(wanted)
    bound = max(cast(Exporter, brought.sample()).error_bound(), rounding)
    assert error <= bound, f"relative error {error:.4g}, declared at most {bound:.4g}"


def _logits(model: Path) -> weights.Tensor:
    """Return the logits `[tokens, vocabulary]` of a model, as plain transformers computes them in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(torch.tensor([TOKENS])).logits[0]
    return weights.from_array(found.numpy())


def _lora(bench: Bench) -> tuple[Artifact, dict[str, weights.Tensor]]:
    """Return a LoRA on the queries of the tiny model, and `W + alpha / rank B A` worked out by hand."""
    base, path = bench.model(), bench.root / "lora"
    merged, factors = dict(weights.read(base)), dict[str, weights.Tensor]()
    for number, name in enumerate(sorted(name for name in merged if name.endswith("q_proj.weight"))):
        rows, columns = merged[name].shape
        a, b = weights.normal((RANK, columns), number, 0.1), weights.normal((rows, RANK), 100 + number, 0.1)
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        factors |= {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
        left, right, own = b.list(), a.list(), merged[name].list()
        update = [
            sum(left[row * RANK + rank] * right[rank * columns + column] for rank in range(RANK))
            for row in range(rows)
            for column in range(columns)
        ]
        total = [held + ALPHA / RANK * more for held, more in zip(own, update, strict=True)]
        merged[name] = weights.Tensor((rows, columns), total)
    path.mkdir(exist_ok=True)
    weights.write(path / "adapter_model.safetensors", factors)
    told = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj"]}
    (path / "adapter_config.json").write_text(json.dumps({**told, "base_model_name_or_path": str(base)}))
    options = {"rank": RANK, "alpha": ALPHA, "target_modules": "q_proj"}
    return Artifact(path, "adapter", str(base), {"adapter": "gym_adapters:LoRA", "options": options}), merged


def _scoring(bench: Bench, task: str) -> tuple[Artifact, weights.Tensor]:
    """Return the tiny model with a head of numbers for a task beside it, and the weights of the head."""
    model = bench.model(1)
    width = weights.read(model)["model.norm.weight"].shape[0]
    head = weights.normal((1, width), 7)
    if not (model / HEAD).exists():
        weights.write(
            Path(model / HEAD), {"v_head.summary.weight": head, "v_head.summary.bias": weights.constant((1,), 0)}
        )
    return Artifact(model, task=task), head


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a number of bytes, as a disk that is full would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
