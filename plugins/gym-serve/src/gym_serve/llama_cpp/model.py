"""A GGUF file as the engine over batches asks it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_core.files import expanded
from gym_data.chat.answer_format import answer_format_of, values_read
from gym_data.chat.template_hash import template_hash
from gym_serve.batching.grammar import Grammars
from gym_serve.contract import Limits, ModelSource, ScoreInput, ServedModel, Text
from gym_serve.errors import BadRequest, Unknown
from gym_serve.llama_cpp.config import LlamaCpp
from gym_serve.llama_cpp.decoding import LlamaDecoding
from gym_serve.llama_cpp.library import Context, GGUFModel
from gym_serve.llama_cpp.vocabulary import GGUFWords
from gym_serve.templates import template_text
from gym_torch.generation.sampling import Scores
from gym_torch.generation.scheduler import Lane

USUAL = 8192  #: tokens of context where nothing else is said: caches for all that models can would fill the memory


@dataclass(frozen=True)
class Answering:
    """What answers: the same for everybody."""

    tokenizer: GGUFWords
    context: int
    key: None = None

    @property
    def stops(self) -> frozenset[int]:
        """The tokens that end a reply."""
        return self.tokenizer.ends

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return self.tokenizer.size

    @property
    def grammars(self) -> Grammars:
        """What compiles grammars for its vocabulary."""
        return Grammars(self.tokenizer.grammar_words)


class LlamaModel:
    """A file, and the lane where its rows are decoded."""

    def __init__(self, source: ModelSource, limits: Limits, config: LlamaCpp) -> None:
        """Load it. Raises GymError where llama.cpp does not, or where it is to have tenants."""
        if source.media:
            why = "GGUF files are read without what reads images"
            raise GymError(why, where=source.path, key="media", fix="serve the run with `local`")
        if source.base:
            raise GymError("a GGUF file is a whole model", where=source.path, key="base", fix="leave it out")
        if source.tenants or source.adapters:
            key = "tenants" if source.tenants else "adapters"
            fix = "merge the adapter and export it (`gym export RUN --to gguf`), or serve the run with `local`"
            raise GymError("GGUF files are served as they are, without variants", where=source.path, key=key, fix=fix)
        self.source = source
        self._model = GGUFModel(gguf_file(source.path), config.gpu_layers)
        self._words = GGUFWords(self._model)
        if source.template is not None:
            self._words = GGUFWords(self._model, template_text(source.template, self._words.token_id))
        trained = self._model.trained_context
        self.context = min(trained, limits.max_context or USUAL)
        self._created = int(time.time())

        def opens() -> LlamaDecoding:
            context = Context(self._model, config, limits.max_batch, self.context)
            return LlamaDecoding(context, limits.max_batch, limits.prefix_cache_bytes > 0)

        self._lane = Lane(opens)
        self._lane.session()  # so that what does not fit into memory is told before anybody asks

    def _described(self, template_options: Mapping[str, Any]) -> ServedModel:
        template = self._words.templates.get("default")
        return ServedModel(
            self.source.name,
            "model",
            frozenset({"generate"}),
            self._created,
            self.context,
            template_hash=template_hash(template) if template is not None else None,
            template_options=values_read(self._words),
            answers=answer_format_of(self._words, template_options),
        )

    @cached_property
    def _listed(self) -> ServedModel:
        return self._described({})

    def listed(self) -> ServedModel:
        """Return it as a front lists it."""
        return self._listed

    def described(self, tenant: str | None, template_options: Mapping[str, Any]) -> ServedModel:
        """Return how answers are written with some options. Raises Unknown for any tenant."""
        if tenant is not None:
            raise Unknown(f"there is no model `{self.source.name}@{tenant}`")
        return self._described(template_options)

    def tenants(self) -> Sequence[str]:
        """Return nobody."""
        return ()

    def open(self, tenant: str | None, stack: ExitStack) -> Answering:
        """Return what answers. Raises Unknown for any tenant."""
        if tenant is not None:
            raise Unknown(f"there is no model `{self.source.name}@{tenant}`")
        return Answering(self._words, self.context)

    def lane(self, answering: Answering, images: bool) -> Lane:
        """Return where its rows are decoded."""
        return self._lane

    def prompt_scores(self, answering: Answering, tokens: Sequence[int], count: int) -> list[Scores]:
        """Raise BadRequest."""
        raise BadRequest("prompts are not echoed by this engine", key="echo")

    def embeddings(self, answering: Answering, texts: Sequence[Text], dimensions: int | None) -> list[list[float]]:
        """Raise BadRequest."""
        raise BadRequest(f"`{self.source.name}` is no model that can embed", key="model")

    def scores(self, inputs: Sequence[ScoreInput]) -> list[float]:
        """Raise BadRequest."""
        raise BadRequest(f"`{self.source.name}` is no model that can score", key="model")

    def close(self) -> None:
        """Let go of the cache; the file leaves memory with the last one who reads its words."""
        self._lane.decoding = None


def gguf_file(path: str) -> Path:
    """Return the file that a path means: itself, or the only one of a folder. Raises GymError where there are several."""
    found = expanded(path)
    if not found.is_dir():
        return found
    files = sorted(found.glob("*.gguf"))
    first = [file for file in files if "-of-" not in file.stem or "-00001-of-" in file.stem]
    if len(first) != 1:
        why = f"the folder has {len(first)} GGUF files" if first else "the folder has no GGUF file"
        raise GymError(why, where=path, key="models", fix="name one of them")
    return first[0]
