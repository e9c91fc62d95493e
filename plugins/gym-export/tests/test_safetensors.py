"""The exporter `safetensors`: what it writes is the model, whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, Qwen3Config

from gym_adapters.lora_checkpoint import read_lora
from gym_core import Artifact, BusyError, GymError, PluginError
from gym_core.outputlock import OutputLock
from gym_export import GGUF, CertifiedExporter, SafetensorsExporter, TorchScript
from gym_export.certified import Certified
from gym_export.formats.safetensors import Safetensors
from gym_export.source import Source
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.model.adapted import Full, Plain
from gym_torch.model_files import INDEX

torch.set_num_threads(1)
TOKENS = torch.tensor([[5, 3, 8, 1, 9]])


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    """A model in bf16 that trained in fp32, with a tokenizer beside it."""
    config = Qwen3Config(
        vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(60)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(told))
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return Artifact(tmp_path / "model")


def logits(path: Path) -> torch.Tensor:
    return AutoModelForCausalLM.from_pretrained(path)(TOKENS).logits.float()


def test_plain_transformers_loads_it_and_agrees(artifact: Artifact, tmp_path: Path) -> None:
    written = SafetensorsExporter().build().export(artifact, tmp_path / "out" / "export")
    assert torch.equal(logits(written), logits(artifact.path))
    names = {path.name for path in written.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "certificate.json"} <= names
    certificate = json.loads((written / "certificate.json").read_text())
    assert certificate["max_difference"] == 0.0 and certificate["dtype"] == "float32"


def test_the_card_comes_along_and_may_be_edited(artifact: Artifact, tmp_path: Path) -> None:
    """It is written for readers: whoever adds a line before publishing changes nothing that was certified."""
    exporter = SafetensorsExporter().build()
    (artifact.path / "README.md").write_text("---\nlibrary_name: transformers\n---\n\n# Mine\n")
    written = exporter.export(artifact, tmp_path / "export")
    assert (written / "README.md").read_text() == (artifact.path / "README.md").read_text()
    for folder in (written, artifact.path):
        with (folder / "README.md").open("a") as card:
            card.write("It answers questions about birds.\n")
    assert exporter.verify(artifact, written)["status"] == "verified"


def test_the_card_of_an_adapter_becomes_that_of_a_whole_model(artifact: Artifact, tmp_path: Path) -> None:
    (artifact.path / "README.md").write_text("---\nlibrary_name: peft\ntags:\n- gym\n---\n\n# Mine\n\nAn adapter.\n")
    Source(replace(artifact, kind="adapter")).carry_card(tmp_path)
    told = "This is a whole model: what this card calls the adapter was added to its base."
    wanted = f"---\nlibrary_name: transformers\ntags:\n- gym\n---\n\n{told}\n\n# Mine\n\nAn adapter.\n"
    assert (tmp_path / "README.md").read_text() == wanted


def test_shards_and_precision(artifact: Artifact, tmp_path: Path) -> None:
    written = SafetensorsExporter(shard_gigabytes=1e-5, dtype="bf16").build().export(artifact, tmp_path / "export")
    assert len(list(written.glob("model-*.safetensors"))) > 1
    model = AutoModelForCausalLM.from_pretrained(written)
    assert model.dtype == torch.bfloat16
    certificate = json.loads((written / "certificate.json").read_text())
    assert 0 < certificate["relative_difference"] < 0.05


def test_the_precision_of_the_artifact_is_kept(artifact: Artifact, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(artifact.path, dtype=torch.bfloat16).save_pretrained(tmp_path / "bf16")
    written = SafetensorsExporter().build().export(Artifact(tmp_path / "bf16"), tmp_path / "export")
    assert AutoModelForCausalLM.from_pretrained(written).dtype == torch.bfloat16
    assert json.loads((written / "certificate.json").read_text())["max_difference"] == 0.0


def test_reload_returns_the_weights(artifact: Artifact, tmp_path: Path) -> None:
    exporter = SafetensorsExporter().build()
    arrays = exporter.reload(exporter.export(artifact, tmp_path / "export"))
    model = AutoModelForCausalLM.from_pretrained(artifact.path)
    assert arrays.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(torch.tensor(arrays[name]), weight) for name, weight in model.named_parameters())


def test_the_same_again_is_returned_and_anything_else_refused(artifact: Artifact, tmp_path: Path) -> None:
    into = tmp_path / "export"
    exporter = SafetensorsExporter().build()
    exporter.export(artifact, into)
    written = (into / "certificate.json").stat().st_mtime_ns
    assert exporter.export(artifact, into) == into
    assert (into / "certificate.json").stat().st_mtime_ns == written
    with pytest.raises(GymError, match="holds something else"):
        SafetensorsExporter(dtype="bf16").build().export(artifact, into)
    with (into / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(GymError, match="holds something else"):
        exporter.export(artifact, into)


def test_a_failure_leaves_nothing(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "model" / "merges.txt").mkdir()  # cannot be copied as a file
    with pytest.raises(GymError, match="the export could not be written: Is a directory"):
        SafetensorsExporter().build().export(artifact, tmp_path / "out" / "export")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_killed_export_left_is_cleared_away_and_a_living_one_is_not(artifact: Artifact, tmp_path: Path) -> None:
    left = tmp_path / "out" / ".export.building"
    (left / "model").mkdir(parents=True)
    (left / "model" / "half.safetensors").write_text("half")
    with OutputLock(left), pytest.raises(BusyError, match="is in use by another run"):
        SafetensorsExporter().build().export(artifact, tmp_path / "out" / "export")
    assert (left / "model" / "half.safetensors").exists()
    written = SafetensorsExporter().build().export(artifact, tmp_path / "out" / "export")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["export"]
    assert not (written / "half.safetensors").exists()


def test_a_model_that_disagrees_is_not_written(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(full: Full) -> Plain:
        changed = {
            name: weight * 1.5 if "up_proj" in name else weight for name, weight in full.model.state_dict().items()
        }
        return Plain(full.model.config, iter(changed.items()))

    monkeypatch.setattr(Full, "merged_weights", other)
    with pytest.raises(GymError, match="disagrees with the artifact"):
        SafetensorsExporter().build().export(artifact, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_an_adapter_of_a_package_that_is_missing(artifact: Artifact, tmp_path: Path) -> None:
    made = Artifact(tmp_path / "model", "adapter", str(artifact.path), {"adapter": "gym_absent:Magic"})
    with pytest.raises(PluginError, match="gym_absent:Magic, which is not installed"):
        SafetensorsExporter().build().export(made, tmp_path / "export")
    gone = Artifact(tmp_path / "gone", "adapter", str(artifact.path), {"adapter": "gym_adapters:LoRA"})
    with pytest.raises(GymError, match="the weights of the adapter are missing"):
        SafetensorsExporter().build().export(gone, tmp_path / "export")
    with pytest.raises(GymError, match="does not say what made it"):
        SafetensorsExporter().build().export(Artifact(artifact.path, "delta", str(artifact.path)), tmp_path / "export")


def rewritten(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change what is in a file of weights."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def unseen_row(building: Path) -> None:
    """Damage a row of the embeddings that stands for no token of the probe."""
    rewritten(building / "model.safetensors", lambda found: found["model.embed_tokens.weight"][50].mul_(2))


def dropped_norm(building: Path) -> None:
    rewritten(building / "model.safetensors", lambda found: found.pop("model.norm.weight"))


def swapped_layers(building: Path) -> None:
    """Let two layers of one shape change places, as a wrong shard would."""

    def swap(found: dict[str, torch.Tensor]) -> None:
        names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1)]
        found.update(zip(names, [found[name] for name in reversed(names)], strict=True))

    rewritten(building / "model.safetensors", swap)


def stale_index(building: Path) -> None:
    """Leave the index of another export behind, which names a shard that is not there."""
    (building / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}))


@pytest.mark.parametrize("damage", [unseen_row, dropped_norm, swapped_layers, stale_index])
def test_whatever_is_wrong_with_what_was_written_is_noticed(
    artifact: Artifact, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    class Damaging(Safetensors):
        def write(self, source: Source, into: Path) -> Mapping[str, Any]:
            told = super().write(source, into)
            damage(into)
            return told

    exporter = Certified(SafetensorsExporter(), Damaging(SafetensorsExporter()))
    with pytest.raises(GymError, match=r"read back|missing"):
        exporter.export(artifact, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_an_artifact_with_a_weight_missing_is_not_made_up_for(artifact: Artifact, tmp_path: Path) -> None:
    rewritten(artifact.path / "model.safetensors", lambda found: found.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(GymError, match=r"missing weights: model\.layers\.1\.mlp\.up_proj\.weight"):
        SafetensorsExporter().build().export(artifact, tmp_path / "export")


def test_numbers_that_fp16_cannot_hold_are_named(artifact: Artifact, tmp_path: Path) -> None:
    rewritten(artifact.path / "model.safetensors", lambda found: found["model.norm.weight"][3].fill_(1e5))
    with pytest.raises(
        GymError, match=r"model\.norm\.weight has numbers up to 1e\+05, and fp16 ends at 65504\n.*dtype=bf16"
    ):
        SafetensorsExporter(dtype="fp16").build().export(artifact, tmp_path / "export")


def test_others_may_read_what_is_written_as_the_umask_says(artifact: Artifact, tmp_path: Path) -> None:
    written = SafetensorsExporter().build().export(artifact, tmp_path / "export")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in written.iterdir()}
    assert modes["model.safetensors"] == modes["certificate.json"] == 0o666 & ~umask()


def umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


def lora_over_bf16(model_path: Path, place: Path, *whole: str) -> Artifact:
    """Return a LoRA over a base in bf16, beside modules that trained whole."""
    from gym_adapters import LoRA
    from gym_torch.model.adapted import build_adapter
    from gym_torch.model.mapped_weights import load

    base = place / "base"
    AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).save_pretrained(base)
    copy_tokenizer(model_path, base)
    tuned = build_adapter(LoRA(rank=2, modules_to_save=whole), load(base))
    torch.manual_seed(0)
    tuned.load({name: 0.1 * torch.randn_like(weight) for name, weight in tuned.state().items()})
    return tuned.save(place / "adapter", str(base))


@pytest.fixture(scope="module")
def over_bf16(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A LoRA over a base in bf16."""
    return lora_over_bf16(model_path, tmp_path_factory.mktemp("over-bf16"))


