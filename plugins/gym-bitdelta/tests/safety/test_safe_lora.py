"""The projection of Safe LoRA against its equation in fp64, and the order in which layers are taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gym_bitdelta.delta import records
from gym_bitdelta.enforcement.safe_lora import by_sensitivity, cosine, projected


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (3, 5, 7)])
def test_a_change_is_projected_as_the_paper_says(shape):
    """`P = V V^T / |V|` in numpy, matrix by matrix; the cosine is that of all numbers together."""
    draws = np.random.default_rng(0)
    change, alignment = draws.normal(size=shape), draws.normal(size=shape)
    stacks = zip(change.reshape(-1, *shape[-2:]), alignment.reshape(-1, *shape[-2:]), strict=True)
    wanted = np.stack([(v @ v.T / np.linalg.norm(v)) @ d for d, v in stacks]).reshape(shape)
    found = projected(torch.tensor(change, dtype=torch.float32), torch.tensor(alignment, dtype=torch.float32))
    assert np.allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
    like = (wanted * change).sum() / np.linalg.norm(wanted) / np.linalg.norm(change)
    assert cosine(torch.tensor(change), torch.tensor(wanted)) == pytest.approx(like)


def test_what_lies_in_the_alignment_stays_in_its_direction_and_what_does_not_goes():
    alignment = torch.zeros(4, 4)
    alignment[0, 0] = 2.0
    inside, outside = torch.zeros(4, 4), torch.zeros(4, 4)
    inside[0], outside[1] = 1.0, 1.0
    assert cosine(inside, projected(inside, alignment)) == pytest.approx(1.0)
    assert not projected(outside, alignment).any()
    assert torch.equal(projected(outside, torch.zeros(4, 4)), outside)  # nothing was aligned there: nothing to follow


def test_layers_come_in_the_order_of_what_they_add_to_compliance():
    weights = {f"layer{number}": records.raw(torch.full((2, 2), float(number))) for number in (1, 3, 2)}
    order = by_sensitivity(
        weights,
        {name: [name] for name in weights},
        lambda tried: sum(float(each.values().sum()) for each in tried.values()),
    )
    assert [name for name, _ in order] == ["layer3", "layer2", "layer1"]
    assert dict(order) == {"layer1": 4.0, "layer2": 8.0, "layer3": 12.0}
