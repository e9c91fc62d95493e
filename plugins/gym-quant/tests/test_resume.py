"""A run over a quantized base that is killed in the middle of a step goes on to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gym_core import execute, load_recipe
from gym_quant.load_time.bnb_4bit import Bnb4bitCodec
from gym_quant.load_time.hqq import HqqCodec
from gym_testkit.bench import Bench
from gym_torch.quantization.weight_codec import WeightCodec


class KilledError(BaseException):
    """What ends a run with nothing written down."""


@pytest.mark.parametrize(
    ("name", "codec", "adapter"),
    [("bnb_4bit", Bnb4bitCodec, "lora"), ("hqq", HqqCodec, "loftq")],
    ids=["bnb_4bit", "hqq"],
)
def test_a_run_that_is_killed_goes_on_bit_for_bit(
    name: str, codec: type[WeightCodec], adapter: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    recipe = bench.recipe("sft", max_steps=4, save_every=2) | {"adapter": {"name": adapter, "rank": 4}}
    recipe["model"] = {"path": recipe["model"], "quantization": name}
    whole = bench.run(recipe, "whole")
    output, decode = bench.path("parts"), codec.decode

    def dies(self: Any, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        if (output / "checkpoints" / "step-00000002").exists():
            raise KilledError
        return decode(self, stored, shape)

    monkeypatch.setattr(codec, "decode", dies)
    with pytest.raises(KilledError):
        execute(load_recipe({**recipe, "output": str(output)}))
    monkeypatch.undo()
    parts = bench.finished(execute(load_recipe({**recipe, "output": str(output)})))
    assert not parts.outcome.repeated and len(whole.series("loss")) == 4
    assert parts.series("loss") == whole.series("loss")
    for file in whole.outcome.artifact.path.glob("*.safetensors"):
        found, wanted = load_file(parts.outcome.artifact.path / file.name), load_file(file)
        assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted), file.name
