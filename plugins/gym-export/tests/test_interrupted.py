"""What ends an export in the middle leaves nothing under its final name, whenever it comes."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gym_core import Artifact, GymError
from gym_export import OpenVINO, SafetensorsExporter, certificate
from gym_export.certified import Certified
from gym_export.formats.safetensors import Safetensors
from gym_export.source import Source
from gym_torch.checkpoints.base_fingerprint import SAID, base_fingerprint

FORK = multiprocessing.get_context("fork")
Reached = Callable[[], None]


def while_writing(into: Path, reached: Reached) -> None:
    """Stop in the middle of the weights."""

    class Halting(Safetensors):
        def write(self, source: Source, building: Path) -> Mapping[str, Any]:
            (building / "model.safetensors").write_bytes(b"half of them")
            reached()
            raise AssertionError

    Certified(SafetensorsExporter(), Halting(SafetensorsExporter())).export(Artifact(into.parent / "model"), into)


def while_comparing(into: Path, reached: Reached) -> None:
    """Stop when everything is written, and nothing is certified."""

    class Halting(Safetensors):
        def write(self, source: Source, building: Path) -> Mapping[str, Any]:
            super().write(source, building)
            reached()
            raise AssertionError

    Certified(SafetensorsExporter(), Halting(SafetensorsExporter())).export(Artifact(into.parent / "model"), into)


def while_certifying(into: Path, reached: Reached) -> None:
    """Stop in the middle of the certificate."""

    def half(path: Path, told: Mapping[str, Any]) -> None:
        (path / "certificate.json").write_text(json.dumps(dict(told))[:40])
        reached()

    certificate.write = half
    SafetensorsExporter().build().export(Artifact(into.parent / "model"), into)


def while_converting(into: Path, reached: Reached) -> None:
    """Stop where OpenVINO, which need not be installed, is given the graph that it is to convert."""
    stands_in: Any = ModuleType("openvino")
    stands_in.__spec__ = ModuleSpec("openvino", None)
    stands_in.convert_model = lambda graph: reached()
    sys.modules["openvino"] = stands_in
    OpenVINO().build().export(Artifact(into.parent / "model"), into)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*")
@pytest.mark.parametrize("when", [while_writing, while_converting, while_comparing, while_certifying])
def test_a_kill_leaves_no_half_export_and_the_next_one_is_whole(
    model_path: Path, tmp_path: Path, when: Callable[[Path, Reached], None]
) -> None:
    (tmp_path / "model").symlink_to(model_path)
    into, (here, there) = tmp_path / "out" / "export", FORK.Pipe()
    into.parent.mkdir()
    (into.parent / "model").symlink_to(model_path)

    def reached() -> None:
        there.send("reached")
        there.recv()

    process = FORK.Process(target=when, args=(into, reached))
    process.start()
    assert here.poll(60) and here.recv() == "reached"
    process.kill()
    process.join()
    assert not into.exists()
    assert any(path.name.startswith(".export") for path in into.parent.iterdir()), "it was killed before it wrote"
    SafetensorsExporter().build().export(Artifact(model_path), into)
    assert sorted(path.name for path in into.parent.iterdir()) == ["export", "model"]
    certificate.check_files(into, certificate.read(into))


def test_a_comparison_that_nobody_waits_for_any_more_ends_without_a_word(tmp_path: Path) -> None:
    request = {"said": str(tmp_path / "said.txt")}  # which fails: how is of no interest
    command = [sys.executable, "-m", "gym_export.process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdin and server.stdout and server.stderr
        server.stdout.close()
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.close()
        assert (server.stderr.read(), server.wait()) == (b"", 0)
    assert (tmp_path / "said.txt").is_file(), "it was carried out"


def lora(path: Path, base: Path) -> Artifact:
    """Write a LoRA over a base, which says what it belongs to, as a run does."""
    from gym_adapters import LoRA
    from gym_torch.model.adapted import build_adapter
    from gym_torch.model.mapped_weights import load

    path.mkdir()
    made = build_adapter(LoRA(rank=2), load(base)).save(path, str(base))
    return replace(made, details=made.details | {SAID: base_fingerprint(base)})


def test_an_adapter_over_a_base_that_changed_is_caught(tmp_path: Path) -> None:
    from gym_testkit.tiny import write_model

    base, other = write_model(tmp_path / "base"), write_model(tmp_path / "other", seed=1)
    made = lora(tmp_path / "adapter", base)
    exporter = SafetensorsExporter().build()
    into = exporter.export(made, tmp_path / "out")
    exporter.verify(made, into)
    (base / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(GymError, match="the base is another one"):
        exporter.verify(made, into)
    with pytest.raises(GymError, match="it belongs to another base: fingerprint"):
        exporter.export(made, tmp_path / "again")
    assert not (tmp_path / "again").exists()
