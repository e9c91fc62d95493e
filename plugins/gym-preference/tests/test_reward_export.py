"""Reward models, exported: plain transformers gives the scores that were trained, and a head that is lost is noticed."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from gym_core import Artifact, GymError
from gym_export import SafetensorsExporter
from gym_export.certified import Certified
from gym_export.formats.safetensors import Safetensors
from gym_export.source import Source
from gym_manage.export import export
from gym_rewards import RewardInput
from gym_rl.reward_models import Model, ProcessModel
from gym_testkit.bench import Bench
from gym_torch.checkpoints.open_artifact import opened
from gym_torch.model.scalar_head import FILE, PREFIX

torch.set_num_threads(1)
TEXTS = [torch.tensor([[72, 105, 32, 109, 101, 258]]), torch.arange(40, 60)[None]]
ANSWERS = [RewardInput(text, messages=[{"role": "user", "content": "2 + 2?"}]) for text in ("4", "I do not know.\nNo.")]
SHAPES = {"reward_model": "preference", "process_reward_model": "stepwise"}


def trained(bench: Bench, algorithm: str, adapter: Any = None, **more: Any) -> Artifact:
    recipe = bench.recipe({"name": algorithm, **more}, SHAPES[algorithm], max_steps=6)
    return bench.run(recipe | ({"adapter": adapter} if adapter else {})).outcome.artifact


@torch.no_grad()
def said(artifact: Artifact, tokens: torch.Tensor) -> torch.Tensor:
    """Return the score of every token, as the run computes it."""
    whole = opened(artifact)
    assert whole.head is not None
    return whole.head(whole.adapted.model.base_model(tokens).last_hidden_state)[0]


@pytest.mark.parametrize("adapter", [None, {"name": "lora", "rank": 4}], ids=["full", "lora"])
def test_a_classifier_of_transformers_gives_the_same_rewards(bench: Bench, adapter: Any) -> None:
    artifact = trained(bench, "reward_model", adapter)
    written = SafetensorsExporter().build().export(artifact, bench.path("export"))
    plain = AutoModelForSequenceClassification.from_pretrained(written).eval()
    for tokens in TEXTS:
        with torch.no_grad():
            assert plain(tokens).logits[0].item() == pytest.approx(said(artifact, tokens)[-1].item(), abs=1e-5)
    rewards = [Model(path=str(path)).build()(ANSWERS) for path in (written, artifact.path.parent)]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-5) and rewards[0][0] != rewards[0][1]
    assert json.loads((written / "certificate.json").read_text())["task"] == "sequence-classification"


@pytest.mark.parametrize("adapter", [None, {"name": "lora", "rank": 4}], ids=["full", "lora"])
def test_a_classifier_of_tokens_gives_the_same_scores_of_steps(bench: Bench, adapter: Any) -> None:
    artifact = trained(bench, "process_reward_model", adapter)
    written = SafetensorsExporter().build().export(artifact, bench.path("export"))
    plain = AutoModelForTokenClassification.from_pretrained(written).eval()
    for tokens in TEXTS:
        with torch.no_grad():
            torch.testing.assert_close(plain(tokens).logits[0, :, 0], said(artifact, tokens), rtol=0, atol=1e-5)
    rewards = [ProcessModel(path=str(path)).build()(ANSWERS) for path in (written, artifact.path.parent)]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-5)


def test_the_bias_of_a_reward_model_stays_where_classifiers_have_none(bench: Bench) -> None:
    """An offset is in no difference of rewards, and what rounding leaves of its gradient is no reason to move it."""
    held = load_file(trained(bench, "reward_model", center_rewards_coefficient=0.1).path / FILE)
    assert held[PREFIX + "bias"].item() == 0.0 and held[PREFIX + "weight"].abs().max() > 0


def test_a_head_that_no_classifier_can_carry_is_refused(bench: Bench) -> None:
    artifact = trained(bench, "reward_model")
    held = load_file(artifact.path / FILE)
    save_file(held | {PREFIX + "bias": torch.tensor([0.3])}, artifact.path / FILE)
    with pytest.raises(GymError, match=r"the head adds 0\.3 to every score"):
        SafetensorsExporter().build().export(artifact, bench.path("export"))


def test_a_head_that_is_missing_is_no_language_model(bench: Bench) -> None:
    artifact = trained(bench, "reward_model")
    (artifact.path / FILE).unlink()
    with pytest.raises(GymError, match=f"there is no {FILE}"):
        SafetensorsExporter().build().export(artifact, bench.path("export"))


@pytest.mark.parametrize(
    "change", [lambda found: found.pop("score.weight"), lambda found: found["score.weight"].neg_()]
)
def test_a_head_that_is_lost_on_the_way_is_noticed(bench: Bench, change: Any) -> None:
    class Losing(Safetensors):
        def write(self, source: Source, into: Path) -> Mapping[str, Any]:
            told = super().write(source, into)
            held = load_file(into / "model.safetensors")
            change(held)
            save_file(held, into / "model.safetensors", {"format": "pt"})
            return told

    exporter = Certified(SafetensorsExporter(), Losing(SafetensorsExporter()))
    with pytest.raises(GymError, match=r"missing weights: score|score\.weight does not read back"):
        exporter.export(trained(bench, "reward_model"), bench.path("export"))


def test_an_adapter_is_opened_and_its_best_exported_from_anywhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.model()
    monkeypatch.chdir(bench.root)
    recipe = bench.recipe("reward_model", "preference", max_steps=2, eval_every=1, keep_best=True, save_every=1)
    data = {"sources": [recipe["data"]], "validation": 0.25}
    made = bench.run(recipe | {"model": "./model-0", "adapter": {"name": "lora", "rank": 2}, "data": data})
    monkeypatch.chdir("/")
    output = made.outcome.output
    told = json.loads((made.outcome.artifact.path / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == made.outcome.artifact.base == str(bench.model())
    modes = {
        stat.S_IMODE(file.stat().st_mode) for file in output.rglob("*") if file.suffix in {".json", ".safetensors"}
    }
    assert len(modes) == 1, "weights have other modes than what is written beside them"
    AutoPeftModelForCausalLM.from_pretrained(made.outcome.artifact.path)
    done = CliRunner().invoke(export, [str(output / "checkpoints" / "best"), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    written = Path(json.loads(done.stdout.splitlines()[-1])["export"])
    assert written.name == f"safetensors-{json.loads((output / 'run.json').read_text())['best_checkpoint']}"
    AutoModelForSequenceClassification.from_pretrained(written)
    assert "base_model:" not in (output / "README.md").read_text().partition("---\n\n")[0]
