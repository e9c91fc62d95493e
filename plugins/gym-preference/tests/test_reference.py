"""Three references that are one: the adapter left out, scores of a pass before training, a further model."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from preference_cases import pairs, rows, run
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_core import GymError, load_recipe
from gym_preference.pairwise.pair_to_prompt_responses import prompt_responses
from gym_preference.reference_cache import CachedLogProbs, key_of, name_of
from gym_testkit.bench import Bench, Finished, fingerprint
from gym_testkit.tiny import write_model

FORMS: dict[str, dict[str, Any]] = {
    "left out": {"precompute_ref_log_probs": False},
    "kept": {"precompute_ref_log_probs": True},
    "further": {"ref_model": "itself", "precompute_ref_log_probs": False},
    "further, kept": {"ref_model": "itself"},
}


def trained(
    root: Path,
    model: Path,
    form: str,
    adapter: str | None,
    again: bool = False,
    reference: Path | None = None,
    **train: Any,
) -> Finished:
    options = {key: str(reference or model) if value == "itself" else value for key, value in FORMS[form].items()}
    sections: dict[str, Any] = {"adapter": adapter} if adapter else {}
    name = f"{form} {adapter}".replace(",", "").replace(" ", "-")
    return run(root, model, {"name": "dpo", **options}, name, again=again, train=train, **sections)


def kept_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "reference").glob("*.safetensors"))


@pytest.mark.parametrize("adapter", ["lora", None])
def test_all_forms_train_alike(tmp_path: Path, model_path: Path, adapter: str | None) -> None:
    # without an adapter, a second model
    wanted, *others = [trained(tmp_path, model_path, form, adapter) for form in FORMS]
    assert wanted.metrics[0]["loss"] == pytest.approx(np.log(2), abs=1e-6)  # it is the reference still
    assert wanted.metrics[-1]["loss"] < np.log(2) - 0.01 and wanted.metrics[-1]["kl"] > 0
    for other in others:
        for ours, theirs in zip(other.metrics, wanted.metrics, strict=True):
            for measure in ("loss", "rewards/margins", "rewards/chosen", "kl"):
                assert ours[measure] == pytest.approx(theirs[measure], abs=1e-5)


@pytest.mark.parametrize("algorithm", ["dpo", "simpo", "tdpo1", "reward_model"])
def test_pairs_that_are_streamed_train_as_those_that_are_prepared(bench: Bench, algorithm: str) -> None:
    recipe = bench.recipe(algorithm, "preference", max_steps=3, batch_size=2)
    windows = {"sources": recipe["data"], "streaming": True, "buffer_size": 1000}
    whole, streamed = bench.run(recipe, "whole"), bench.run({**recipe, "data": windows}, "streamed")
    assert streamed.series("loss") == whole.series("loss")


def test_who_looks_at_all_samples_first_does_not_stream(bench: Bench) -> None:
    windows = {"sources": str(bench.data("preference")), "streaming": True}
    asked = {"name": "dpo", "precompute_ref_log_probs": True}
    for algorithm, why in (("kto", "looks at its samples before"), (asked, "cannot all be scored")):
        with pytest.raises(GymError, match=why):
            load_recipe({**bench.recipe(algorithm, "preference"), "data": windows}).check()


def test_scores_are_made_once_and_found_by_content(tmp_path: Path, model_path: Path, capsys: Any) -> None:
    trained(tmp_path, model_path, "kept", "lora")
    assert capsys.readouterr().err.count("scores 24 samples, once") == 1
    (file,) = kept_files(tmp_path)
    with safe_open(file, "np") as found:
        assert found.get_tensor("keys").shape == (24, 16)
        assert (found.get_tensor("log_probs") < 0).all()
    before = file.stat().st_ino
    again = tmp_path / "again"
    again.mkdir()
    trained(again, model_path, "further, kept", "lora")  # the same weights, whatever they are called
    assert "samples, once" not in capsys.readouterr().err
    assert [file.stat().st_ino for file in kept_files(tmp_path)] == [before]


def test_the_same_weights_that_compute_something_else_are_another_reference(tmp_path: Path, model_path: Path) -> None:
    turned = shutil.copytree(model_path, tmp_path / "other" / "turned")
    config = json.loads((turned / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 10.0
    (turned / "config.json").write_text(json.dumps(config))
    for model in (model_path, turned):
        algorithm = {"name": "dpo", "precompute_ref_log_probs": True}
        found = run(tmp_path, model, algorithm, model.name, adapter="lora", train={"max_steps": 1})
        assert found.metrics[0]["loss"] == pytest.approx(np.log(2), abs=1e-6), "it is its own reference when it begins"
        assert found.metrics[0]["kl"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("steps", "kept"), [(6, False), (7, True)])
def test_an_adapter_is_left_out_unless_samples_come_again(
    tmp_path: Path, model_path: Path, steps: int, kept: bool
) -> None:
    # of 24 pairs, 4 a step
    run(tmp_path, model_path, {"name": "dpo"}, "run", adapter="lora", train={"max_steps": steps})
    assert bool(kept_files(tmp_path)) == kept


def test_held_out_pairs_are_scored_too(tmp_path: Path, model_path: Path) -> None:
    options = {"precompute_ref_log_probs": True}
    data = {"sources": [str(_file(tmp_path))], "validation": 6}
    found = run(
        tmp_path,
        model_path,
        {"name": "dpo", **options},
        "held-out",
        data=data,
        train={"eval_every": 4, "eval_on_start": True},
    )
    evaluated = [line for line in found.metrics if "eval_loss" in line]
    assert evaluated[0]["step"] == 0 and evaluated[0]["eval_loss"] == pytest.approx(math.log(2))
    assert len(evaluated) == 3 and all(0 <= line["eval_rewards/accuracies"] <= 1 for line in evaluated)


def halved(whole: Finished) -> None:
    """Make of a finished run one that was ended in its middle."""
    output = whole.outcome.output
    shutil.rmtree(output / "checkpoints" / "step-00000008")
    shutil.rmtree(output / "model")
    record = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("adapter", ["lora", None])
def test_a_run_goes_on_against_the_reference_it_began_with(
    tmp_path: Path, model_path: Path, capsys: Any, adapter: str | None, lost: bool
) -> None:
    """Where all weights are trained, what the run began with is nowhere but in its scores, or in the model it names."""
    whole = trained(tmp_path, model_path, "kept", adapter, save_every=4)
    weights = fingerprint(whole.outcome.artifact.path, ".safetensors")
    halved(whole)
    if lost:
        shutil.rmtree(tmp_path / "cache" / "reference")
    again = trained(tmp_path, model_path, "kept", adapter, save_every=4, again=True)
    assert "continuing from step-00000004" in capsys.readouterr().err
    assert fingerprint(again.outcome.artifact.path, ".safetensors") == weights


@pytest.mark.parametrize("adapter", ["loftq", "prompt_tuning"])
def test_an_adapter_that_begins_as_something_is_in_the_reference_of_a_run_that_goes_on(
    tmp_path: Path, model_path: Path, adapter: str
) -> None:
    """Asked live, cached, and after a resume the reference is the policy as it began, quantized base and all."""
    live = trained(tmp_path, model_path, "left out", adapter, save_every=4)
    cached = trained(tmp_path, model_path, "kept", adapter, save_every=4)
    for measure in ("loss", "rewards/margins", "rewards/chosen", "kl"):
        assert live.series(measure) == pytest.approx(cached.series(measure), abs=1e-5)
    assert live.series("loss")[0] == pytest.approx(np.log(2), abs=1e-6) and live.series("rewards/margins")[-1] > 0.01
    weights = fingerprint(live.outcome.artifact.path, ".safetensors")
    halved(live)
    again = trained(tmp_path, model_path, "left out", adapter, save_every=4, again=True)
    assert fingerprint(again.outcome.artifact.path, ".safetensors") == weights


def test_first_values_of_an_adapter_that_are_lost_are_asked_for(tmp_path: Path, model_path: Path) -> None:
    """LoftQ has its own in every checkpoint; other adapters' stand in a folder of the run."""
    live = trained(tmp_path, model_path, "left out", "prompt_tuning", save_every=4)
    halved(live)
    shutil.rmtree(live.outcome.output / "reference")
    with pytest.raises(GymError, match="first values of the adapter"):
        trained(tmp_path, model_path, "left out", "prompt_tuning", save_every=4, again=True)


