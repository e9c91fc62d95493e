"""Laws of adapters: they train what they say, leave the base alone, go on exactly, and merge into what they computed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError
from gym_testkit.adapter_steps import (
    assert_close,
    copied,
    fixed_tokens,
    learnt_from,
    logits_of,
    optimizer_of,
    same_state,
    take_steps,
    train_briefly,
)
from gym_testkit.architectures import write_mixture
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import Batch, Piece, packed, padded
from gym_torch.kinds import Adapter
from gym_torch.model.adapted import AdaptedModel, build_adapter
from gym_torch.model.dropout import disable_dropout
from gym_torch.policy import Policy
from gym_torch.shared_prefixes import split
from gym_torch.trained_part import FirstStepBatch

laws = laws_of("adapters", "adapter")


def _starts_unchanged(brought: Brought) -> bool:
    return cast(type[Adapter], brought.cls).starts_unchanged


@laws("output unchanged at step 0", _starts_unchanged)
def unchanged(brought: Brought, bench: Bench) -> None:
    """Before the first step the adapted model computes what the base does."""
    base = _base(brought, bench)
    expected = logits_of(base)
    assert_close(logits_of(_adapt(brought, base).model), expected)


@laws("trains something, and that changes the output")
def learns(brought: Brought, bench: Bench) -> None:
    """A few steps move the output, and change in `state` what `requires_grad` marks, no more and no less."""
    adapted = _adapt(brought, _base(brought, bench))
    marked = sum(weight.numel() for weight in adapted.model.parameters() if weight.requires_grad)
    before, began = logits_of(adapted.model), copied(adapted)
    train_briefly(adapted)
    assert not torch.allclose(logits_of(adapted.model), before, atol=1e-4), "training changes nothing"
    changed = [tensor.numel() for name, tensor in adapted.state().items() if not torch.equal(tensor, began[name])]
    assert 0 < marked == sum(changed)


@laws("gradients are the slopes of the loss")
def slopes(brought: Brought, bench: Bench) -> None:
    """A short way along its gradient, and in a drawn direction, the loss of each trained weight changes as the gradient says."""
    adapted = _adapt(brought, _base(brought, bench))
    train_briefly(adapted)
    disable_dropout(adapted.model)
    tokens = fixed_tokens()

    def loss() -> Tensor:
        return cast(Tensor, adapted.model(input_ids=tokens, labels=tokens).loss)

    trained = {name: weight for name, weight in adapted.model.named_parameters() if weight.requires_grad}
    adapted.model.train().zero_grad()
    loss().backward()
    generator = torch.Generator().manual_seed(0)
    for name, weight in trained.items():
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        drawn, begun = torch.randn(weight.shape, generator=generator), weight.detach().clone()
        way = drawn / drawn.norm() + gradient / gradient.norm().clamp(min=1e-12)
        expected = float((gradient * way).sum())
        length = min(0.01, 0.01 / max(abs(expected), 1e-9))
        with torch.no_grad():
            there, back = (float((weight.copy_(begun + side * length * way), loss())[1]) for side in (1, -1))
            weight.copy_(begun)
        found = (there - back) / (2 * length)
        allowed = 0.2 * abs(expected) + 2e-6 / length  # DoRA holds a norm constant, as its paper says
        assert abs(found - expected) <= allowed, (
            f"{name}: the loss changes by {found:.4g}, and its gradient says {expected:.4g}"
        )


@laws("the base is untouched")
def base_untouched(brought: Brought, bench: Bench) -> None:
    """Frozen weights keep every bit while others train, and the files of the base do too."""
    folder = _folder(brought, bench)
    files = fingerprint(folder)
    adapted = _adapt(brought, _base(brought, bench))
    frozen = {name: weight for name, weight in adapted.model.named_parameters() if not weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in frozen.items()}
    train_briefly(adapted)
    adapted.save(bench.path("saved"), str(folder))
    assert [name for name, weight in frozen.items() if not torch.equal(weight, before[name])] == []
    assert fingerprint(folder) == files


def _merges(brought: Brought) -> bool:
    return cast(type[Adapter], brought.cls).merges


@laws("merged = unmerged", _merges)
def merges(brought: Brought, bench: Bench) -> None:
    """One plain model computes what the adapted one does, and the adapted one goes on as if nothing had happened."""
    adapted = _adapt(brought, _base(brought, bench))
    train_briefly(adapted)
    expected = logits_of(adapted.model)
    assert_close(logits_of(adapted.merged()), expected)
    assert torch.equal(logits_of(adapted.model), expected), "merging changed the adapted model"


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
    wanted = logits_of(base)
    adapted = _adapt(brought, base)
    train_briefly(adapted)
    if adapted.disable_adapter is None:  # training changed the base
        return
    expected, marked = logits_of(adapted.model), [weight.requires_grad for weight in adapted.model.parameters()]
    with adapted.disable_adapter():
        assert_close(logits_of(adapted.model), wanted)
    assert torch.equal(logits_of(adapted.model), expected), "leaving it out changed it"
    assert [weight.requires_grad for weight in adapted.model.parameters()] == marked, "other weights train now"


@laws("state round-trips bit for bit")
def round_trips(brought: Brought, bench: Bench) -> None:
    """What `state` returns, loaded into an adapted base, gives the same output in every bit."""
    adapted = _adapt(brought, _base(brought, bench))
    train_briefly(adapted)
    again = _built(brought, _base(brought, bench))
    again.load(copied(adapted))
    assert torch.equal(logits_of(again.model), logits_of(adapted.model))


@laws("what is saved exactly is read back bit for bit")
def saves(brought: Brought, bench: Bench) -> None:
    """A directory that `save` wrote holds no pickle and gives back the state."""
    adapted = _adapt(brought, _base(brought, bench))
    train_briefly(adapted)
    path = bench.path("saved")
    made = adapted.save(path, str(_folder(brought, bench)), exact=True)
    assert made.kind == adapted.artifact_kind, f"it says that it makes an artifact `{adapted.artifact_kind}`"
    found, state = adapted.read(path), adapted.state()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert not [*path.rglob("*.bin"), *path.rglob("*.pt"), *path.rglob("*.pkl")], "weights in pickle"


@laws("goes on from what was saved as if nothing had happened")
def goes_on(brought: Brought, bench: Bench) -> None:
    """Built anew with another seed and given what was saved exactly, it takes the next steps to the same bits."""
    adapted = _adapt(brought, _base(brought, bench))
    optimizer = optimizer_of(adapted)
    take_steps(adapted, optimizer, range(3))
    path = bench.path("saved")
    adapted.save(path, str(_folder(brought, bench)), exact=True)
    again = _built(brought, _base(brought, bench), seed=1)
    again.load(again.read(path))
    successor = optimizer_of(again)
    successor.load_state_dict(deepcopy(optimizer.state_dict()))
    take_steps(adapted, optimizer, range(3, 7))
    take_steps(again, successor, range(3, 7))
    assert torch.equal(logits_of(again.model), logits_of(adapted.model)), "it goes on to other outputs"
    ours, theirs = adapted.state(), again.state()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@laws("what it declares that a step needs is all it needs")
def needs(brought: Brought, bench: Bench) -> None:
    """It trains to the same bits without gradients after a step, or in a longer run, unless it declares that it needs them."""
    options = _options(brought)
    wanted = _after_steps(brought, bench)
    if not options.needs_gradients:
        same = same_state(wanted, _after_steps(brought, bench, gradients=False))
        assert same, "after a step it looks at gradients, and does not declare `needs_gradients`"
    if not options.needs_total_steps:
        same = same_state(wanted, _after_steps(brought, bench, total=100))
        assert same, "what it does follows from how many steps there are, and it does not declare `needs_total_steps`"


def _shares_prefixes(brought: Brought) -> bool:
    return cast(type[Adapter], brought.cls).shares_prefixes


@laws("what samples begin with is computed once", _shares_prefixes)
def shares_prefixes(brought: Brought, bench: Bench) -> None:
    """In training, samples that begin alike have the log-probabilities that they have where each is computed by itself."""
    base = _base(brought, bench)
    base.set_attn_implementation(NAME)
    adapted = _adapt(brought, base)
    train_briefly(adapted)
    disable_dropout(adapted.model)
    policy: Policy[Batch] = Policy(adapted.model).train()
    begun = fixed_tokens()[0, :20].tolist()
    samples = [learnt_from(begun + [own] * (own + 1), len(begun)) for own in range(3)]
    with torch.no_grad():
        apart = torch.cat([policy(packed([each])) for each in samples])
        together = policy(packed(*split(samples)))
    assert torch.allclose(together, apart, rtol=1e-4, atol=1e-4), "declare `shares_prefixes = False`"


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
    if not _options(brought).needs_experts:
        return bench.model()
    path = bench.root / "mixture"
    return path if path.exists() else write_mixture(path, bench.model())


def _built(brought: Brought, base: PreTrainedModel, seed: int = 0) -> AdaptedModel:
    return build_adapter(_options(brought), base, seed)


def _options(brought: Brought) -> Adapter:
    return cast(Adapter, brought.sample())


def _adapt(brought: Brought, base: PreTrainedModel) -> AdaptedModel:
    """Return an adapter that may train: with its first values."""
    adapted = _built(brought, base)
    texts = [Piece(str(number), row.int().numpy(), (row >= 0).numpy()) for number, row in enumerate(fixed_tokens())]
    batch = padded(texts)
    adapted.initialize([FirstStepBatch(batch, lambda: adapted.model(input_ids=batch.tokens, labels=batch.tokens).loss)])
    return adapted


def _after_steps(brought: Brought, bench: Bench, total: int = 10, gradients: bool = True) -> dict[str, Tensor]:
    adapted = _adapt(brought, _base(brought, bench))
    take_steps(adapted, optimizer_of(adapted), range(7), total, gradients)
    return copied(adapted)
