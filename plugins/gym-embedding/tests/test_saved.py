"""What a run leaves, as others read it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from related_rows import ROWS, closing, recipe
from transformers import AutoModel, AutoTokenizer

from gym_core import Artifact, GymError
from gym_core.cli import run
from gym_core.errors import OK
from gym_embedding.pooling import Pooling
from gym_export import GGUF
from gym_serve.contract import Limits, ModelSource, Request
from gym_serve.errors import BadRequest
from gym_serve.local.config import Local
from gym_testkit.bench import Bench
from gym_torch.checkpoints.pooling_files import pooling_of

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
def test_a_gguf_file_says_how_its_states_are_pooled(bench: Bench, tmp_path: Path, pooling: str) -> None:
    """And that a text is ended as the tokenizer ends it: llama.cpp does neither unless it is told."""
    gguf = pytest.importorskip("gguf")
    model = closing(bench, tmp_path)
    Pooling(32, pooling).save(model)
    written = GGUF(type="f32", runtime="gguf").build().export(Artifact(model), tmp_path / "out")
    reader = gguf.GGUFReader(written / "model.gguf")
    found = {name: reader.get_field(name).contents() for name in reader.fields}
    assert found["qwen3.pooling_type"] == {"mean": gguf.PoolingType.MEAN, "last_token": gguf.PoolingType.LAST}[pooling]
    assert found["tokenizer.ggml.add_eos_token"] is True
    end = AutoTokenizer.from_pretrained(model)("a")["input_ids"][-1]
    assert found["tokenizer.ggml.eos_token_id"] == end


@pytest.mark.parametrize("made", ["quantized", "merged"])
def test_what_is_made_of_an_embedding_model_is_one(bench: Bench, tmp_path: Path, made: str) -> None:
    """Without its files, sentence-transformers would take the mean, and the server the last state."""
    for seed in (0, 1):
        Pooling(32, "mean").save(bench.model(seed))
    inputs = [str(bench.model(seed)) for seed in (0, 1)]
    soup = tmp_path / "soup.yaml"
    soup.write_text(json.dumps({"merger": "uniform_soup", "inputs": inputs, "output": str(tmp_path / made)}))
    quantized = ["quantize", inputs[0], "--into", str(tmp_path / made), "--with", "fp8"]
    assert run(quantized if made == "quantized" else ["merge", str(soup)]) == OK
    assert pooling_of(tmp_path / made) == "mean"


def test_embeddings_that_are_made_otherwise_are_refused(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) is None
    modules = [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": ""}]
    for more, pooled, said in (
        ([], {"pooling_mode_cls_token": True}, "cls_token pooling"),
        ([], {"pooling_mode": "max"}, "max pooling"),
        ([{"type": "a.Dense", "path": "2"}], {"pooling_mode_mean_tokens": True}, "Dense"),
        ([1], {"pooling_mode_mean_tokens": True}, "does not say how"),
    ):
        (tmp_path / "modules.json").write_text(json.dumps([*modules, *more]))
        (tmp_path / "config.json").write_text(json.dumps(pooled))
        with pytest.raises(GymError, match=said):
            pooling_of(tmp_path)


@pytest.mark.parametrize("pooling", ["last_token", "mean"])
def test_an_export_says_how_its_states_are_pooled(bench: Bench, tmp_path: Path, pooling: str) -> None:
    """A server embeds so too, and writes no texts: the head is of no use to a model that only embeds."""
    sections = {"model": str(closing(bench, tmp_path)), "adapter": "lora"}
    output = bench.run(recipe(bench, ROWS, pooling=pooling) | sections).outcome.output
    done = bench.gym("export", str(output), "--to", "safetensors", "dtype=fp32")
    assert done.returncode == 0, done.stderr
    exported = output / "export" / "safetensors"
    modules = json.loads((exported / "modules.json").read_text(encoding="utf-8"))
    assert [each["path"] for each in modules] == ["", "1_Pooling", "2_Normalize"]
    told = json.loads((exported / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    assert told["word_embedding_dimension"] == 32
    assert [name for name, on in told.items() if on is True and name.startswith("pooling")] == [
        {"last_token": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens"}[pooling]
    ]
    paths = {"run": output, "export": exported}
    sources = [ModelSource(name, str(path)) for name, path in paths.items()]
    beside = ModelSource("base", sections["model"], adapters={"own": str(output)})
    engine = Local(dtype="float32").build(artifacts=[*sources, beside], limits=Limits())

    async def use() -> None:
        for name, tenant in (("run", None), ("export", None), ("base", "own")):
            found = await engine.embed(name, TEXTS, tenant=tenant)
            assert torch.allclose(torch.tensor(found), embedded(exported), atol=1e-4), name
        with pytest.raises(BadRequest, match="no model that can generate"):
            [piece async for piece in engine.submit(Request("run", prompt="a"))]
        await engine.close()

    asyncio.run(use())
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(exported), device="cpu", model_kwargs={"dtype": torch.float32})
    assert model.max_seq_length == 2048
    assert torch.allclose(torch.from_numpy(model.encode(TEXTS)), embedded(exported), atol=1e-5)
