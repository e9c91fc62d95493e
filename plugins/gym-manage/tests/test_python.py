"""The Python API as users write it: `from gym import Trainer, TrainingConfig`."""

from __future__ import annotations

import json

import pytest

from gym_core import GymError


def test_the_examples_of_the_seeds_run(add, tmp_path):
    from gym import Trainer, TrainingConfig

    add("gym-toy")
    rows = {"name": "toy-rows", "sources": "a.txt"}
    model = {"backend": "toy-words", "path": "words"}
    trainer = Trainer(TrainingConfig(model=model, algorithm="toy", data=rows, output="one"))
    with pytest.raises(GymError, match="nothing has been trained"):
        trainer.export("out/it.toy-shout")
    trainer.train(dataset=["b.txt", "c.txt"])
    assert (tmp_path / "one/model/words.txt").read_text() == "words 1.0"
    recipe = json.loads((tmp_path / "one/run.json").read_text())["recipe"]
    assert [source["path"] for source in recipe["data"]["sources"]] == ["b.txt", "c.txt"]
    assert trainer.export("out/it.toy-shout", mark="?").read_text() == "model?"


def test_a_file_is_no_configuration():
    from gym import Trainer

    with pytest.raises(GymError, match=r"(?s)no str.*load_recipe"):
        Trainer("recipe.yaml")
