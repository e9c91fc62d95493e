"""A run that is made longer, and one whose best is shipped: continued exactly, from the same base, or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import Crash, Event, Memory, make_run, metrics, same, train, weights
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gym_core import Artifact, DataError, GymError
from gym_export import SafetensorsExporter
from gym_optim.config import Constant, ScheduleFreeAdamW
from gym_torch import EarlyStopping
from gym_torch.model.scalar_head import FILE

CONSTANT: dict[str, Any] = {"scheduler": Constant()}


@pytest.mark.parametrize("length", ["max_steps", "epochs", "tokens"])
def test_a_finished_run_goes_on_as_if_it_had_been_longer(model_path: Path, tmp_path: Path, length: str) -> None:
    lengths: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "max_steps": ({"max_steps": 4}, {"max_steps": 9}),
        "epochs": ({"max_steps": None, "epochs": 1.0}, {"max_steps": None, "epochs": 2.0}),
        "tokens": ({"max_steps": 3}, {"max_steps": 7}),
    }
    more = {"batch_tokens": 64, "batch_size": None} if length == "tokens" else {}
    short, long = ({**settings, **more} for settings in lengths[length])
    train(make_run(model_path, tmp_path / "whole", sections=CONSTANT, **long))
    train(make_run(model_path, tmp_path / "run", sections=CONSTANT, **short))
    before = weights(tmp_path / "run")
    train(make_run(model_path, tmp_path / "run", sections=CONSTANT, **long))
    assert not same(weights(tmp_path / "run"), before)
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.parametrize("batch", [{"batch_size": 10}, {"batch_tokens": 100, "batch_size": None}])
def test_no_sample_is_passed_over_where_the_data_cut_the_last_step_short(
    model_path: Path, tmp_path: Path, batch: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for epochs in (1.0, 2.0):
        run = make_run(model_path, tmp_path, sections=CONSTANT, max_steps=None, epochs=epochs, **batch)
        train(run)
        assert ("ended with the data of the shorter run" in capsys.readouterr().err) == (epochs == 2)
    assert json.loads((tmp_path / "run.json").read_text())["training"]["samples"] == 48


def test_it_says_what_becomes_of_a_rate_that_falls(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(make_run(model_path, tmp_path, max_steps=4, warmup=0.0))
    train(make_run(model_path, tmp_path, max_steps=8, warmup=0.0))
    assert "4 steps become 8; the learning rate was that of the shorter run up to step 4 (0.25 of its peak)" in (
        capsys.readouterr().err
    )
    assert [line["learning_rate"] for line in metrics(tmp_path)][3:5] == pytest.approx([0.0025, 0.005])


def test_what_stopped_a_run_early_does_not_stop_a_longer_one_at_once(model_path: Path, tmp_path: Path) -> None:
    sections = {"callbacks": (EarlyStopping(patience=2, threshold=100.0),), **CONSTANT}
    for steps in (8, 12):
        train(make_run(model_path, tmp_path, Memory(held_out=6), sections=sections, max_steps=steps, eval_every=1))
    assert metrics(tmp_path)[-1]["step"] > 3


def test_a_run_cannot_be_made_shorter(model_path: Path, tmp_path: Path) -> None:
    train(make_run(model_path, tmp_path, max_steps=4))
    with pytest.raises(DataError, match="the run had 4 steps when the checkpoint was written, and has 3"):
        train(make_run(model_path, tmp_path, max_steps=3))


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json"])
def test_a_base_that_was_replaced_is_refused(model_path: Path, tmp_path: Path, changed: str) -> None:
    from gym_adapters import LoRA

    base = shutil.copytree(model_path, tmp_path / "base")
    sections = {"adapter": LoRA(rank=2)}
    with pytest.raises(Crash):
        train(make_run(base, tmp_path / "run", sections={**sections, "callbacks": (Event(step=4),)}, save_every=3))
    if changed == "config.json":
        config = json.loads((base / changed).read_text())
        (base / changed).write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    else:
        held = load_file(base / changed)
        held["model.norm.weight"][0] += 0.5
        save_file(held, base / changed, {"format": "pt"})
    with pytest.raises(GymError, match=r"the base model was .* when the checkpoint was written, and is"):
        train(make_run(base, tmp_path / "run", sections=sections, save_every=3))


def best_of(output: Path) -> Artifact:
    return Artifact.read(output / "checkpoints" / json.loads((output / "run.json").read_text())["best_checkpoint"])


class TestBest:
    """Too large a learning rate: the first evaluation is the best, and the last step is not."""

    settings: dict[str, Any] = {"max_steps": 6, "eval_every": 1, "learning_rate": 1.0, "keep_last": 1, "warmup": 0.0}

    def run(self, model: Path, output: Path, sections: dict[str, Any] | None = None, **more: Any) -> Artifact:
        sections = CONSTANT | (sections or {})
        return train(make_run(model, output, Memory(held_out=6), sections=sections, **self.settings | more))

    @pytest.mark.parametrize("optimizer", [None, ScheduleFreeAdamW()])
    def test_it_is_shipped_where_asked(self, model_path: Path, tmp_path: Path, optimizer: Any) -> None:
        sections = {"optimizer": optimizer} if optimizer else {}
        made = self.run(model_path, tmp_path / "best", sections, load_best_model_at_end=True)
        lines = [line for line in metrics(tmp_path / "best") if "eval_loss" in line]
        best = min(lines, key=lambda line: line["eval_loss"])["step"]
        assert best < 6 and made.details["step"] == best
        told = next(line["eval_loss"] for line in lines if line["step"] == best)
        assert json.loads((tmp_path / "best" / "eval_results.json").read_text())["eval_loss"] == told
        card = (made.path / "README.md").read_text()
        assert f"| weights of step | {best} |" in card and f"| eval_loss | {round(told, 4)} |" in card
        self.run(model_path, tmp_path / "short", sections, max_steps=best)
        assert same(weights(tmp_path / "best"), weights(tmp_path / "short"))

    def test_a_best_that_nobody_kept_is_not_waited_for(
        self, model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Whether the best is kept may change when a run goes on; that of before is then gone, here since step 1."""
        with pytest.raises(Crash):
            self.run(model_path, tmp_path / "run", {"callbacks": (Event(step=5),)}, save_every=1)
        for path in (tmp_path / "run" / "checkpoints").iterdir():
            assert path.name == "step-00000004"
        made = self.run(model_path, tmp_path / "run", load_best_model_at_end=True, save_every=1)
        assert "no whole checkpoint of step 1, the best so far" in capsys.readouterr().err
        lines = [line for line in metrics(tmp_path / "run") if "eval_loss" in line and line["step"] > 4]
        best = min(lines, key=lambda line: line["eval_loss"])["step"]
        assert made.details["step"] == best
        assert json.loads((tmp_path / "run" / "run.json").read_text())["training"]["best"]["step"] == best

    def test_a_checkpoint_is_exported_and_best_is_one(self, model_path: Path, tmp_path: Path) -> None:
        self.run(model_path, tmp_path / "run", keep_best=True)
        found = best_of(tmp_path / "run")
        written = SafetensorsExporter().build().export(found, tmp_path / "export")
        held = load_file(written / "model.safetensors")
        assert same(held, load_file(found.path / "model.safetensors")) and not same(held, weights(tmp_path / "run"))
        assert AutoModelForCausalLM.from_pretrained(written).dtype == torch.float32

    def test_a_damaged_checkpoint_is_not_exported(self, model_path: Path, tmp_path: Path) -> None:
        self.run(model_path, tmp_path / "run", keep_best=True)
        found = best_of(tmp_path / "run")
        (found.path / FILE).write_bytes(b"stale")
        with pytest.raises(GymError, match=f"the checkpoint is damaged: {FILE} does not belong to it"):
            SafetensorsExporter().build().export(found, tmp_path / "export")

    def test_weights_that_an_optimizer_averages_are_not_taken_for_those_to_use(
        self, model_path: Path, tmp_path: Path
    ) -> None:
        self.run(model_path, tmp_path / "run", {"optimizer": ScheduleFreeAdamW()})
        found = Artifact.read(next((tmp_path / "run" / "checkpoints").glob("step-*")))
        with pytest.raises(GymError, match="the optimizer averages"):
            SafetensorsExporter().build().export(found, tmp_path / "export")
