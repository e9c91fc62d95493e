"""Preferences: which are stated, that the splits are apart, and that the base does not have them."""

from statistics import fmean

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_tiny import TinyFeedback, TinyPreferences
from gym_tiny.family import MODEL
from gym_tiny.preferences import PREFERENCES, pairs, stepwise
from gym_tiny.sources import FeedbackRows, PreferenceRows
from gym_tiny.tasks.refusals import MARKER, REFUSAL

BASE_AT_MOST = 0.55


@pytest.mark.parametrize("about", PREFERENCES)
def test_splits_share_no_question(about):
    train, heldout = (list(pairs(about, 1500, split=split)) for split in ("train", "heldout"))
    assert not {pair.question for pair in train} & {pair.question for pair in heldout}
    assert all(pair.about == about and pair.chosen != pair.rejected for pair in [*train, *heldout])


def test_same_seed_same_pairs_and_a_longer_run_begins_with_the_shorter():
    first = list(pairs(None, 60, seed=1))
    assert first == list(pairs(None, 120, seed=1))[:60]
    assert first != list(pairs(None, 60, seed=2))
    assert [pair.about for pair in first[:3]] == list(PREFERENCES)


def test_no_answer_is_right_whatever_the_question():
    """Else a preference could be learnt without reading the question."""
    formats, refusals = (list(pairs(about, 600)) for about in ("format", "refusals"))
    assert 0.4 < fmean(pair.chosen.startswith("= ") for pair in formats) < 0.6
    marked = [pair for pair in refusals if MARKER in pair.question]
    assert 0.4 < len(marked) / len(refusals) < 0.6
    assert {pair.chosen for pair in marked} == {REFUSAL}
    assert {pair.rejected for pair in refusals if MARKER not in pair.question} > {REFUSAL}


def test_rows_are_pairs_or_single_labelled_answers():
    options = {"count": 60, "split": "heldout"}
    rows, found = list(PreferenceRows(TinyPreferences(**options)).rows()), list(pairs(None, 60, split="heldout"))
    assert [row["chosen"]["content"] for row in rows] == [pair.chosen for pair in found]
    labelled = list(FeedbackRows(TinyFeedback(**options)).rows())
    assert len(labelled) == len(found)
    for row, pair in zip(labelled, found, strict=True):
        assert row["messages"][-1]["content"] == (pair.chosen if row["label"] else pair.rejected)
    assert 15 < sum(row["label"] for row in labelled) < 45
    assert labelled == list(FeedbackRows(TinyFeedback(**options)).rows())


def test_steps_answer_their_questions_one_by_one():
    rows, found = list(stepwise(None, 90, split="heldout")), {}
    for pair in pairs(None, 270, split="heldout"):
        found.setdefault(pair.question, set()).update({(pair.chosen, True), (pair.rejected, False)})
    assert {len(row["labels"]) for row in rows} == {1, 2, 3}
    for row in rows:
        for question, *judged in zip(row["prompt"].split("\n"), row["completions"], row["labels"], strict=True):
            assert tuple(judged) in found[question]


def test_pairs_and_labels_are_different_data():
    pair, label = TinyPreferences(), TinyFeedback()
    assert PreferenceRows(pair).fingerprint() != FeedbackRows(label).fingerprint()
    assert PreferenceRows(pair).fingerprint() != PreferenceRows(TinyPreferences(about="format")).fingerprint()


@pytest.mark.parametrize("about", PREFERENCES)
@torch.no_grad()
def test_the_base_does_not_have_the_preference(about):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def log_probability(question: str, answer: str) -> float:
        turn = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        known = len(tokenizer(prompt).input_ids)
        tokens = torch.tensor([tokenizer(f"{prompt}{answer}<|im_end|>").input_ids])
        scores = model(tokens).logits[0, known - 1 : -1].log_softmax(-1)
        return float(scores.gather(-1, tokens[0, known:, None]).sum())

    asked = set(pairs(about, 100, seed=1, split="heldout"))
    taken = [
        log_probability(pair.question, pair.chosen) > log_probability(pair.question, pair.rejected) for pair in asked
    ]
    assert fmean(taken) <= BASE_AT_MOST
