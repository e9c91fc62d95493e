"""Artifacts of kind `delta`: made of a model or an adapter, opened, exported, and refused on any other base."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from gym_bitdelta import BitDelta, DeltaQuant
from gym_bitdelta.delta import file
from gym_bitdelta.models import Models
from gym_bitdelta.store import VariantStore
from gym_core import Artifact, GymError, Run, execute, load_recipe
from gym_core.record import RunRecord
from gym_torch.checkpoints import load_delta
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.model import mapped_weights

QUICK = {"distill_steps": 0, "holdout_samples": 4, "calibration_samples": 4}
TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])


def logits(artifact: Artifact) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = open_artifact(artifact).model(TOKENS).logits
    return found


def test_a_run_makes_a_delta_that_is_opened_exported_and_the_same_again(bench, tmp_path):
    recipe = bench.recipe("sft", max_steps=2) | {
        "quantization": {"method": "bitdelta", "bits": 1, "group_size": 16, **QUICK, "distill_steps": 2},
        "export": "safetensors",
        "output": str(tmp_path / "run"),
    }
    outcome = execute(load_recipe(recipe))
    made = outcome.artifact
    assert made.kind == "delta" and made.base == str(bench.model()) and made.path == tmp_path / "run/quantized"
    told = json.loads((made.path / "delta.json").read_text())
    assert told["file_bytes"] == (made.path / file.NAME).stat().st_size and told["safety"] == "not evaluated"
    assert told["distillation"]["after"] <= told["distillation"]["before"]
    card = (made.path / "README.md").read_text()
    assert told["holdout"]["kl"] >= 0 and "not evaluated" in card and "of the training data" in card
    again = Artifact.read(made.path)
    assert torch.equal(logits(made), logits(again))
    exported = open_artifact(Artifact(outcome.exports[0]))
    with torch.no_grad():
        assert torch.allclose(exported.model(TOKENS).logits, logits(made), atol=1e-5)
    header = file.header_of(made.path / file.NAME)
    assert header.provenance["safety"] == "not evaluated" and header.config["group_size"] == 16


def test_what_is_added_to_a_base_changes_no_other(bench):
    models = Models(Artifact(bench.model()), bench.model(), computing=True)
    before = {name: weight.clone() for name, weight in models.base.named_parameters()}
    ones = {name: torch.ones_like(weight) for name, weight in before.items()}
    for _ in range(2):  # the second begins where the first did
        found = models.again()
        held = dict(models.base.named_parameters())
        assert all(weight.data_ptr() == held[name].data_ptr() for name, weight in found.named_parameters())
        load_delta.add(found, ones.items())
        assert all(torch.equal(weight, before[name] + 1) for name, weight in found.named_parameters())
        assert all(torch.equal(weight, before[name]) for name, weight in models.base.named_parameters())


@pytest.mark.parametrize("options", [{"low_rank": True}, {"low_rank": False}])
def test_a_lora_becomes_factors_or_signs(bench, tmp_path, options, monkeypatch):
    recipe = bench.recipe("sft", max_steps=2) | {
        "adapter": {"name": "lora", "rank": 2},
        "quantization": {"name": "bitdelta", **QUICK, "distill_steps": 1, **options},
        "output": str(tmp_path / "run"),
    }
    loaded, load = [], mapped_weights.load
    monkeypatch.setattr(
        mapped_weights, "load", lambda path, *more, **given: (loaded.append(path), load(path, *more, **given))[1]
    )
    made = execute(load_recipe(recipe)).artifact
    assert len(loaded) == 2, "the base, and below the adapter: what trains scales, and is measured, has these"
    entries = file.header_of(made.path / file.NAME).entries()
    kinds = {name: entry.kind for name, entry in entries.items()}
    assert {kinds["model.norm.weight"], kinds["model.embed_tokens.weight"]} == {"zero"}
    coded = {kind for name, kind in kinds.items() if name.endswith("proj.weight")}
    assert coded == ({"lowrank-q"} if options["low_rank"] else {"dense-q"})
    assert all(entry.rank == 2 for entry in entries.values() if entry.kind == "lowrank-q")
    whole = logits(Artifact.from_json(json.loads((tmp_path / "run/run.json").read_text())["trained"], tmp_path / "run"))
    base = logits(Artifact(bench.model()))
    assert (logits(made) - whole).norm() < (base - whole).norm()


def test_a_delta_belongs_to_one_base(bench, tuned, tmp_path):
    base = bench.model()
    quantizer = BitDelta(**QUICK).build()
    given = tuned(base)
    made = quantizer.quantize(bench.trained(base), given, tmp_path / "delta")
    with pytest.raises(GymError, match="belongs to another base"):
        open_artifact(replace(made, base=str(bench.model(1))))
    with pytest.raises(GymError, match="does not say which base"):
        quantizer.quantize(bench.trained(base, "again"), Artifact(base), tmp_path / "other")
    with pytest.raises(GymError, match="is a delta already"):
        quantizer.quantize(bench.trained(base, "third"), made, tmp_path / "other")
    with pytest.raises(GymError, match="the base has one of shape"):
        wide = bench.model_of(48, 64)
        quantizer.quantize(
            bench.trained(base, "fourth"),
            replace(tuned(base, lambda name, weight: weight), details={"base": str(wide)}),
            tmp_path / "other",
        )
    adapter = replace(given, kind="adapter", details={"base": str(base), "base_fingerprint": "0" * 64})
    with pytest.raises(GymError, match="belongs to another base"):  # what it changed in others is no change of this one
        quantizer.quantize(bench.trained(base, "fifth"), adapter, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_same_again_is_there_and_something_else_is_not_overwritten(bench, tuned, tmp_path):
    base = bench.model()
    run, artifact = bench.trained(base), tuned(base)
    made = BitDelta(**QUICK).build().quantize(run, artifact, tmp_path / "delta")
    stamp = (made.path / file.NAME).stat().st_mtime_ns
    assert BitDelta(**QUICK).build().quantize(run, artifact, tmp_path / "delta") == made
    assert (made.path / file.NAME).stat().st_mtime_ns == stamp
    content = bytearray((made.path / file.NAME).read_bytes())
    (made.path / file.NAME).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(GymError, match="SHA-256 differs"):  # it still is a delta, and not the one that was measured
        BitDelta(**QUICK).build().quantize(run, artifact, tmp_path / "delta")
    with pytest.raises(GymError, match="holds something else"):
        BitDelta(bits=2, **QUICK).build().quantize(run, artifact, tmp_path / "delta")
    with pytest.raises(GymError, match="KL divergence"):
        BitDelta(max_kl=1e-9, **QUICK).build().quantize(run, artifact, tmp_path / "far")
    assert not (tmp_path / "far").exists()


def test_a_sound_delta_under_the_evidence_of_another_is_refused_by_name(bench, tuned, tmp_path):
    """Both files are whole and of one base: only the evidence knows that it was measured on the other one."""

    def other(name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight + 0.05

    base = bench.model()
    quantizer = BitDelta(**QUICK).build()
    first = quantizer.quantize(bench.trained(base, "one"), tuned(base), tmp_path / "first")
    second = quantizer.quantize(bench.trained(base, "two"), tuned(base, other), tmp_path / "second")
    assert torch.equal(logits(first), logits(Artifact.read(first.path)))
    for name in (file.NAME, "delta.json"):
        (first.path / name).write_bytes((second.path / name).read_bytes())
    with VariantStore(tmp_path / "store") as store:
        for use in (logits, lambda swapped: store.create("ann", swapped)):
            with pytest.raises(GymError, match=f"`{file.NAME}` is not the file whose safety and quality were measured"):
                use(Artifact.read(first.path))
        assert not store.listing().variants
    evidence = replace(second, details={**second.details, "safety": {"asr": 0.0}})
    del evidence.details["measured"]
    with pytest.raises(GymError, match="nothing says on which file"):
        logits(evidence)


def test_samples_that_changed_under_the_name_of_their_file_are_something_else(bench, tuned, tmp_path, capsys):
    base, samples = bench.model(), tmp_path / "samples.jsonl"
    (output := tmp_path / "run").mkdir()
    recipe = {"model": str(base), "data": str(samples), "algorithm": "sft", "output": str(output)}
    run, artifact = Run(load_recipe(recipe), output, RunRecord(output / "run.json")), tuned(base)
    quantizer = BitDelta(safety_threshold=0.6, **QUICK).build()

    def write(question: str) -> None:
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "four"}]
        samples.write_text("".join(json.dumps({"id": str(n), "messages": turns}) + "\n" for n in range(12)))

    write("two and two")
    quantizer.quantize(run, artifact, tmp_path / "delta")
    assert "`safety_threshold` 0.6 is not enforced" in capsys.readouterr().err
    quantizer.quantize(run, artifact, tmp_path / "delta")
    write("one and three")
    with pytest.raises(GymError, match="holds something else"):
        quantizer.quantize(run, artifact, tmp_path / "delta")


def test_a_fine_tune_of_another_configuration_is_measured_and_told_as_such(bench, tuned, tmp_path):
    """Positions that are scaled otherwise are no weight: whoever adds the weights alone computes something else."""
    base = bench.model()
    artifact = tuned(base)
    settings = artifact.path / "config.json"
    told = json.loads(settings.read_text())
    settings.write_text(json.dumps(told | {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}))
    options = {**QUICK, "bits": 4, "scale_mode": "row"}
    made = BitDelta(**options).build().quantize(bench.trained(base), artifact, tmp_path / "delta")
    changed = made.details["config"]["rope_parameters"]
    assert changed["rope_theta"] == 20.0
    assert file.header_of(made.path / file.NAME).changed == made.details["config"]
    figures = json.loads((made.path / "delta.json").read_text())["holdout"]
    assert figures["kl"] < 0.01, "the delta was measured under another configuration"
    whole = logits(artifact)
    assert (logits(made) - whole).norm() < 0.2 * (logits(Artifact(base)) - whole).norm()
    again = json.loads(settings.read_text()) | {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}}
    settings.write_text(json.dumps(again))
    with pytest.raises(GymError, match="holds something else"):
        BitDelta(**options).build().quantize(bench.trained(base, "again"), artifact, tmp_path / "delta")


@pytest.mark.parametrize(
    "options",
    [
        {"method": "int4"},
        {"method": "ternary", "calibrate": False},
        {"method": "int2", "symmetric": False},
        {"method": "binary", "per_channel": False},
        {"method": "int8", "group_size": 16},
    ],
)
def test_deltaquant_is_nearer_than_the_base(bench, tuned, tmp_path, options):
    base = bench.model()
    artifact = tuned(base)
    made = DeltaQuant(**QUICK, **options).build().quantize(bench.trained(base), artifact, tmp_path / "delta")
    whole, before = logits(artifact), logits(Artifact(base))
    assert (logits(made) - whole).norm() < 0.8 * (before - whole).norm()


def test_the_python_api_quantizes_what_it_exports(bench, tmp_path):
    from gym import Trainer, TrainingConfig
    from gym.quantization import BitDeltaConfig, BitDeltaQuantizer, DeltaQuantConfig, QuantMethod

    config = BitDeltaConfig(bits=1, group_size=128, safety_threshold=0.6, enable_deltasoup=True)
    assert BitDeltaQuantizer(config).config.scale_mode == "group"
    assert DeltaQuantConfig(method=QuantMethod.INT4, per_channel=True, calibration_samples=256).method == "int4"
    trainer = Trainer(TrainingConfig(**bench.recipe("sft", max_steps=1), output=str(tmp_path / "run")))
    trainer.train()
    written = trainer.export(tmp_path / "out.safetensors", quantization={"name": "bitdelta", **QUICK})
    delta = Artifact.read(tmp_path / "run/quantized-bitdelta")
    with torch.no_grad():
        assert torch.allclose(open_artifact(Artifact(written)).model(TOKENS).logits, logits(delta), atol=1e-5)
