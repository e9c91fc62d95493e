"""Noise on embeddings is a sample's own: it depends on nothing beside it, and only what is learnt from has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import SGD, Crash, Event, Memory, furthest, make_run, metrics, same, samples, train, weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from gym_torch import Transformers
from gym_torch.attention.segment_attention import NAME, NO_MASK
from gym_torch.batch import Batch, packed, padded
from gym_torch.model.neftune import Noise
from gym_torch.policy import Policy, evaluating

DIM = 16


def noise(step: int = 0, seed: int = 0, alpha: float = 5.0) -> Noise:
    return Noise(nn.Embedding(256, DIM), alpha, seed, lambda: step)


def drawn(batch: Batch, of: Noise) -> list[Tensor]:
    """Return the noise of each segment, and check that nothing else has any."""
    found = of.drawn(batch, torch.zeros(*batch.tokens.shape, DIM))
    parts = [found[part.row, part.start : part.stop].clone() for part in batch.segments]
    rest = found.clone()
    for part in batch.segments:
        rest[part.row, part.start : part.stop] = 0
    assert any(part.prefix is not None for part in batch.segments) or not rest.any()
    return parts


def alike(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def test_it_is_the_same_packed_padded_and_alone() -> None:
    data = [samples(6)[number] for number in range(6)]
    together = drawn(packed(data), noise())
    assert alike(together, drawn(padded(data), noise()))
    assert alike(together, [drawn(packed([sample]), noise())[0] for sample in data])
    assert alike(together[::-1], drawn(packed(data[::-1]), noise()))


def test_its_size_is_that_of_the_real_length() -> None:
    """Uniform between -1 and 1, times 5 / sqrt(tokens x dim): its standard deviation is that over the root of 3."""
    data = [samples(200)[number] for number in range(200)]
    scaled = [part * (len(part) * DIM) ** 0.5 / 5.0 for part in drawn(padded(data), noise())]
    every = torch.cat(scaled)
    assert every.abs().max() <= 1 and every.abs().max() > 0.999
    assert float(every.std()) == pytest.approx(3**-0.5, rel=0.01) and abs(float(every.mean())) < 0.01


def test_every_step_and_seed_and_sample_has_noise_of_its_own() -> None:
    data = [samples(2, even=True)[number] for number in range(2)]
    first, second = drawn(packed(data), noise())
    assert not torch.equal(first, second)
    assert not torch.equal(first, drawn(packed(data), noise(step=1))[0])
    assert not torch.equal(first, drawn(packed(data), noise(seed=1))[0])


def test_what_several_samples_continue_has_one_noise_wherever_it_stands() -> None:
    data = [samples(5)[number] for number in range(5)]
    prefixes = (None, 0, 0, 2, None)
    together = drawn(packed(data, prefixes), noise())
    batch = padded(data, prefixes)
    assert alike(together, drawn(batch, noise()))
    whole = noise().drawn(batch, torch.zeros(*batch.tokens.shape, DIM))
    rows = [torch.cat([together[part] for part in lineage]) for lineage in ((0, 1), (0, 2, 3), (4,))]
    for found, expected in zip(whole, rows, strict=True):
        assert torch.equal(found[: len(expected)], expected) and not found[len(expected) :].any()


def test_the_model_sees_embeddings_with_noise_and_only_in_training(model_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path, attn_implementation=NAME)
    batch = packed([samples(3)[number] for number in range(3)])
    plain = Policy(model).eval()(batch)
    policy = Policy(model)
    policy.noise = Noise(model.get_input_embeddings(), 5.0, 0, lambda: 3)
    with evaluating(policy):
        assert torch.equal(policy(batch), plain)
    embedded = model.get_input_embeddings()(batch.tokens)
    added = embedded + policy.noise.drawn(batch, embedded)
    given = {"position_ids": batch.positions, "spans": batch.spans, "attention_mask": NO_MASK}
    hidden = model.base_model(inputs_embeds=added, **given).last_hidden_state
    expected = model.lm_head(hidden[0, batch.target_index]).log_softmax(-1)[range(len(batch.targets)), batch.targets]
    assert torch.allclose(policy(batch), expected, atol=1e-5)
    assert not torch.allclose(policy(batch), plain, atol=1e-3)
    assert not model.get_input_embeddings()._forward_hooks


def trained(model: Path, output: Path, alpha: float = 5.0, **options: Any) -> dict[str, Tensor]:
    backend = Transformers(path=str(model), neftune_noise_alpha=alpha, attention=options.pop("attention", "auto"))
    sections = {"optimizer": SGD(), "model": backend, **options.pop("sections", {})}
    settings = {"learning_rate": 0.5, "max_steps": 3, **options}
    train(make_run(model, output, settings.pop("data", None), sections=sections, **settings))
    return weights(output)


def test_a_step_is_the_same_however_it_is_cut_and_laid_out(model_path: Path, tmp_path: Path) -> None:
    whole = trained(model_path, tmp_path / "16x1", batch_size=16)
    assert furthest(whole, trained(model_path, tmp_path / "none", alpha=0.0, batch_size=16)) > 1e-4
    for size, times, attention in [(1, 16, "auto"), (4, 4, "auto"), (4, 4, "sdpa")]:
        found = trained(
            model_path, tmp_path / f"{size}-{attention}", batch_size=size, accumulate=times, attention=attention
        )
        assert furthest(whole, found) < 2e-6


def test_an_evaluation_has_no_noise_and_changes_none(model_path: Path, tmp_path: Path) -> None:
    without = trained(model_path, tmp_path / "without")
    assert same(without, trained(model_path, tmp_path / "with", data=Memory(held_out=5), eval_every=2))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "with" / "model")
    held_out = padded([samples(5, seed=1)[number] for number in range(5)])
    measured = [line["eval_loss"] for line in metrics(tmp_path / "with") if "eval_loss" in line][-1]
    assert measured == pytest.approx(-Policy(model).eval()(held_out).mean().item(), rel=1e-5)


def test_a_resumed_run_goes_on_with_the_same_noise(model_path: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_steps": 6, "save_every": 2}
    whole = trained(model_path, tmp_path / "whole", **settings)
    crashed = {"callbacks": (Event(step=3),)}
    with pytest.raises(Crash):
        trained(model_path, tmp_path / "crashed", sections=crashed, **settings)
    assert same(whole, trained(model_path, tmp_path / "crashed", **settings))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "crashed")
