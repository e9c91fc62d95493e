"""Scales that are trained: what one and two bits keep of a fine-tune, and that it never ends worse than it began."""

from __future__ import annotations

import copy

import pytest
import torch
from test_models import pair
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from gym_bitdelta import BitDelta
from gym_bitdelta.distillation import distill
from gym_bitdelta.encoding import Encoder
from gym_bitdelta.evidence import held_out
from gym_bitdelta.fit.low_rank_factors import Ranked
from gym_quant.post_training.calibration import Rows
from gym_torch.checkpoints import load_delta

VOCABULARY, LENGTH = 64, 24


def texts(count: int, seed: int, factor: int) -> torch.Tensor:
    """Return rows in which a token follows from the one before it, nine times of ten."""
    draws = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, VOCABULARY, (count, LENGTH), generator=draws)
    for place in range(1, LENGTH):
        rule = (rows[:, place - 1] * factor + factor) % VOCABULARY
        rows[:, place] = torch.where(torch.rand(count, generator=draws) < 0.1, rows[:, place], rule)
    return rows


def trained(model: PreTrainedModel, factor: int, steps: int) -> PreTrainedModel:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        tokens = texts(32, 1000 * factor + step, factor)
        optimizer.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
    return model.eval()


def rows(count: int, seed: int) -> Rows:
    tokens = texts(count, seed, 5)
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Rows(tokens, real, real & (torch.arange(LENGTH) < LENGTH - 1), 8)


@pytest.fixture(scope="module")
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a model of four layers that learnt one rule, and what it became when it learnt another."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = trained(AutoModelForCausalLM.from_config(config).float(), 3, 80)
    return base, trained(copy.deepcopy(base), 5, 60)


def distilled(models, **options):
    base, tuned = models
    config = BitDelta(**{"distill_steps": 30, **options})
    records = Encoder(config, base, tuned).records(None)
    found, told = distill(config, tuned, copy.deepcopy(base), records, rows(64, 1), rows(16, 2), 0)
    return records, found, told, held_out(base, copy.deepcopy(base), tuned, found, rows(64, 3))


@pytest.mark.parametrize(("bits", "kept"), [(1, 0.90), (2, 0.98)])
def test_most_of_the_gain_is_kept(models, bits, kept):
    """Distillation takes half of the squared distance of logits at least."""
    _, _, told, figures = distilled(models, bits=bits, distill_steps=40)
    assert figures["base"] - figures["tuned"] > 3, "the fine-tune learnt nothing"
    assert figures["recovered"] >= kept, figures
    assert told["after"] <= 0.5 * told["before"]


@pytest.mark.parametrize(
    "options",
    [
        {"distill_loss": "kl"},
        {"distill_loss": "hidden", "scale_mode": "col"},
        {"group_size": 16},
        {"scale_mode": "rank1"},
    ],
)
def test_every_loss_and_granularity_learns(models, options):
    _, _, told, _ = distilled(models, distill_steps=6, **options)
    assert told["after"] < told["before"]


@pytest.mark.parametrize("low_rank", [False, True])
def test_scales_of_experts_train(low_rank):
    """Beside the layers of attention: nothing but the stacks of experts changed."""
    base, tuned = pair("experts")
    stacks = {name for name, weight in base.named_parameters() if weight.dim() == 3}
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            before = base.get_parameter(name)
            change = 0.5 * (weight - before) / (weight - before).std()
            weight.copy_(before + change * (1 + change.square()) if name in stacks else before)
    config = BitDelta(distill_steps=12, distill_learning_rate=0.1)
    records = Encoder(config, base, tuned, Ranked(most_rank=8) if low_rank else None).records(None)
    samples = [Rows(each.tokens % 40, each.real, each.predicts, each.at_once) for each in (rows(16, 1), rows(8, 2))]
    found, told = distill(config, tuned, copy.deepcopy(base), records, *samples, 0)
    assert told["after"] < 0.99 * told["before"], told
    assert all(not torch.equal(found[name].parts["scales"], records[name].parts["scales"]) for name in stacks)
    merged = copy.deepcopy(base)
    load_delta.add(merged, ((name, record.values()) for name, record in found.items() if record.parts))
    tokens = samples[1].tokens
    with torch.no_grad():
        left = (merged(tokens).logits - tuned(tokens).logits).square().mean()
    assert float(left) == pytest.approx(told["after"], rel=1e-3), "the student computes something else than the delta"


def test_weights_that_a_module_uses_of_those_inside_it_train():
    """A projection of Mamba whose own forward is never called."""
    torch.manual_seed(0)
    made = AutoConfig.for_model("mamba", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
    base = AutoModelForCausalLM.from_config(made).eval()
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        for weight in tuned.parameters():
            weight += 0.05 * torch.randn_like(weight) ** 3
    config = BitDelta(distill_steps=4, distill_learning_rate=0.05)
    records = Encoder(config, base, tuned).records(None)
    found, told = distill(config, tuned, copy.deepcopy(base), records, rows(16, 1), rows(8, 2), 0)
    merged = copy.deepcopy(base)
    load_delta.add(merged, ((name, record.values()) for name, record in found.items() if record.parts))
    tokens = rows(8, 2).tokens
    with torch.no_grad():
        left = (merged(tokens, use_cache=False).logits - tuned(tokens, use_cache=False).logits).square().mean()
    assert float(left) == pytest.approx(told["after"], rel=1e-3), "the student computes something else than the delta"
    name = "backbone.layers.0.mixer.dt_proj.weight"
    assert told["after"] < told["before"] and not torch.equal(
        found[name].parts["scales"], records[name].parts["scales"]
    )


def test_rows_that_only_fill_a_batch_up_are_not_drawn(models):
    """A step on nothing has no loss, and scales would never be numbers again."""
    base, tuned = models
    full = rows(2, 1)
    more = Rows(
        *(torch.cat([each, each.new_zeros(6, LENGTH)]) for each in (full.tokens, full.real, full.predicts)), at_once=8
    )
    config = BitDelta(distill_steps=12, distill_batch=1)
    records = Encoder(config, base, tuned).records(None)
    told = [
        distill(config, tuned, copy.deepcopy(base), records, each, rows(16, 2), 0)[1]["after"] for each in (full, more)
    ]
    assert told[0] == pytest.approx(told[1])


def test_it_never_ends_worse_than_it_began(models):
    before, after, told, _ = distilled(models, distill_steps=4, distill_learning_rate=50.0)
    assert told["after"] == told["before"]
    for name, record in before.items():
        assert all(torch.equal(part, after[name].parts[key]) for key, part in record.parts.items())
