"""Laws of adapters: they train what they say, leave the base alone, go on exactly, and merge into what they computed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Adapter, GymError
from gym_testkit.architectures import write_mixture
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.batch import Piece, padded
from gym_torch.model.adapted import Adapted, Begins, First, ForMixtures, TakesPart

laws = laws_of("adapters", "adapter")


def _starts_unchanged(brought: Brought) -> bool:
    return cast(type[Adapter], brought.cls).starts_unchanged


@laws("output unchanged at step 0", _starts_unchanged)
def unchanged(brought: Brought, bench: Bench) -> None:
    """Before the first step the adapted model computes what the base does."""
    base = _base(brought, bench)
    expected = _logits(base)
    _close(_logits(_adapt(brought, base).model), expected)


@laws("trains something, and that changes the output")
def learns(brought: Brought, bench: Bench) -> None:
    """A few steps move the output, and change in `state` what `requires_grad` marks, no more and no less."""
    adapted = _adapt(brought, _base(brought, bench))
    marked = sum(weight.numel() for weight in adapted.model.parameters() if weight.requires_grad)
    before, began = _logits(adapted.model), _copied(adapted)
    _train(adapted)
    assert not torch.allclose(_logits(adapted.model), before, atol=1e-4), "training changes nothing"
    changed = [tensor.numel() for name, tensor in adapted.state().items() if not torch.equal(tensor, began[name])]
    assert 0 < marked == sum(changed)


@laws("the base is untouched")
def base_untouched(brought: Brought, bench: Bench) -> None:
    """Frozen weights keep every bit while others train, and the files of the base do too."""
    folder = _folder(brought, bench)
    files = fingerprint(folder)
    adapted = _adapt(brought, _base(brought, bench))
    frozen = {name: weight for name, weight in adapted.model.named_parameters() if not weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in frozen.items()}
    _train(adapted)
    adapted.save(bench.path("saved"), str(folder))
    assert [name for name, weight in frozen.items() if not torch.equal(weight, before[name])] == []
    assert fingerprint(folder) == files


def _merges(brought: Brought) -> bool:
    return cast(type[Adapter], brought.cls).merges


@laws("merged = unmerged", _merges)
def merges(brought: Brought, bench: Bench) -> None:
    """One plain model computes what the adapted one does, and the adapted one goes on as if nothing had happened."""
    adapted = _adapt(brought, _base(brought, bench))
    _train(adapted)
    expected = _logits(adapted.model)
    _close(_logits(adapted.merged()), expected)
    assert torch.equal(_logits(adapted.model), expected), "merging changed the adapted model"


@laws("what cannot be merged says so", lambda brought: not _merges(brought))
def refuses_to_merge(brought: Brought, bench: Bench) -> None:
    """Where no weights of the model compute what the adapter does, merging raises an error that says so."""
    adapted = _adapt(brought, _base(brought, bench))
    try:
        adapted.merged()
    except GymError as refused:
        assert "merge" in str(refused), "the error does not say that it is about merging"
    else:
        raise AssertionError("it merges, and declares that it does not")


@laws("left out, it leaves the base")
def leaves_out(brought: Brought, bench: Bench) -> None:
    """Where an adapter can be left out for a while, the model computes meanwhile what the base does, and then goes on."""
    base = _base(brought, bench)
    wanted = _logits(base)
    adapted = _adapt(brought, base)
    _train(adapted)
    if adapted.without is None:  # training changed the base
        return
    expected, marked = _logits(adapted.model), [weight.requires_grad for weight in adapted.model.parameters()]
    with adapted.without():
        _close(_logits(adapted.model), wanted)
    assert torch.equal(_logits(adapted.model), expected), "leaving it out changed it"
    assert [weight.requires_grad for weight in adapted.model.parameters()] == marked, "other weights train now"


@laws("state round-trips bit for bit")
def round_trips(brought: Brought, bench: Bench) -> None:
    """What `state` returns, loaded into an adapted base, gives the same output in every bit."""
    adapted = _adapt(brought, _base(brought, bench))
    _train(adapted)
    again = _built(brought, _base(brought, bench))
    again.load(_copied(adapted))
    assert torch.equal(_logits(again.model), _logits(adapted.model))


@laws("what is saved exactly is read back bit for bit")
def saves(brought: Brought, bench: Bench) -> None:
    """A directory that `save` wrote holds no pickle and gives back the state."""
    adapted = _adapt(brought, _base(brought, bench))
    _train(adapted)
    path = bench.path("saved")
    adapted.save(path, str(_folder(brought, bench)), exact=True)
    found, state = adapted.read(path), adapted.state()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert not [*path.rglob("*.bin"), *path.rglob("*.pt"), *path.rglob("*.pkl")], "weights in pickle"


@laws("goes on from what was saved as if nothing had happened")
def goes_on(brought: Brought, bench: Bench) -> None:
    """Built anew with another seed and given what was saved exactly, it takes the next steps to the same bits."""
    adapted = _adapt(brought, _base(brought, bench))
    optimizer = _optimizer(adapted)
    _steps(adapted, optimizer, range(3))
    path = bench.path("saved")
    adapted.save(path, str(_folder(brought, bench)), exact=True)
    again = _built(brought, _base(brought, bench), seed=1)
    again.load(again.read(path))
    successor = _optimizer(again)
    successor.load_state_dict(deepcopy(optimizer.state_dict()))
    _steps(adapted, optimizer, range(3, 7))
    _steps(again, successor, range(3, 7))
    assert torch.equal(_logits(again.model), _logits(adapted.model)), "it goes on to other outputs"
    ours, theirs = adapted.state(), again.state()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@laws("the same seed begins the same")
def seeded(brought: Brought, bench: Bench) -> None:
    """Whatever is drawn at random follows from the seed alone, not from what was drawn before."""
    first = _adapt(brought, _base(brought, bench)).state()
    torch.rand(3)
    second = _adapt(brought, _base(brought, bench)).state()
    assert all(torch.equal(first[name], second[name]) for name in first)


def _base(brought: Brought, bench: Bench) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(_folder(brought, bench), dtype=torch.float32)
    return cast(PreTrainedModel, model)


def _folder(brought: Brought, bench: Bench) -> Path:
    """Return the directory of a tiny model that the adapter is for."""
    if not isinstance(brought.sample(), ForMixtures):
        return bench.model()
    path = bench.root / "mixture"
    return path if path.exists() else write_mixture(path, bench.model())


def _built(brought: Brought, base: PreTrainedModel, seed: int = 0) -> Adapted:
    return cast(Adapted, brought.sample().build(model=base, seed=seed))


def _adapt(brought: Brought, base: PreTrainedModel) -> Adapted:
    """Return an adapter that may train: begun, where it finds its first values."""
    adapted = _built(brought, base)
    if isinstance(adapted, Begins):
        texts = [Piece(str(number), row.int().numpy(), (row >= 0).numpy()) for number, row in enumerate(_tokens())]
        batch = padded(texts)
        adapted.begin([First(batch, lambda: adapted.model(input_ids=batch.tokens, labels=batch.tokens).loss)])
    return adapted


def _copied(adapted: Adapted) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in adapted.state().items()}


def _tokens() -> Tensor:
    return torch.arange(48).view(2, 24) * 5 % 256  # [2, 24]


@torch.no_grad()
def _logits(model: PreTrainedModel) -> Tensor:
    model.eval()
    return deepcopy(model(input_ids=_tokens()).logits)


def _train(adapted: Adapted) -> None:
    """Take five steps on a fixed text."""
    _steps(adapted, _optimizer(adapted), range(5), weighed=False)


def _optimizer(adapted: Adapted) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for weight in adapted.model.parameters() if weight.requires_grad], lr=0.01)


def _steps(adapted: Adapted, optimizer: torch.optim.Optimizer, steps: range, weighed: bool = True) -> None:
    """Take these of ten steps; what has a part in each step is told of it where `weighed`."""
    model = adapted.model.train()
    for step in steps:
        optimizer.zero_grad()
        loss = model(input_ids=_tokens(), labels=_tokens()).loss
        (loss + adapted.penalty() if isinstance(adapted, TakesPart) else loss).backward()
        optimizer.step()
        if isinstance(adapted, TakesPart) and weighed:
            adapted.stepped(step + 1, 10)


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
