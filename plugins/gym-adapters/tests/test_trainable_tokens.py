"""Trainable tokens: only their rows change, on both ends; a new vocabulary makes the model grow and merges into it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from gym_adapters_families import family
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_adapters import TrainableTokens
from gym_adapters.tokens_command import tokens as command
from gym_core import GymError
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.tiny import write_model
from gym_torch.batch import Piece, packed
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.model.neftune import Noise


@pytest.mark.proves("trainable_tokens")
def test_only_their_rows_change(bench: Any) -> None:
    adapted = TrainableTokens(tokens=(5, 9)).build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    merged, base = adapted.merged(), bench.base()
    for after, before in (
        (merged.get_input_embeddings().weight, base.get_input_embeddings().weight),
        (merged.get_output_embeddings().weight, base.get_output_embeddings().weight),
    ):
        moved = (after != before).any(1).nonzero().flatten().tolist()
        assert moved == [5, 9]
    assert (
        merged.get_output_embeddings().weight is merged.get_input_embeddings().weight
    ) == base.config.tie_word_embeddings


def test_noise_is_on_the_rows_that_train_too(bench: Any) -> None:
    model = TrainableTokens(tokens=(5, 9)).build(model=bench.base(), seed=0).model
    embedding = model.get_input_embeddings()
    tokens = np.array([5, 3, 9, 9, 8], dtype=np.int32)
    batch = packed([Piece("s", tokens, tokens > 3)])
    noise = Noise(embedding, 5.0, seed=0, step=lambda: 0)
    plain = embedding(batch.tokens)
    with noise.on(batch):
        found = embedding(batch.tokens) - plain
    torch.testing.assert_close(found, noise.drawn(batch, plain))


@pytest.mark.proves("trainable_tokens")
def test_a_scaled_embedding_is_scaled() -> None:
    model = family("gemma3_text")
    tokens = torch.tensor([[5, 9, 7, 5]])
    wanted = model(tokens).logits.detach()
    adapted = TrainableTokens(tokens=(5, 9)).build(model=model, seed=0)
    torch.testing.assert_close(adapted.model(tokens).logits, wanted)
    with torch.no_grad():
        for weight in adapted.state().values():
            weight.add_(0.5)
    torch.testing.assert_close(adapted.merged()(tokens).logits, adapted.model(tokens).logits)


@pytest.mark.proves("trainable_tokens")
def test_new_tokens_make_the_model_grow(bench: Any, tmp_path: Path) -> None:
    adapted = TrainableTokens(tokens=(61, 60, 7)).build(model=bench.base(), seed=0)
    assert adapted.model.config.vocab_size == 62
    base = bench.base().get_input_embeddings().weight
    rows = adapted.model.get_input_embeddings().weight
    assert torch.equal(rows[:60], base)
    torch.testing.assert_close(rows[60:], base.mean(0).expand(2, -1))
    text = torch.tensor([[60, 4, 61, 7, 60, 4, 61]])
    optimizer = torch.optim.AdamW([weight for weight in adapted.model.parameters() if weight.requires_grad], lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = adapted.model(text, labels=text).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2, "the new tokens are not learnt"
    wanted = adapted.model(text).logits
    artifact = adapted.save(tmp_path / "adapter", str(bench.path))
    torch.testing.assert_close(open_artifact(artifact).model(text).logits, wanted)
    merged = adapted.merged()
    merged.save_pretrained(tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert plain.config.vocab_size == 62
    torch.testing.assert_close(plain(text).logits, wanted, atol=1e-5, rtol=1e-5)


def test_tokens_are_named_as_the_tokenizer_names_them(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", extra=("<tool>",))
    model = AutoModelForCausalLM.from_pretrained(path)
    adapted = TrainableTokens(tokens=("<tool>", 7, "<|im_end|>")).build(model=model, seed=0)
    adapted.save(tmp_path / "adapter", str(path))
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["token_indices"] == [7, 258, 259]
    for token, why in {"<nothing>": r"`<nothing>` is no token", 10**9: "there is no token 1,000,000,000"}.items():
        with pytest.raises(GymError, match=why):
            TrainableTokens(tokens=(token,)).build(model=AutoModelForCausalLM.from_pretrained(path), seed=0)
    shutil.rmtree(tmp_path / "adapter")


@pytest.mark.proves("trainable_tokens")
def test_a_new_vocabulary_from_command_to_export(tmp_path: Path) -> None:
    """The embeddings of the model have no row left for the two that train."""
    bench = Bench(tmp_path)
    before = fingerprint(bench.model())
    texts = [*(f"<{place}>" for place in range(5)), "<one>", "<two>"]
    done = CliRunner().invoke(command, [str(bench.model()), *texts, "--into", str(tmp_path / "larger"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tokens"] == {text: 259 + place for place, text in enumerate(texts)}
    assert fingerprint(bench.model()) == before, "the model it came from was written to"
    rows = bench.file(
        [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<one> b <two>"}]}] * 4
    )
    recipe = bench.recipe("sft", max_steps=20, learning_rate=0.05) | {
        "model": str(tmp_path / "larger"),
        "data": str(rows),
        "adapter": {"name": "trainable_tokens", "tokens": ["<one>", "<two>"]},
        "export": [{"name": "safetensors"}],
    }
    finished = bench.run(recipe)
    losses = finished.series("loss")
    assert losses[-1] < losses[0]
    exported = next(path.parent for path in finished.outcome.output.rglob("certificate.json"))
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported)
    ids = [tokenizer.convert_tokens_to_ids(text) for text in ("<one>", "<two>")]
    old = AutoModelForCausalLM.from_pretrained(bench.model()).get_input_embeddings().weight
    new = model.get_input_embeddings().weight
    kept = [row for row in range(len(old)) if row not in ids]
    assert torch.equal(new[kept], old[kept]) and len(new) >= max(ids) + 1
    assert not torch.allclose(new[ids], old.mean(0).expand(2, -1))
    again = CliRunner().invoke(command, [str(tmp_path / "larger"), "<one>", "--into", str(tmp_path / "again")])
    assert isinstance(again.exception, GymError) and "is a token already" in str(again.exception)
