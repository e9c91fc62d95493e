"""`zoo.gym` has the names of `gym`, and says what is missing."""

from __future__ import annotations

import pytest

import gym
from zoo import gym as zoo


def test_names_are_those_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.gym import Trainer

    assert Trainer is gym.Trainer
    assert {"PersonalizedTrainer", "BitDeltaConfig", "DeltaSoupConfig", "Trainer"} <= {*dir(zoo)}
    with pytest.raises(ImportError, match="Nonsense"):
        from zoo.gym import Nonsense  # noqa: F401
    with pytest.raises(ImportError, match=r"SomethingNew.*\n.*pip install gym-something"):
        monkeypatch.setattr("gym_core.loading.catalogue", lambda: {"facade/part.SomethingNew": "gym-something"})
        monkeypatch.setattr(gym, "catalogue", lambda: {"facade/part.SomethingNew": "gym-something"})
        _ = zoo.SomethingNew
