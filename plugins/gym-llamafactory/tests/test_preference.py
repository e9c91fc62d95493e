"""Keys of preference learning."""

from __future__ import annotations

from typing import Any

import pytest

from gym_core import PluginError, RecipeError, load_recipe
from gym_preference import CDPO, DPO, IPO, KTO, LDDPO, ORPO, Hinge, SimPO

FILE = {
    "model_name_or_path": "tiny",
    "stage": "dpo",
    "do_train": True,
    "finetuning_type": "lora",
    "dataset": "pairs.json",
}


@pytest.mark.parametrize(
    ("keys", "means"),
    [
        ({}, DPO(beta=0.1)),
        ({"pref_loss": "sigmoid", "pref_beta": 0.3, "pref_ftx": 0.5}, DPO(beta=0.3, ftx=0.5)),
        ({"pref_loss": "hinge"}, Hinge()),
        ({"pref_loss": "kto_pair"}, KTO()),
        ({"pref_loss": "ipo", "pref_beta": 0.2}, IPO(beta=0.2)),
        ({"pref_loss": "orpo"}, ORPO(beta=0.1)),
        ({"pref_loss": "simpo"}, SimPO(beta=0.1, simpo_gamma=0.5)),
        ({"pref_loss": "simpo", "simpo_gamma": 0.7, "pref_beta": 2.5}, SimPO(beta=2.5, simpo_gamma=0.7)),
        ({"dpo_label_smoothing": 0.2}, CDPO(label_smoothing=0.2)),
        ({"pref_loss": "sigmoid", "dpo_label_smoothing": 0.0}, DPO()),
        ({"pref_loss": "ipo", "dpo_label_smoothing": 0}, IPO()),
        ({"ld_alpha": 0}, LDDPO(ld_alpha=0.0)),
        ({"pref_loss": "sigmoid", "ld_alpha": 0.3}, LDDPO(ld_alpha=0.3)),
        ({"ref_model": "tiny"}, DPO(ref_model="tiny")),
    ],
)
def test_a_file_of_llama_factory_means_a_component(keys: dict[str, Any], means: Any) -> None:
    assert load_recipe({**FILE, **keys}).algorithm == means


def test_what_llama_board_writes_for_every_stage_of_preferences_changes_none() -> None:
    assert (
        load_recipe({**FILE, "stage": "kto", "pref_loss": "sigmoid"}).algorithm
        == load_recipe({**FILE, "stage": "kto"}).algorithm
    )
    assert load_recipe({**FILE, "packing": True}).data == load_recipe(FILE).data


def test_options_may_stand_beside_them_under_their_own_names() -> None:
    assert load_recipe({**FILE, "pref_loss": "simpo", "beta": 2.5}).algorithm == SimPO(beta=2.5, simpo_gamma=0.5)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"stage": "sft", "pref_loss": "orpo"}, "contradicts `pref_loss`"),
        ({"pref_loss": "orpo", "dpo_label_smoothing": 0.1}, "contradicts `dpo_label_smoothing`"),
        ({"pref_loss": "orpo", "ref_model": "tiny"}, "belongs to algorithm"),
        ({"pref_loss": "sigmoid", "dpo_label_smoothing": 0.5}, "less than 0.5"),
    ],
)
def test_keys_that_say_different_things_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        load_recipe({**FILE, **keys})


def test_a_loss_that_nobody_brings_is_refused_with_those_there_are() -> None:
    with pytest.raises(PluginError, match="known: hinge, ipo, kto_pair, orpo, sigmoid, simpo"):
        load_recipe({**FILE, "pref_loss": "none such"})


def test_an_alternative_that_is_0_is_off_in_every_stage() -> None:
    plain, off = (load_recipe({**FILE, "stage": "rm", **keys}) for keys in ({}, {"dpo_label_smoothing": 0.0}))
    assert off.fingerprint() == plain.fingerprint()
