"""The first page of the project, run as it stands: only the model is a small local one."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from gym_personalization_bench import rows

import gym_personalization.trainer

CONFIGS = """
from gym.quantization import BitDeltaConfig, BitDeltaQuantizer

config = BitDeltaConfig(
    bits=1,
    group_size=128,
    safety_threshold=0.6,
    enable_deltasoup=True
)
quantizer = BitDeltaQuantizer(config)

from gym.quantization import DeltaQuantConfig, QuantMethod

config = DeltaQuantConfig(
    method=QuantMethod.INT4,
    per_channel=True,
    calibration_samples=256
)
"""
PREFERENCES = """
from gym.personalization import PersonalizedTrainer

trainer = PersonalizedTrainer(base_model="Qwen/Qwen3-4B")
trainer.create_variant(user_id="user_123", preferences=user_prefs)
served = trainer.serve_variant("user_123")
"""
DATA = """
from zoo.gym import PersonalizedTrainer, BitDeltaConfig

# Configure BitDelta
config = BitDeltaConfig(
    bits=1,
    group_size=128,
    safety_threshold=0.6
)

# Train personalized variants (10MB each)
trainer = PersonalizedTrainer("Qwen/Qwen3-4B", config)
trainer.create_variant("user_456", user_data)

# Serve variant (1000+ users on single GPU)
response = trainer.serve_variant("user_456", prompt)
"""


def test_the_configurations() -> None:
    names: dict[str, object] = {}
    exec(CONFIGS, names)
    assert importlib.import_module("gym_bitdelta.quantizer").BitDeltaQuantizer is type(names["quantizer"])


def test_variants_of_users(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs train DPO, rows SFT; both are compressed, and answer from the store in the folder that is used by default."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"user_prefs": rows(1, pairs=True), "user_data": rows(2), "prompt": "1?"}
    for page in (PREFERENCES, DATA):
        exec(page.replace("Qwen/Qwen3-4B", str(model_path)), names)
    trainer = names["trainer"]
    assert isinstance(trainer, gym_personalization.trainer.PersonalizedTrainer)
    assert isinstance(names["response"], str)
    assert isinstance(names["served"].generate("1?", max_new_tokens=4), str)  # type: ignore[attr-defined]
    kinds = {each.user: each.artifact["kind"] for each in trainer.variants.store.listing().variants}
    assert kinds == {"user_123": "delta", "user_456": "delta"}
    recipe = (tmp_path / "variants/users/user_123/1/run.json").read_text()
    assert '"name": "dpo"' in recipe
    trainer.close()
