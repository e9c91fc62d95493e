"""Where a method is found: its options and its code stand in modules called as a recipe names it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import gym_optim
from gym_core.component import load_object
from gym_core.discovery import entries
from gym_core.loading import load

ENTRIES = {entry.name: entry for entry in entries("optimizers") if entry.dist == "gym-optim"}


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_modules_of_a_method_have_its_name(name: str) -> None:
    options = load(ENTRIES[name])
    module, _, function = options.target.partition(":")
    assert options.__module__ == f"gym_optim.config.{name}"
    assert module == f"gym_optim.optimizers.{name}"
    assert load_object(f"{module}:{function}").__module__ == module


@pytest.mark.parametrize("kind", [gym_optim.GaLore, gym_optim.APOLLOMini, gym_optim.Fira, gym_optim.SOAP], ids=str)
def test_the_options_and_defaults_of_a_class_are_those_of_its_config_class(kind: Any) -> None:
    shown = {
        name: each.default for name, each in inspect.signature(kind).parameters.items() if name not in ("params", "lr")
    }
    assert shown == kind.options().keywords()
    built = kind([torch.nn.Parameter(torch.ones(8, 8))], weight_decay=0.5)
    assert {name: built.defaults[name] for name in shown} == shown | {"weight_decay": 0.5}
    for name, field in kind.options.model_fields.items():
        assert name == "in_backward" or field.description in " ".join(kind.__doc__.split())


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    for make in (gym_optim.Lion, gym_optim.lomo, gym_optim.lora_plus):
        with pytest.raises(TypeError, match=r"has no option rank, only: .*weight_decay"):
            make([torch.nn.Parameter(torch.ones(2, 2))], rank=2)
