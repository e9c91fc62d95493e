"""Every option of TRL and of the Trainer of transformers is one here, or its error says what to write instead."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from gym_core import Train
from gym_core.component import Component
from gym_core.discovery import catalogue, entries, named
from gym_core.errors import PluginError
from gym_core.loading import find, load, load_component
from gym_core.sections import SECTION_OF, SECTIONS, named_elsewhere
from gym_manage.elsewhere import NAMES

CONFIGS = [
    "SFTConfig",
    "DPOConfig",
    "GRPOConfig",
    "KTOConfig",
    "RewardConfig",
    "RLOOConfig",
    "ModelConfig",
    "ScriptArguments",
]


@pytest.fixture(scope="module")
def sections() -> dict[str, list[type]]:
    """Return the options that each section can have."""
    found: dict[str, list[type]] = {"train": [Train]}
    for kind, section in SECTION_OF.items():
        loaded: list[type[Component]] = [load_component(kind, entry.qualified)[1] for entry in entries(kind)]
        found[section] = list(loaded)
    return found


def test_what_is_advised_exists(sections: dict[str, list[type]]) -> None:
    """A section, or an option of one, whatever the advice is."""
    for key, advice in NAMES.items():
        for place in re.findall(r"did you mean `([\w.]+)`|`((?:train|data|model|algorithm)\.\w+)`", advice):
            section, _, option = "".join(place).partition(".")
            assert section in SECTIONS, key
            assert not option or any(option in cls.model_fields for cls in sections[section]), (key, advice)  # type: ignore[attr-defined]


def test_what_is_advised_for_a_component_exists() -> None:
    advised = {name: advice for name, advice in catalogue().items() if "did you mean" in advice}
    assert len(advised) > 20
    for name, advice in advised.items():
        kind, ours = name.split("/")[1], re.findall(r"did you mean `(\w+)`", advice)[0]
        assert named(kind, ours), name
        for option in re.findall(r"with `(\w+)[:`]", advice):
            assert option in {*SECTIONS, *load_component(kind, ours)[1].model_fields}, name


@pytest.mark.parametrize(
    ("kind", "name", "ours"),
    [
        ("optimizers", "adamw_torch", "adamw"),  # and not `adamw_8bit`, which looks more like it
        ("optimizers", "apollo_adamw", "apollo"),
        ("schedulers", "constant_with_warmup", "constant"),
        ("adapters", "qlora", "lora"),
    ],
)
def test_a_component_by_the_name_of_other_software_is_answered_with_ours(kind: str, name: str, ours: str) -> None:
    with pytest.raises(PluginError, match=f"did you mean `{ours}`"):
        find(kind, name)


@pytest.mark.parametrize("near", ["", "gamma"])
def test_a_key_that_nobody_knows_is_no_riddle_to_advice(near: str) -> None:
    """Every package that gives advice is asked about it, one after another."""
    asked = entries("advice")
    assert len(asked) > 1
    assert [load(entry)("zqxjv", near) for entry in asked] == [None] * len(asked)


def test_every_option_of_trl_has_an_answer(sections: dict[str, list[type]]) -> None:
    trl = pytest.importorskip("trl")
    classes = [cls for group in sections.values() for cls in group]
    own = {name for cls in classes for name in cls.model_fields}  # type: ignore[attr-defined]
    asked = {field.name for name in CONFIGS for field in fields(getattr(trl, name))}
    assert len(asked) > 200
    lacking = [key for key in asked - own - NAMES.keys() if not named_elsewhere(key, classes)]
    assert not lacking, f"say what to write for {', '.join(sorted(lacking))}"