@pytest.mark.parametrize("whole", [(), ("norm",)], ids=["", "with a norm that trained whole"])
@pytest.mark.parametrize(
    "exporter", [SafetensorsExporter(dtype="fp32"), TorchScript()], ids=lambda each: type(each).__name__
)
def test_in_fp32_an_adapter_over_a_base_in_bf16_is_not_rounded_to_that(
    model_path: Path, tmp_path: Path, exporter: CertifiedExporter, whole: tuple[str, ...]
) -> None:
    """Else what is written is off by what bf16 rounds, and is refused."""
    artifact = lora_over_bf16(model_path, tmp_path, *whole)
    written = exporter.build().export(artifact, tmp_path / "export")
    assert json.loads((written / "certificate.json").read_text())["relative_difference"] < 1e-5


FINER = {
    "fp16": (SafetensorsExporter(dtype="fp16"), 2**-11),
    "gguf f32": (GGUF(type="f32", runtime="gguf"), 1e-5),
    "gguf f16": (GGUF(type="f16", runtime="gguf"), 2**-11),
}


@pytest.mark.parametrize("kind", FINER)
def test_what_holds_more_digits_than_the_base_is_rounded_once(over_bf16: Artifact, tmp_path: Path, kind: str) -> None:
    """A sum of a base in bf16 and an adapter that is written in fp16 is not rounded to bf16 on the way."""
    exporter, bound = FINER[kind]
    certified = exporter.build()
    found = certified.reload(certified.export(over_bf16, tmp_path / "export"))
    base = load_file(Path(over_bf16.base) / "model.safetensors")
    adapter, scaling = load_file(over_bf16.path / "adapter_model.safetensors"), read_lora(over_bf16.path).scaling
    name = "model.layers.0.mlp.up_proj"
    pair = [adapter[f"base_model.model.{name}.lora_{half}.weight"].double() for half in "BA"]
    wanted = base[f"{name}.weight"].double() + scaling * pair[0] @ pair[1]
    off = torch.tensor(found[f"{name}.weight"], dtype=torch.float64) - wanted
    assert float((off.abs() / wanted.abs().clamp(min=1e-3)).max()) <= 1.01 * bound


