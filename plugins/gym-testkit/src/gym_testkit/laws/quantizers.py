"""Laws of quantizers: what they declare is what is measured, and what is quantized stays as it was.

One set is for those that work on an artifact, the other for those that work while a model is loaded. Of the first, those of
deltas (`gym_torch.kinds.DeltaQuantizer`) get a base and what it became, and the change is measured in the place of the weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gym_core import Artifact, GymError, Problem, Quantizer
from gym_testkit import weights
from gym_testkit.bench import Bench, fingerprint, weight_bytes
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

WIDE = (256, 320)  #: sizes of states and feed-forward layers: 630 thousand numbers
ODD = (37, 67)  #: no group or block divides them
ZEROS = "model.layers.0.mlp.down_proj.weight"

if TYPE_CHECKING:
    from gym_torch.kinds import DeltaQuantizer

laws = laws_of("quantizers", "quantizer")


def _of_artifacts(brought: Brought) -> bool:
    return cast(type[Quantizer], brought.cls).moment in ("artifact", "delta")


def _of_deltas(brought: Brought) -> bool:
    return cast(type[Quantizer], brought.cls).moment == "delta"


def _promises_error(brought: Brought) -> bool:
    return _of_artifacts(brought) and cast(Quantizer, brought.sample()).error_bound() is not None


def _of_models(brought: Brought) -> bool:
    return cast(type[Quantizer], brought.cls).moment == "load" and _refusal(brought) is None


def _bounds_stored(brought: Brought) -> bool:
    return _of_models(brought) and cast(Quantizer, brought.sample()).error_bound() is not None


def _refused(brought: Brought) -> bool:
    return cast(type[Quantizer], brought.cls).moment == "load" and _refusal(brought) is not None


def _refusal(brought: Brought) -> Problem | None:
    """Return why a quantizer of the moment `load` does not run here; None where it does."""
    import torch
    from transformers import PretrainedConfig

    try:
        brought.sample().check()
        brought.sample().build().check(PretrainedConfig(), torch.device("cpu"))
    except GymError as error:
        return error.problems[0]
    return None


@laws("declared size is the size of the files within 2 %", _of_artifacts)
def declared_size(brought: Brought, bench: Bench) -> None:
    """Of a model of 630 thousand numbers: what is stored counts, not what it stands for."""
    base = bench.model_of(*WIDE)
    shapes = {name: tensor.shape for name, tensor in weights.read(base).items()}
    measured = weight_bytes(_quantized(brought, bench, base)[1].path)
    declared = cast(Quantizer, brought.sample()).declared_bytes(shapes)
    told = f"declares {declared} bytes, and the files have {measured}"
    assert measured <= 1.02 * declared, told
    assert declared <= 1.02 * measured or _varies(brought), told


@laws("the error is within the declared bound", _promises_error)
def error_bound(brought: Brought, bench: Bench) -> None:
    """Relative Frobenius error of each matrix of normal numbers."""
    base = bench.model_of(*WIDE)
    quantizer, quantized = _quantized(brought, bench, base)
    before, after = weights.read(_tuned(bench, base) if _of_deltas(brought) else base), _restored(quantizer, quantized)
    start = weights.read(base) if _of_deltas(brought) else {name: _nothing(tensor) for name, tensor in before.items()}
    bound = cast(float, cast(Quantizer, brought.sample()).error_bound())
    for name in [name for name, tensor in before.items() if len(tensor.shape) == 2]:
        size = weights.distance({"": before[name]}, {"": start[name]})
        error = weights.distance({"": before[name]}, {"": after[name]}) / size
        assert error <= bound, f"{name}: relative error {error:.4g}, declared at most {bound:.4g}"


@laws("odd shapes keep their shape, and zeros stay zeros", _of_artifacts)
def odd_shapes(brought: Brought, bench: Bench) -> None:
    """Sizes that no group or block divides, and a matrix of zeros; of a change, one that is zero."""
    base = bench.model_of(*ODD)
    before = weights.read(base)
    before[ZEROS] = weights.constant(before[ZEROS].shape, 0.0)
    weights.write(base / "model.safetensors", before)
    if _of_deltas(brought):
        tuned = weights.read(_tuned(bench, base)) | {ZEROS: before[ZEROS]}
        weights.write(_tuned(bench, base) / "model.safetensors", tuned)
    after = _restored(*_quantized(brought, bench, base))
    assert _shapes(after) == _shapes(before)
    assert all(value == value for tensor in after.values() for value in tensor.values), "not a number appeared"
    assert weights.norm(after[ZEROS].values) == 0.0, "zeros became something else"


@laws("the base is untouched", _of_artifacts)
def base_untouched(brought: Brought, bench: Bench) -> None:
    """Not one byte of the artifact that is quantized changes, and the result stands elsewhere."""
    base = bench.model()
    before = fingerprint(base)
    quantized = _quantized(brought, bench, base)[1]
    assert fingerprint(base) == before
    assert base not in [quantized.path, *quantized.path.parents]


@laws("the same weights give the same files", _of_artifacts)
def deterministic(brought: Brought, bench: Bench) -> None:
    """Two runs agree byte for byte."""
    first, second = (_quantized(brought, bench, bench.model(), name)[1] for name in "ab")
    assert fingerprint(first.path, ".safetensors") == fingerprint(second.path, ".safetensors")


@laws("what it stores is as large as declared within 2 %", _of_models)
def stored_size(brought: Brought, bench: Bench) -> None:
    """Of two matrices, alone and as a stack of three."""
    import torch

    codec, quantizer = brought.sample().build(), cast(Quantizer, brought.sample())
    matrix = torch.randn(WIDE, generator=torch.Generator().manual_seed(1))
    stored = sum(tensor.nbytes for tensor in codec.encode(matrix).values())
    for shape, count in ((WIDE, 1), ((3, *WIDE), 3)):
        declared = quantizer.declared_bytes({"model.layers.0.mlp.up_proj.weight": shape})
        assert abs(declared - count * stored) <= 0.02 * count * stored, (
            f"declares {declared} bytes, and stores {stored}"
        )


@laws("what it computes with is within the declared error", _bounds_stored)
def stored_error(brought: Brought, bench: Bench) -> None:
    """Relative Frobenius error of a matrix of normal numbers."""
    import torch

    codec, matrix = brought.sample().build(), torch.randn(WIDE, generator=torch.Generator().manual_seed(2))
    error = float((codec.decode(codec.encode(matrix), matrix.shape) - matrix).norm() / matrix.norm())
    bound = cast(float, cast(Quantizer, brought.sample()).error_bound())
    assert error <= bound, f"relative error {error:.4g}, declared at most {bound:.4g}"


@laws("a matrix of any shape keeps it, zeros stay zeros, and another process computes with the same", _of_models)
def any_matrix(brought: Brought, bench: Bench) -> None:
    """Sizes that no group or block divides; what is stored is decoded by a codec that never saw the matrix."""
    import torch

    for shape in (ODD, (7, 3), (1, 1), (64, 128)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
        before, codec = matrix.clone(), brought.sample().build()
        stored = codec.encode(matrix)
        assert torch.equal(matrix, before), "the matrix changed"
        assert all(type(tensor) is torch.Tensor and tensor.is_contiguous() for tensor in stored.values())
        again = brought.sample().build()
        assert all(torch.equal(tensor, stored[name]) for name, tensor in again.encode(matrix).items()), (
            "not the same twice"
        )
        fresh = brought.sample().build().decode({name: tensor.clone() for name, tensor in stored.items()}, matrix.shape)
        assert (
            torch.equal(fresh, codec.decode(stored, matrix.shape)) and fresh.shape == shape and fresh.isfinite().all()
        )
        assert not codec.decode(codec.encode(torch.zeros(shape)), matrix.shape).any(), "zeros became something else"


@laws("its product and the gradient are those of the weight that it decodes", _of_models)
def product(brought: Brought, bench: Bench) -> None:
    """Within 2 %, for activations may be rounded too; in fp32 and under autocast."""
    import torch

    codec, matrix = brought.sample().build(), torch.randn(WIDE, generator=torch.Generator().manual_seed(4))
    stored = codec.encode(matrix)
    weight = codec.decode(stored, matrix.shape).float()
    rows = torch.randn(2, 5, WIDE[1], generator=torch.Generator().manual_seed(5), requires_grad=True)
    for low in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            found, wanted = codec.linear(rows, stored, matrix.shape), torch.nn.functional.linear(rows, weight)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert float((found - wanted).norm() / wanted.norm()) < 0.02
        back, expected = (torch.autograd.grad(each.float().sum(), rows)[0] for each in (found, wanted))
        assert float((back - expected).norm() / expected.norm()) < 0.02


@laws("what cannot run here says so, and what would", _refused)
def says_why(brought: Brought, bench: Bench) -> None:
    """A missing library or a missing device: one line with what to do."""
    problem = _refusal(brought)
    assert problem and problem.key and problem.fix, "it does not say where, or what to do"


@laws("another base of the same shapes is refused", _of_deltas)
def another_base(brought: Brought, bench: Bench) -> None:
    """By its weights: one of them is off by the last bit."""
    base = bench.model()
    quantizer, quantized = _quantized(brought, bench, base)
    other = shutil.copytree(base, bench.path("other"))
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    with pytest.raises(GymError, match="another base"):
        list(quantizer.changes(quantized, other))
    with pytest.raises(GymError, match="another base"):
        quantizer.restore(replace(quantized, base=str(other)))


@laws("a model that does not say what its base is, is refused", _of_deltas)
def no_base(brought: Brought, bench: Bench) -> None:
    """Nobody knows what changed."""
    base = bench.model()
    with pytest.raises(GymError, match="base"):
        brought.sample().build().quantize(bench.trained(base), Artifact(base), bench.path("quantized"))


def _quantized(brought: Brought, bench: Bench, base: Path, name: str = "run") -> tuple[Any, Artifact]:
    quantizer, run = brought.sample().build(), bench.trained(base, name)
    artifact = Artifact(base)
    if _of_deltas(brought):
        artifact = Artifact(_tuned(bench, base), details={"base": str(base)})
    return quantizer, quantizer.quantize(run, artifact, run.output / "quantized")


def _tuned(bench: Bench, base: Path) -> Path:
    """Return the directory of a model with a change of normal numbers in every weight of a base."""
    path = bench.root / f"{base.name}-tuned"
    if not path.exists():
        shutil.copytree(base, path)
        before = weights.read(base)
        changes = {
            name: weights.normal(tensor.shape, seed, 0.001) for seed, (name, tensor) in enumerate(before.items())
        }
        tuned = {
            name: weights.Tensor(
                tensor.shape, [a + b for a, b in zip(tensor.values, changes[name].values, strict=True)]
            )
            for name, tensor in before.items()
        }
        weights.write(path / "model.safetensors", tuned)
    return path


def _nothing(tensor: weights.Tensor) -> weights.Tensor:
    return weights.constant(tensor.shape, 0.0)


def _varies(brought: Brought) -> bool:
    """Whether contents decide the size, which is then declared as the most that it can be."""
    return _of_deltas(brought) and cast("DeltaQuantizer", brought.sample()).size_varies()


def _restored(quantizer: Any, quantized: Artifact) -> dict[str, weights.Tensor]:
    return {name: weights.from_array(array) for name, array in quantizer.restore(quantized).items()}


def _shapes(tensors: Mapping[str, weights.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}
