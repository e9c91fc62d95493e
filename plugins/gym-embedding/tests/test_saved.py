"""What a run leaves, as others read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from related_rows import ROWS, recipe
from transformers import AutoModel, AutoTokenizer

from gym_testkit.bench import Bench

TEXTS = ["one", "a text of more words", "ü"]


@torch.no_grad()
def embedded(path: Path) -> torch.Tensor:
    """Embed texts with plain transformers, as the files beside the weights say."""
    told = json.loads((path / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    model, tokenizer = AutoModel.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)
    found = []
    for text in TEXTS:
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        found.append(states[-1] if told["pooling_mode_lasttoken"] else states.mean(0))
    return torch.nn.functional.normalize(torch.stack(found), dim=1)


@pytest.mark.parametrize("pooling", ["last_token", "mean"])
def test_an_export_says_how_its_states_are_pooled(bench: Bench, pooling: str) -> None:
    adapted = recipe(bench, ROWS, pooling=pooling) | {"adapter": "lora"}
    output = bench.run(adapted).outcome.output
    done = bench.gym("export", str(output))
    assert done.returncode == 0, done.stderr
    exported = output / "export" / "safetensors"
    modules = json.loads((exported / "modules.json").read_text(encoding="utf-8"))
    assert [each["path"] for each in modules] == ["", "1_Pooling", "2_Normalize"]
    told = json.loads((exported / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    assert told["word_embedding_dimension"] == 32
    assert [name for name, on in told.items() if on is True and name.startswith("pooling")] == [
        {"last_token": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens"}[pooling]
    ]
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(exported), device="cpu", model_kwargs={"dtype": torch.float32})
    assert model.max_seq_length == 2048
    assert torch.allclose(torch.from_numpy(model.encode(TEXTS)), embedded(exported), atol=1e-5)