def test_weights_that_files_hold_in_fp32_are_exported_so(model_path: Path, tmp_path: Path) -> None:
    """Bit for bit, though the configuration says bf16 of all, and transformers loads all in that."""
    artifact = lora_over_bf16(model_path, tmp_path)
    file = Path(artifact.base) / "model.safetensors"
    finer = {name: each for name, each in load_file(model_path / "model.safetensors").items() if "norm" in name}
    save_file(load_file(file) | finer, file, metadata={"format": "pt"})
    for source in (artifact, Artifact(file.parent, "model")):
        made = SafetensorsExporter().build().export(source, tmp_path / f"{source.kind}-made")
        found = load_file(made / "model.safetensors")
        assert {name for name, each in found.items() if each.dtype == torch.float32} == finer.keys()
        assert all(torch.equal(found[name], each) for name, each in finer.items())


def test_weights_in_fp32_of_a_run_in_bf16_are_exported_in_bf16(model_path: Path, tmp_path: Path) -> None:
    """A checkpoint of a whole model holds what trained, in fp32, and says what the model is stored in."""
    artifact = Artifact(model_path, "model", details={"dtype": "bfloat16"})
    made = SafetensorsExporter().build().export(artifact, tmp_path / "made")
    wanted, found = (load_file(path / "model.safetensors") for path in (model_path, made))
    assert wanted["model.norm.weight"].dtype == torch.float32
    assert found.keys() == wanted.keys()
    assert all(torch.equal(weight, wanted[name].bfloat16()) for name, weight in found.items())


