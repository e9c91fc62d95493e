"""The grouped update and its gradients are those of each user's pair by itself; batches of many users are each one's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from gym_core import GymError
from gym_personalization.grouped_lora import GroupedLora
from gym_personalization.joint_batch import join
from gym_torch.batch import Batch, Piece, alone, packed, padded
from gym_torch.model.adapted import LowRank

SIZES = {
    "equal neighbours": [(0, 3), (1, 3), (2, 3)],
    "all lengths": [(0, 2), (1, 5), (2, 1)],
    "a gap between slots": [(0, 4), (2, 4)],
    "out of order": [(2, 4), (1, 4), (3, 2), (4, 2), (0, 1)],
    "one": [(3, 6)],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_value_and_gradients_are_those_of_each_alone(sizes: Sequence[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7).requires_grad_(False))
    pair = LowRank(torch.zeros(2, 5), torch.zeros(7, 2), 0.5)
    lora = GroupedLora(model, {"0": pair}, slots=5)
    stack = lora.layers["0"]
    for half in (stack.first, stack.second):
        half.copy_(torch.randn(half.shape, generator=generator))
    tokens = sum(count for _, count in sizes)
    given = torch.randn(1, tokens, 5, generator=generator, requires_grad=True)
    weights = torch.randn(1, tokens, 7, generator=generator)

    lora.give(sizes)
    out = model(given)
    (out * weights).sum().backward()

    exact = given.detach().double().requires_grad_()
    first, second = (half.double().requires_grad_() for half in (stack.first, stack.second))
    linear, start, rows = model[0], 0, []
    for slot, count in sizes:
        own = exact[0, start : start + count]
        plain = own @ linear.weight.double().T + linear.bias.double()
        rows.append(plain + 0.5 * own @ first[slot].T @ second[slot].T)
        start += count
    expected = torch.cat(rows)[None]
    (expected * weights.double()).sum().backward()
    pairs = ((out, expected), (given.grad, exact.grad), (stack.by_first, first.grad), (stack.by_second, second.grad))
    for found, wanted in pairs:
        assert found is not None and wanted is not None
        assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-5)
    with lora.off():
        assert torch.equal(model(given), nn.functional.linear(given, linear.weight, linear.bias))


def test_gradients_are_to_the_bit_those_of_a_user_who_trains_alone() -> None:
    """Adam makes whole steps of gradients that are nearly nothing: what is rounded otherwise is soon another adapter."""
    draws = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 384).requires_grad_(False))
    lora = GroupedLora(model, {"0": LowRank(torch.zeros(8, 128), torch.zeros(384, 8), 2.0)}, slots=1)
    stack = lora.layers["0"]
    for half in (stack.first, stack.second):
        half.copy_(torch.randn(half.shape, generator=draws))
    given, weights = (torch.randn(1, 90, size, generator=draws) for size in (128, 384))
    lora.give([(0, 90)])
    (model(given) * weights).sum().backward()
    first, second = (half[0].clone().requires_grad_() for half in (stack.first, stack.second))
    linear, plain = nn.functional.linear, nn.functional.linear(given, model[0].weight, model[0].bias)
    ((plain + linear(linear(given, first), second) * 2.0) * weights).sum().backward()
    assert torch.equal(stack.by_first[0], first.grad) and torch.equal(stack.by_second[0], second.grad)


def test_tokens_of_nobody_are_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    lora = GroupedLora(model, {"0": LowRank(torch.zeros(1, 3), torch.zeros(3, 1), 1.0)}, slots=2)
    lora.give([(0, 2), (1, 2)])
    with pytest.raises(GymError, match="5 tokens"):
        model(torch.zeros(1, 5, 3))


def samples(*lengths: int) -> list[Piece]:
    """Return samples whose tokens are all different, with every second one trained."""
    starts = np.cumsum([0, *lengths])
    return [
        Piece(str(at), np.arange(start, start + size, dtype=np.int32), np.arange(size) % 2 == 1)
        for at, (start, size) in enumerate(zip(starts, lengths, strict=False))
    ]


def seen(batch: Batch) -> list[tuple[int, int, int]]:
    """Return for each target what predicts it: that token, its position, and the target."""
    tokens, positions = batch.tokens.flatten()[batch.target_index], batch.positions.flatten()[batch.target_index]
    return list(zip(tokens.tolist(), positions.tolist(), batch.targets.tolist(), strict=True))


@pytest.mark.parametrize("layout", [packed, padded])
def test_a_joint_batch_is_the_batches(layout: object) -> None:
    """Each target is predicted by the same token at the same position, and each user's tokens lie together."""
    assert callable(layout)
    batches = [layout(samples(4, 2)), layout(samples(7)), layout(samples(3, 3, 5))]
    joint = join(batches)
    assert seen(joint.batch) == [each for batch in batches for each in seen(batch)]
    assert joint.targets == [len(batch.targets) for batch in batches]
    flat, start = joint.batch.tokens.flatten(), 0
    for batch, size in zip(batches, joint.tokens, strict=True):
        own = [token for segment in batch.segments for token in batch.tokens[segment.row, segment.start : segment.stop]]
        assert [t for t in flat[start : start + size].tolist() if t] == [int(token) for token in own if token]
        start += size
    assert start == flat.numel()
    if joint.batch.spans:
        assert joint.batch.spans.lengths == (4, 2, 7, 3, 3, 5)


def test_shared_prefixes_stay_with_their_owner() -> None:
    shared = packed(samples(3, 2, 2), (None, 0, 0))
    joint = join([shared, shared])
    assert joint.batch.spans is not None
    assert joint.batch.spans.prefixes == (None, 0, 0, None, 3, 3)


def test_samples_computed_apart_are_refused() -> None:
    with pytest.raises(GymError, match="one by one"):
        join([alone(samples(3), (None,))])