def test_a_lost_reference_in_bf16_is_found_again(tmp_path: Path, model_path: Path) -> None:
    """What trains is held in fp32, and a copy of the model as it is stored would say something else."""
    stored = shutil.copytree(model_path, tmp_path / "stored")
    AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).save_pretrained(stored)
    settings = {"save_every": 4, "precision": "bf16"}
    whole = trained(tmp_path, stored, "kept", None, **settings)
    weights = fingerprint(whole.outcome.artifact.path, ".safetensors")
    (before,) = kept_files(tmp_path)
    said = load_file(before)["log_probs"]
    halved(whole)
    shutil.rmtree(tmp_path / "cache" / "reference")
    again = trained(tmp_path, stored, "kept", None, again=True, **settings)
    assert kept_files(tmp_path) == [before] and torch.equal(load_file(before)["log_probs"], said)
    assert fingerprint(again.outcome.artifact.path, ".safetensors") == weights


@pytest.mark.parametrize("adapter", [None, "freeze"])
def test_a_second_copy_in_bf16_says_what_the_policy_says(tmp_path: Path, model_path: Path, adapter: str | None) -> None:
    """What trains is held in fp32: embeddings of the copy in bf16 would round all that comes behind them otherwise."""
    stored = shutil.copytree(model_path, tmp_path / "stored")
    AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).save_pretrained(stored)
    found = trained(tmp_path, stored, "left out", adapter, precision="bf16", max_steps=1)
    assert found.series("kl") == [0.0] and found.series("rewards/margins") == [0.0]
    assert not (found.outcome.output / "reference").exists(), "a whole model was written that nobody reads"


