"""The format GGUF as an exporter sees it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from gym_core import GymError
from gym_core.files import expanded
from gym_export.config import KQUANTS, LOGITS_OFF
from gym_export.format import Format, Loaded
from gym_export.formats.gguf import architectures, importance, llama_cpp, names, reading, writing
from gym_export.formats.gguf.architectures import Architecture
from gym_export.formats.gguf.names import Place
from gym_export.formats.gguf.numbers import type_for
from gym_export.formats.gguf.vocabulary import Vocabulary, closed, vocabulary_of
from gym_export.source import Source
from gym_torch.checkpoints.pooling_files import pooling_of
from gym_torch.model import fingerprint
from gym_torch.model.adapted import Plain

FILE = "model.gguf"


class GGUFFormat(Format):
    """Writes one file; `gguf` reads it back, and llama.cpp answers where it is installed."""

    def missing(self) -> str:
        """Return which of its libraries is not there."""
        if find_spec("gguf") is None:
            return "gguf"
        wanted = self.config.runtime == "llama.cpp" or self.config.type in KQUANTS
        return llama_cpp.PACKAGE if wanted and not llama_cpp.installed() else ""

    def versions(self) -> Mapping[str, str]:
        """Return those of `gguf` and of the binding of llama.cpp."""
        found = {"gguf": version("gguf")} if find_spec("gguf") else {}
        return found | ({llama_cpp.PACKAGE: version("llama_cpp_python")} if self._answers() else {})

    def bound(self, source: Source) -> float:
        """Return what a type of few bits makes of logits."""
        return LOGITS_OFF[self.config.type]

    def check(self, source: Source) -> None:
        """Refuse what llama.cpp computes otherwise, and what cannot be written here."""
        there = {"gguf": find_spec("gguf") is not None}
        if self.config.type in KQUANTS:
            there[llama_cpp.PACKAGE] = llama_cpp.installed()
        for package, found in there.items():
            if not found:
                why = f"{self.config.type} is written by {package}, which is not installed"
                raise GymError(why, key="export.type", fix=f"pip install {package}")
        self._words(source)
        places = self.places(source)
        if self.config.imatrix is not None:
            importance.tokens_of(source, places, self.config.imatrix)

    def made_from(self) -> Mapping[str, str]:
        """Return the hash of the texts that importances are measured on."""
        texts = self.config.imatrix
        there = texts is not None and expanded(texts).is_file()
        return {"imatrix": fingerprint.of_file(expanded(texts))} if there else {}

    def size(self, source: Source) -> int:
        """Return the bytes of the weights; a file in fp32 comes before k-quants."""
        wanted = self._first()
        kept = {place.tensor: place for place in self.places(source).values()}
        total = 0
        for place in kept.values():
            total += writing.bytes_of(place.shape, type_for(place.shape, wanted, place.keeps))
        return 2 * total if wanted != self.config.type else total

    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Write the file."""
        config, found, where = source.config, self._architecture(source), str(source.artifact.path)
        places, wanted = self.places(source), self._first()
        file = into / (FILE if wanted == self.config.type else f".{FILE}.f32")
        name = source.base.name if source.artifact.kind == "model" else source.artifact.base
        words, pooling = self._words(source), pooling_of(source.artifact.path)
        tensors = writing.lay_out(file, config, Path(name).name, found, words, places.values(), wanted, pooling)
        writing.put(file, self._merged(source).weights, places, tensors, config, found, where)
        if wanted != self.config.type:
            texts = self.config.imatrix
            importances = importance.measured(source, places, texts) if texts is not None else {}
            llama_cpp.quantize(file, into / FILE, self.config.type, torch.get_num_threads(), importances)
            if importances:
                importance.write(into, importances)
            file.unlink()
        (into / "config.json").write_text(source.model.config.to_json_string(), encoding="utf-8")
        return {}

    def weights(self, source: Source, path: Path, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare tokenizer, template and every number, each within what its type rounds."""
        reader = reading.opened(path / FILE)
        where = str(path / FILE)
        found = reading.compare_vocabulary(reader, self._words(source), where)
        runtime = (
            "llama.cpp" if self._answers() else f"gguf; {llama_cpp.PACKAGE} is not installed, so logits are unverified"
        )
        return (
            found
            | {"runtime": runtime}
            | reading.compare_weights(
                reader,
                self._merged(source),
                self.places(source),
                source.config,
                self._architecture(source),
                where,
                importance.read(path),
            )
        )

    def load(self, source: Source, path: Path) -> Loaded | None:
        """Load it in llama.cpp, where that is installed and asked for."""
        if not self._answers():
            return None
        loaded = llama_cpp.LlamaCpp(path / FILE, source.tokenizer)
        stops = source.stops if source.tokenizer is not None else ()  # a file without a vocabulary names none
        for stop in stops:
            if not loaded.ends(stop):
                why = f"llama.cpp does not end an answer at the token {stop}, as the model does"
                raise GymError(why, where=str(path / FILE), fix="report it")
        return loaded

    def arrays(self, path: Path) -> Mapping[str, Any]:
        """Return the weights, with the names and the order that they have in transformers."""
        config = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
        found = architectures.architecture_of(config, str(path))
        reader = reading.opened(path / FILE)
        return reading.arrays(reader, _named(config, found), config, found)

    def _answers(self) -> bool:
        return self.config.runtime != "gguf" and llama_cpp.installed()

    def _merged(self, source: Source) -> Plain:
        """Return the weights that are rounded to the type: once, so in fp32 but for bf16 over a base in bf16."""
        return source.plain(torch.bfloat16 if self.config.type == "bf16" else torch.float32)

    def _first(self) -> str:
        """Return the type that is written here; k-quants are made of fp32."""
        return "f32" if self.config.type in KQUANTS else str(self.config.type)

    def _architecture(self, source: Source) -> Architecture:
        return architectures.architecture_of(source.config, str(source.artifact.path))

    def _words(self, source: Source) -> Vocabulary | None:
        size = source.model.get_input_embeddings().weight.shape[0]
        folder, where = source.tokenizer_files, str(source.base)
        words = vocabulary_of(source.tokenizer, folder, size, where, source.stops)
        return words if pooling_of(source.artifact.path) is None else closed(words, folder, where)

    def places(self, source: Source) -> dict[str, Place]:
        """Return where each weight of a source belongs in a file. Raises GymError where one has no place."""
        config = source.config
        experts = getattr(config, "num_experts", 0)
        return names.places(source.shapes, self._architecture(source), config.num_hidden_layers, experts)


def _named(config: Any, found: Architecture) -> dict[str, Place]:
    """Return the places of all weights of a model of this configuration."""
    from gym_torch.checkpoints import weight_shards
    from gym_torch.model.adapted import skeleton
    from gym_torch.model.tasks import TASKS, built

    empty = skeleton(config, built(config, TASKS["causal-lm"]))
    shapes = {
        name: tuple(weight.shape)
        for name, weight in weight_shards.on_disk(empty, weight_shards.own_weights(empty).items())
    }
    return names.places(shapes, found, config.num_hidden_layers, getattr(config, "num_experts", 0))
