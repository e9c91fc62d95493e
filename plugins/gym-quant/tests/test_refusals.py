"""What cannot be quantized, or not well enough, says so, and nothing is lost."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gym_core import Artifact, GymError, execute, load_recipe
from gym_core.cli import run as gym
from gym_core.errors import FAILED, OK, BusyError
from gym_core.record import RunRecord
from gym_export import SafetensorsExporter
from gym_quant import AWQ, GPTQ, RTN, Mixed
from gym_testkit.bench import fingerprint
from gym_torch.checkpoints import weight_shards


def rows(path: Path, count: int, text: str = "two and two") -> Path:
    """Return a file of conversations."""
    answer = {"role": "assistant", "content": "four"}
    turns = [{"messages": [{"role": "user", "content": f"{text} {number}"}, answer]} for number in range(count)]
    path.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    return path


def refused(config, run, model, into: Path, match: str) -> None:
    before = fingerprint(model)
    with pytest.raises(GymError, match=match):
        config.build().quantize(run, Artifact(model), into)
    assert fingerprint(model) == before
    assert not into.exists() and not list(into.parent.glob(".*")), "something was left behind"


@pytest.mark.parametrize(
    ("count", "match"), [(1, "1 sample is too few"), (4, "tokens are too few to calibrate layers of 64")]
)
def test_a_calibration_set_that_is_too_small(bench, run_in, tmp_path, count, match):
    data = {"data": str(rows(tmp_path / "few.jsonl", count, "2+2"))}
    refused(
        GPTQ(calibration_length=8),
        run_in(tmp_path / "run", bench.model(), **data),
        bench.model(),
        tmp_path / "run/made",
        match,
    )


def test_an_empty_calibration_set(bench, run_in, tmp_path):
    data = {"data": str(rows(tmp_path / "none.jsonl", 0))}
    refused(
        AWQ(), run_in(tmp_path / "run", bench.model(), **data), bench.model(), tmp_path / "run/made", "no rows|empty"
    )


def test_numbers_that_are_none(bench, tmp_path):
    model = shutil.copytree(bench.model(), tmp_path / "broken")
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(weights, model / "model.safetensors")
    refused(RTN(), bench.trained(model), model, tmp_path / "run/made", "not finite: model.layers.1.mlp.up_proj")


def test_a_model_that_is_quantized_already(bench, tmp_path):
    run = bench.trained(bench.model())
    made = RTN().build().quantize(run, Artifact(bench.model()), tmp_path / "run/made").path
    with pytest.raises(GymError, match="quantized already"):
        RTN().build().quantize(run, Artifact(made), tmp_path / "run/again")
    with pytest.raises(GymError, match="is quantized"):
        alone = shutil.copytree(made, tmp_path / "alone")  # what it was made from is not where it says
        SafetensorsExporter().build().export(Artifact.read(alone), tmp_path / "run/export")
    assert RTN().build().quantize(run, Artifact(bench.model()), made).path == made, "the same once more is there"
    with pytest.raises(GymError, match="holds something else"):
        RTN(bits=8).build().quantize(run, Artifact(bench.model()), made)


def test_a_file_of_samples_that_has_changed(bench, run_in, tmp_path):
    """Its name is the same; what was calibrated on the rows that it held is not what is asked for."""
    file = rows(tmp_path / "rows.jsonl", 60)
    run = run_in(tmp_path / "run", bench.model(), data=str(file))
    quantizer = RTN(holdout_samples=4).build()
    made = quantizer.quantize(run, Artifact(bench.model()), tmp_path / "run/made").path
    assert quantizer.quantize(run, Artifact(bench.model()), made).path == made
    rows(file, 60, "seven and two")
    with pytest.raises(GymError, match="holds something else"):
        quantizer.quantize(run, Artifact(bench.model()), made)


def test_a_full_disk(bench, tmp_path, monkeypatch):
    """In the middle of the weights: the error says so, nothing is left, and the same command then succeeds."""
    run, put, written = bench.trained(bench.model()), weight_shards.put, []

    def full(name, weight, left, into):
        written.append(name)
        if len(written) == 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(name, weight, left, into)

    monkeypatch.setattr(weight_shards, "put", full)
    refused(RTN(), run, bench.model(), tmp_path / "run/made", "No space left")
    monkeypatch.undo()
    assert RTN().build().quantize(run, Artifact(bench.model()), tmp_path / "run/made").path.exists()


def test_two_that_write_the_same_target(bench, tmp_path, monkeypatch):
    """The second one is refused, and takes nothing away from the first."""
    run, put, said = bench.trained(bench.model()), weight_shards.put, []

    def meanwhile(name, weight, left, into):
        if not said:
            with pytest.raises(BusyError, match="is in use") as caught:
                RTN().build().quantize(run, Artifact(bench.model()), tmp_path / "run/made")
            said.append(caught.value)
        put(name, weight, left, into)

    monkeypatch.setattr(weight_shards, "put", meanwhile)
    made = RTN().build().quantize(run, Artifact(bench.model()), tmp_path / "run/made").path
    assert said and (made / "model.safetensors").exists() and not list(made.parent.glob(".made*"))


def test_what_no_run_made_is_quantized_where_it_is_said(bench, tmp_path, capsys):
    model, into = shutil.copytree(bench.model(), tmp_path / "model"), tmp_path / "made"
    assert gym(["quantize", str(model)]) == FAILED
    assert "--into FOLDER" in capsys.readouterr().err
    assert gym(["quantize", str(model), "--into", str(into), "bits=8"]) == OK
    asked = ["quantize", str(model), "--into", str(tmp_path / "better"), "--with", "gptq", "max_kl=0.1"]
    assert gym(asked) == FAILED, "there is nothing to calibrate on"
    assert gym([*asked, f"data={rows(tmp_path / 'rows.jsonl', 64)}"]) == OK
    assert json.loads((tmp_path / "better/quantization.json").read_text())["holdout"]["kl"] < 0.1


def test_a_budget_that_cannot_be_kept(bench, tmp_path):
    config = Mixed(bits_per_weight=3.0, choices=(3, 4))
    refused(config, bench.trained(bench.model()), bench.model(), tmp_path / "run/made", "fewest bits take")


def test_a_bad_result_ends_the_run_and_leaves_what_was_trained(bench, capsys):
    """It can be exported, quantized in another way, and the same command refuses again."""
    recipe = bench.recipe("sft", max_steps=2) | {
        "adapter": "lora",
        "quantization": {"name": "rtn", "bits": 2, "max_kl": 1e-6},
    }
    output = bench.path("run")
    for _ in range(2):
        with pytest.raises(GymError, match=r"KL divergence of the quantized model is .*, above 1e-06") as caught:
            execute(load_recipe({**recipe, "output": str(output)}))
        assert "gym quantize RUN" in caught.value.problems[0].fix
    assert RunRecord(output / "run.json").read()["status"] == "failed"
    assert not (output / "quantized").exists() and (output / "model" / "adapter_model.safetensors").exists()
    assert gym(["export", str(output)]) == OK
    assert gym(["quantize", str(output), "bits=8", "max_kl=0.1", "--json"]) == OK
    made = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["quantized"])
    assert (
        made == output / "quantized-rtn" and json.loads((made / "quantization.json").read_text())["holdout"]["kl"] < 0.1
    )
    assert gym(["quantize", str(output / "checkpoints/step-00000002"), "--with", "gptq", "bits=8"]) == OK
    capsys.readouterr()
    assert gym(["quantize", str(output), "--with", "gym-quant/bnb_4bit"]) == FAILED
    told = capsys.readouterr().err
    assert "--with: bnb_4bit quantizes a model while it is loaded" in told and "--with encoded quantizer=" in told
    assert (output / "quantized-gptq-step-00000002" / "model.safetensors").exists()


def test_a_quantizer_of_loaded_models_does_not_stand_where_finished_ones_are_quantized(tmp_path: Path) -> None:
    recipe = {
        "model": "tiny",
        "data": [{"name": "tiny-tasks", "count": 20}],
        "algorithm": "sft",
        "output": str(tmp_path),
    }
    with pytest.raises(GymError, match="while it is loaded"):
        load_recipe({**recipe, "quantization": "bnb_4bit"}).check()
