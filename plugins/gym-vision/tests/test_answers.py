"""Answers about images are those of `generate` of transformers, whoever else is answered meanwhile."""

from __future__ import annotations

import pytest
import torch
from asked_images import reference
from image_rows import ROWS

from gym_testkit.vision_models import FAMILIES
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import GREEDY, SamplingOptions
from gym_torch.generation.separate_rows import SeparateRows
from gym_torch.model.auto_class import AutoLanguageModel

EVERY = pytest.mark.parametrize("family", FAMILIES)
NEW = 20


@pytest.fixture(params=FAMILIES)
def asked(request, model, rows):
    """A model, and what its processor makes of two rows with images."""
    path = model(request.param)
    loaded = AutoLanguageModel.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():  # so that what is said depends on what is seen
        for weight in loaded.parameters():
            weight.mul_(3.0 if weight.ndim > 1 else 1.0)
    return loaded, [reference(path, rows, row) for row in ROWS[:2]]


def row_of(given, sampling=GREEDY, stream=0):
    inputs = {name: value.numpy() for name, value in given.items() if name not in ("input_ids", "attention_mask")}
    tokens = tuple(given["input_ids"][0].tolist())
    return Row(tokens, NEW, (), sampling, stream, inputs=lambda: inputs)


def answered(model, rows):
    decoder = SeparateRows(model)
    for row in rows:  # each enters while the others are at work
        decoder.admit([row])
        decoder.step()
    while decoder.rows:
        decoder.step()
    assert not decoder.texts
    return rows


def test_greedy_tokens_are_those_of_generate(asked):
    model, given = asked
    for each, row in zip(given, answered(model, [row_of(each) for each in given]), strict=True):
        options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
        found = model.generate(**each, **options, return_dict_in_generate=True, output_logits=True)
        assert row.completion.tokens == found.sequences[0, each["input_ids"].shape[1] :].tolist()
        expected = [float(step.log_softmax(-1).max()) for step in found.logits]
        assert row.completion.log_probs == pytest.approx(expected, abs=1e-5)


def test_sampled_tokens_are_as_likely_as_in_a_pass_over_the_whole_text(asked):
    model, given = asked
    rows = answered(model, [row_of(each, SamplingOptions(1.0, seed=3), stream=2) for each in (*given, given[0])])
    assert rows[0].completion.tokens == rows[2].completion.tokens != rows[1].completion.tokens
    for each, row in zip(given, rows[:2], strict=True):
        made = torch.tensor([row.completion.tokens])
        assert len(set(row.completion.tokens)) > NEW // 2
        whole = {**each, "input_ids": torch.cat([each["input_ids"], made], dim=1)}
        for name in ("attention_mask", "mm_token_type_ids", "token_type_ids"):
            if name in whole:
                told = torch.full_like(made, int(name == "attention_mask"))
                whole[name] = torch.cat([whole[name], told], dim=1)
        with torch.no_grad():
            logits = model(**whole, use_cache=False).logits[0, -NEW - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, made[0][:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(row.completion.log_probs), expected, atol=1e-4, rtol=0)
