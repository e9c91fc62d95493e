"""`zoo.gym` has the names of `gym`, and says what is missing."""

from __future__ import annotations

import pytest

import gym
from zoo import gym as zoo


def test_names_are_those_of_the_api() -> None:
    from zoo.gym import BitDeltaConfig, Trainer

    assert BitDeltaConfig is gym.quantization.BitDeltaConfig and Trainer is gym.Trainer
    assert {"PersonalizedTrainer", "DeltaQuantConfig", "QuantMethod"} <= set(dir(zoo))
    with pytest.raises(ImportError, match="Nonsense"):
        from zoo.gym import Nonsense  # noqa: F401


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "entries", lambda kind: [])
    monkeypatch.setattr(zoo, "catalogue", lambda: {"facade/quantization.BitDeltaConfig": "gym-bitdelta"})
    with pytest.raises(ImportError, match="pip install gym-bitdelta"):
        _ = zoo.BitDeltaConfig
