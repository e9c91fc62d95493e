"""A model for many tenants computes for each row what the model of its tenant alone computes."""

from __future__ import annotations

import pytest
import torch
from random_deltas import BASE, merged, of_model

from gym_bitdelta.delta import file
from gym_bitdelta.runtime.tenant_model import TenantModel
from gym_torch.generation.generator import Generator

NAMES = ("ada", "bob", "cyd")


@pytest.fixture
def deltas(family, tmp_path):
    found = {
        name: of_model(family(), seed, "low rank" if name == "cyd" else "dense") for seed, name in enumerate(NAMES)
    }
    for name, delta in found.items():
        file.write(tmp_path / f"{name}.safetensors", delta)
    return found


@pytest.fixture
def served(family, tmp_path, deltas):
    model = TenantModel(family(), lambda name: tmp_path / f"{name}.safetensors", BASE)
    yield model
    model.close()


@torch.no_grad()
def test_each_row_of_a_mixed_batch_is_its_tenants_model(family, deltas, served):
    tokens = torch.randint(0, 50, (6, 7), generator=torch.Generator().manual_seed(3))
    rows = ["bob", None, "ada", "cyd", "bob", "ada"]
    with served.serving(rows):
        mixed = served.model(tokens).logits
    for name in (*NAMES, None):
        mine = [row for row, each in enumerate(rows) if each == name]
        alone = merged(family(), deltas[name]) if name else family()
        wanted = alone(tokens[mine]).logits
        assert (mixed[mine] - wanted).abs().max() < 1e-5 * max(1.0, float(wanted.abs().max())), name
        if name:
            assert (wanted - family()(tokens[mine]).logits).abs().max() > 1e-2, "the delta changes nothing"
    assert torch.equal(served.model(tokens).logits, family()(tokens).logits)


@torch.no_grad()
def test_neighbours_of_a_row_change_no_bit_of_it(served):
    tokens = torch.randint(0, 50, (3, 5), generator=torch.Generator().manual_seed(4))
    with served.serving(["ada", "bob", "cyd"]):
        first = served.model(tokens).logits[0]
    other = torch.cat([tokens[:1], tokens[1:].flip(1)])
    with served.serving(["ada", "cyd", None]):
        second = served.model(other).logits[0]
    assert torch.equal(first, second)


def test_generation_of_a_mixed_batch_is_that_of_each_alone(family, deltas, served):
    prompts = [[1, 2, 3], [4, 5], [1, 2, 3], [7], [4, 5], [1, 2, 3]]
    tenants = ["ada", "bob", "bob", None, "cyd", "ada"]
    made = served.generate(prompts, tenants, [4, 6, 5, 3, 6, 4], stop_ids=())
    for prompt, name, completion in zip(prompts, tenants, made, strict=True):
        alone = merged(family(), deltas[name]) if name else family()
        wanted = Generator(alone, None).generate([prompt], len(completion.tokens), stop_ids=())[0]
        assert completion.tokens == wanted.tokens
        assert completion.log_probs == pytest.approx(wanted.log_probs, abs=1e-4)