@pytest.mark.parametrize(
    ("form", "why"),
    [("kept", "the base model was"), ("further, kept", "the reference is not what it was when the run began")],
)
def test_a_run_does_not_go_on_against_another_reference(tmp_path: Path, model_path: Path, form: str, why: str) -> None:
    changing = write_model(tmp_path / "changing", 0)
    model = changing if form == "kept" else model_path
    halved(trained(tmp_path, model, form, "lora", reference=changing, save_every=4))
    shutil.rmtree(changing)
    write_model(changing, 1)
    shutil.rmtree(tmp_path / "cache" / "reference")
    with pytest.raises(GymError, match=why):
        trained(tmp_path, model, form, "lora", reference=changing, save_every=4, again=True)


def test_what_is_kept_is_found_by_what_made_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {key_of(prompt_responses(pair)): np.ones(int(pair.trained.sum()), np.float32) for pair in pairs()}
    name = name_of("weights", ["fp32"], list(known))
    others = {name_of("others", ["fp32"], list(known)), name_of("weights", ["bf16"], list(known))}
    monkeypatch.setattr("gym_preference.reference_cache.maker", lambda package: {"package": package, "code": "another"})
    assert len({name, *others, name_of("weights", ["fp32"], list(known))}) == 4
    file = tmp_path / f"{name}.safetensors"
    assert not CachedLogProbs.there(file, name)
    CachedLogProbs(known).write(file, name)
    assert CachedLogProbs.there(file, name) and not CachedLogProbs.there(file, "another")
    again = CachedLogProbs.read(file)
    assert all(
        torch.equal(again.of(prompt_responses(pair)), CachedLogProbs(known).of(prompt_responses(pair)))
        for pair in pairs()
    )
    file.write_bytes(b"")
    assert not CachedLogProbs.there(file, name)


def test_a_damaged_file_is_made_again_and_the_cache_does_not_grow_without_end(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained(tmp_path / "a", model_path, "kept", "lora")
    (file,) = kept_files(tmp_path)
    whole = file.read_bytes()
    for damage in (b"", whole[:100]):
        file.write_bytes(damage)
        again = trained(tmp_path / str(len(damage)), model_path, "kept", "lora")
        assert again.series("loss") == first.series("loss") and CachedLogProbs.there(file, file.stem)
    (file.parent / "old.safetensors").write_bytes(whole)
    os.utime(file.parent / "old.safetensors", (0, 0))
    monkeypatch.setenv("GYM_CACHE_SIZE", str(len(whole)))
    file.unlink()
    trained(tmp_path / "b", model_path, "kept", "lora")
    assert kept_files(tmp_path) == [file]


def test_the_key_of_a_pair_is_its_content() -> None:
    one, other = pairs(seed=0), pairs(seed=1)
    assert len({key_of(prompt_responses(pair)) for pair in [*one, *other]}) == 10
    assert [key_of(prompt_responses(pair)) for pair in one] == [
        key_of(prompt_responses(pair)) for pair in pairs(seed=0)
    ]


def test_noise_on_one_side_alone_is_refused(tmp_path: Path, model_path: Path) -> None:
    with pytest.raises(GymError, match=r"model\.neftune_noise_alpha: the noise would be in the policy"):
        recipe = Bench(tmp_path).recipe("dpo", "preference")
        Bench(tmp_path).run(recipe | {"model": {"path": str(model_path), "neftune_noise_alpha": 5.0}})


def _file(root: Path) -> Path:
    return Bench(root).file(rows())
