"""Laws of exporters: all or nothing, and what comes back is what went in."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from gym_core import Artifact, Exporter
from gym_testkit import weights
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

laws = laws_of("exporters", "exporter")


@laws("reloads and agrees")
def reloads(brought: Brought, bench: Bench) -> None:
    """What `reload` returns has the names, the shapes and, within the declared bound, the numbers of the model."""
    model, into = bench.model(), bench.path("export")
    exporter = brought.sample().build()
    written = exporter.export(Artifact(model), into)
    assert written == into or into in written.parents, f"{written} is not under {into}"
    after = {name: weights.from_array(array) for name, array in exporter.reload(written).items()}
    before = weights.read(model)
    error = weights.distance(before, after) / weights.size(before)
    bound = cast(type[Exporter], brought.cls).error_bound
    assert error <= bound, f"relative error {error:.4g}, declared at most {bound:.4g}"


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


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a number of bytes, as a disk that is full would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
