"""ExecuTorch programs answer as the model does; `nox -s executorch` has the library."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from gym_core import Artifact, GymError
from gym_export import ExecuTorch
from gym_export.formats.executorch import FILE, InExecuTorch
from gym_export.source import Source


@pytest.mark.skipif(find_spec("executorch") is None, reason="executorch is not installed: nox -s executorch")
def test_a_program_with_a_cache_answers_and_writes_the_same_and_half_of_it_is_refused(
    model_path: Path, tmp_path: Path
) -> None:
    written = ExecuTorch().build().export(Artifact(model_path), tmp_path / "out")
    told = json.loads((written / "certificate.json").read_text())
    assert told["status"] == "verified" and told["relative_difference"] < 1e-5
    assert told["greedy"]["same"] == told["greedy"]["tokens"] > 0 and {"question", "talk"} <= told["prompts"].keys()
    assert "executorch" in told["versions"]
    file = written / FILE
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with Source(Artifact(model_path)) as source, pytest.raises(GymError, match="ExecuTorch does not load it"):
        InExecuTorch(written, source)


@pytest.mark.skipif(find_spec("executorch") is not None, reason="executorch is installed")
def test_without_the_library_nothing_is_written_and_it_is_named(model_path: Path, tmp_path: Path) -> None:
    for unproven, why in ((False, "nothing can prove"), (True, "written by executorch, which is not installed")):
        with pytest.raises(GymError, match=why):
            ExecuTorch(allow_unverified=unproven).build().export(Artifact(model_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