def of_peft(base: Path, into: Path, **options: Any) -> torch.Tensor:
    """Have peft write an adapter of random numbers over a model; return what it answers."""
    tuned = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, task_type="CAUSAL_LM", **options)
    )
    torch.manual_seed(1)
    for weight in tuned.parameters():
        weight.data += 0.1 * torch.randn_like(weight) * weight.requires_grad
    tuned.save_pretrained(into)
    return tuned.eval()(TOKENS).logits.detach()


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": "all-linear", "use_rslora": True},
        {"target_modules": ["q_proj", "up_proj"], "use_dora": True, "layers_to_transform": [1]},
        {"target_modules": ["v_proj"], "modules_to_save": ["norm", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
    ],
    ids=["rank-stabilized", "dora", "modules_to_save", "embeddings"],
)
def test_a_folder_of_peft_becomes_what_peft_answers(artifact: Artifact, tmp_path: Path, options: Any) -> None:
    wanted = of_peft(artifact.path, tmp_path / "adapter", **options)
    of_base = Artifact(tmp_path / "adapter", "adapter", base=str(artifact.path))
    written = SafetensorsExporter().build().export(of_base, tmp_path / "export")
    assert (wanted - logits(artifact.path)).norm() > 0.05 * wanted.norm()
    torch.testing.assert_close(logits(written), wanted, rtol=1e-4, atol=1e-4)
