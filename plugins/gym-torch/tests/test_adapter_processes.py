"""Every adapter that is installed, over two processes: the losses of one, or an error that says by name what cannot be."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from gym_torch_shares import FIGURES, carried_out, one_after_another
from torch.distributed import TCPStore

from gym_core.discovery import entries
from gym_testkit.architectures import write_mixture

NAMES = [entry.name for entry in entries("adapters")]
KEY = "distributed.context_parallel_size"
REFUSED = {
    ("adalora", "fsdp"): ("a part of the gradients", "distributed", "set distributed: ddp"),
    ("prefix_tuning", "shared"): ("do not compute what one does", KEY, f"leave {KEY} out"),
    ("prompt_tuning", "shared"): ("do not compute what one does", KEY, f"leave {KEY} out"),
}
FORMS = [
    ("fsdp", "fp32"),
    pytest.param(("ddp", "fp32"), marks=pytest.mark.slow),
    pytest.param(("fsdp", "bf16"), marks=pytest.mark.slow),
    pytest.param(("ddp", "bf16"), marks=pytest.mark.slow),
    pytest.param(("shared", "fp32"), marks=pytest.mark.slow),
]
Runs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def models(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    mixture = write_mixture(tmp_path_factory.mktemp("mixtures") / "model", model_path)
    return {name: mixture if name == "expert_lora" else model_path for name in NAMES}


@pytest.fixture(scope="module", params=FORMS, ids="-".join)
def form(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module")
def shared(form: tuple[str, str], models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return how two processes did, which carry out all of these runs, one after another."""
    root = tmp_path_factory.mktemp("shared")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gym_torch_shares", "gym_torch.assembly", "gym_torch.distributed.fsdp"])
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    members = [
        context.Process(target=one_after_another, args=(rank, store.port, models, root, *form), daemon=True)
        for rank in (0, 1)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join(300)
    assert [member.exitcode for member in members] == [0, 0]
    first, second = (json.loads((root / f"{rank}.json").read_text()) for rank in (0, 1))
    assert {name for name, found in first.items() if "why" in found} == {
        name for name, found in second.items() if "why" in found
    }
    runs: Runs = first
    return runs


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_train_as_one_or_say_why_not(
    name: str, form: tuple[str, str], shared: Runs, models: dict[str, Path], tmp_path: Path
) -> None:
    strategy, dtype = form
    if (name, strategy) in REFUSED:
        why, key, fix = REFUSED[name, strategy]
        assert why in shared[name]["why"] and (shared[name]["key"], shared[name]["fix"]) == (key, fix)
        assert not shared[name]["begun"], "it was refused in the middle of a run"
        return
    alone = carried_out(name, models[name], tmp_path / "alone", strategy, dtype)
    assert "why" not in shared[name], shared[name]
    # The first values of LoRA-GA are singular vectors of a gradient: they magnify the order in which it was summed.
    bound = 2e-2 if dtype == "bf16" else 1e-3 if name == "lora_ga" else 1e-5
    for figure in FIGURES:
        assert shared[name][figure] == pytest.approx(alone[figure], rel=bound)
    assert alone["loss"][0] != alone["loss"][-1]
