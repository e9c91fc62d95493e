"""GGUF files by importances; with llama.cpp where it is installed (`nox -s llamacpp`)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from gym_core import Artifact, GymError
from gym_export import GGUF
from gym_export.formats.gguf import importance
from gym_export.formats.gguf.numbers import decoded, farthest, relative, type_for
from gym_export.source import Source


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A file of plain text."""
    (tmp_path / "texts.txt").write_text("What goes in is measured. " * 30)
    return tmp_path / "texts.txt"


def test_importances_are_mean_squares_of_inputs(model_path: Path, texts: Path) -> None:
    """Columns of a matrix that is read first: the normalised embeddings, in float64."""
    with Source(Artifact(model_path)) as source:
        places = GGUF().build().format.places(source)
        found = importance.measured(source, places, texts)
        tokens = source.tokenizer(texts.read_text(), add_special_tokens=False)["input_ids"]
        layer = source.model.model.layers[0]
        rows = source.model.get_input_embeddings().weight.detach()[tokens].double().numpy()
        scale = layer.input_layernorm.weight.detach().double().numpy()
        normed = scale * rows / np.sqrt((rows**2).mean(1, keepdims=True) + source.config.rms_norm_eps)
    assert np.allclose(found["blk.0.attn_q.weight"], (normed**2).mean(0), rtol=1e-4)
    matrices = {place.tensor for place in places.values() if len(place.shape) == 2} - {"token_embd.weight"}
    assert found.keys() == matrices


def test_texts_that_say_nothing_are_refused(model_path: Path, tmp_path: Path, texts: Path) -> None:
    with pytest.raises(ValueError, match="`imatrix` is for types with `_k`"):
        GGUF(type="q8_0", imatrix=texts)
    with Source(Artifact(model_path)) as source:
        places = GGUF().build().format.places(source)
        with pytest.raises(GymError, match="there is no such file"):
            importance.tokens_of(source, places, tmp_path / "absent.txt")
        texts.write_text("too short")
        with pytest.raises(GymError, match="too few to measure importances on"):
            importance.tokens_of(source, places, texts)


def test_importances_bound_the_error_of_outputs_by_that_of_plain_rounding() -> None:
    """Half as far off again in the column that matters is too far, and so is a column that does not, when it is lost."""
    rng = np.random.default_rng(0)
    wanted = rng.standard_normal((16, 64)).astype(np.float32)
    importances = np.full(64, 1e-4, np.float32)
    importances[7] = 1.0
    kind = type_for(wanted.shape, "q4_0", False)
    from gguf.quants import quantize

    plain = decoded(quantize(wanted, kind), kind)
    assert farthest(wanted, plain, "Q4_0", importances) <= 1
    worse = plain.copy()
    worse[:, 7] = wanted[:, 7] + 1.5 * (plain[:, 7] - wanted[:, 7])
    assert farthest(wanted, worse, "Q4_0", importances) > 1 >= farthest(wanted, worse, "Q4_0", importances * 0 + 1)
    assert farthest(wanted, np.where(np.arange(64) == 7, wanted, 0), "Q4_0", importances) > 1


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed: nox -s llamacpp")
def test_a_file_by_importances_keeps_outputs_closer(model_path: Path, tmp_path: Path, texts: Path) -> None:
    """Also where rows are too short for the type, and another takes its place; other texts make another export."""
    artifact, off = Artifact(model_path), dict[str, float]()
    by_texts = GGUF(type="q2_k", imatrix=texts)
    made = {"by": by_texts.build().export(artifact, tmp_path / "by"),
            "without": GGUF(type="q2_k").build().export(artifact, tmp_path / "without")}  # fmt: skip
    told = json.loads((made["by"] / "certificate.json").read_text())
    assert told["status"] == "verified" and told["runtime"] == "llama.cpp" and told["outputs_relative_difference"] > 0
    columns = importance.read(made["by"])
    with Source(artifact) as source:
        places = GGUF().build().format.places(source)
        weights = dict(source.plain(torch.float32).weights)
    for name, path in made.items():
        tensors = {tensor.name: tensor for tensor in GGUFReader(path / "model.gguf").tensors}
        for weight, place in places.items():
            if place.tensor in columns:
                wanted, tensor = weights[weight].float().numpy(), tensors[place.tensor]
                found = decoded(tensor.data, tensor.tensor_type).reshape(wanted.shape)
                off[name] = off.get(name, 0.0) + relative(wanted, found, columns[place.tensor]) ** 2
    assert off["by"] < off["without"]
    by_texts.build().verify(artifact, made["by"])
    assert by_texts.build().export(artifact, made["by"]) == made["by"]
    texts.write_text(texts.read_text() * 2)
    with pytest.raises(GymError, match="holds something else"):
        by_texts.build().export(artifact, made["by"])
