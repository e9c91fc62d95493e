"""Opens what is to be served: a run, a checkpoint, an artifact, a model directory, a family or a Hub id."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gym_core import Artifact, GymError
from gym_data.chat.answer_format import AnswerFormat, answer_format_of, values_read
from gym_data.chat.template_hash import template_hash
from gym_data.location import artifact_at, locate
from gym_data.media import MediaReader
from gym_data.prepare import tokenizer_with
from gym_data.tokenizer import Tokenizer
from gym_serve.contract import Limits, ModelSource, ServedModel, Task
from gym_serve.templates import named_template, template_file
from gym_torch.checkpoints.base_fingerprint import based_on
from gym_torch.checkpoints.base_model import base_of, is_gone
from gym_torch.checkpoints.open_artifact import as_stored, opened
from gym_torch.checkpoints.peft_folder import peft_artifact
from gym_torch.checkpoints.pooling_files import pooling_of
from gym_torch.kernels.fused_modules import fuse
from gym_torch.kernels.precision_probe import device
from gym_torch.model import positions
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.model.scalar_head import ScalarHead
from gym_torch.model.stop_tokens import stops
from gym_torch.model.tasks import task_in
from gym_torch.recorded_components import media_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TEMPLATE = "chat_template.jinja"  #: of a folder, where it has one of its own
KEPT = 64  #: tokenizers and options of which it is known how answers are written
UNBOUNDED = 2**20  #: tokens of context, where a model names none


@dataclass(eq=False)
class Served:
    """A model in memory, and what its replies need."""

    source: ModelSource
    artifact: Artifact
    model: PreTrainedModel
    tokenizer: Tokenizer
    head: ScalarHead | None
    context: int  #: tokens of prompt and reply
    tenants: bool = False  #: whether there may be some
    pooling: str | None = None  #: of an embedding model, as `pooling_of` has it
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def vocabulary(self) -> int:
        """Number of logits."""
        return vocabulary_of(self.model)

    @cached_property
    def stops(self) -> frozenset[int]:
        """The tokens that end a reply."""
        return ends_of(self.model, self.tokenizer)

    @property
    def tasks(self) -> frozenset[Task]:
        """What it can be asked."""
        if self.pooling is not None:
            return frozenset({"embed"})
        return frozenset({"generate", "embed"} if self.head is None else {"score"})  # type: ignore[arg-type]

    def listed(
        self, tokenizer: Tokenizer | None = None, template_options: Mapping[str, Any] | None = None
    ) -> ServedModel:
        """Return it as a front lists it, or with the template that another tokenizer has, told some options."""
        tokenizer = tokenizer or self.tokenizer
        template = tokenizer.templates.get("default")
        return ServedModel(
            self.source.name,
            self.artifact.kind,
            self.tasks,
            self.created,
            self.context,
            self.tenants,
            template_hash(template) if template is not None else None,
            options_of(tokenizer),
            answers_of(tokenizer, json.dumps(template_options or {}, sort_keys=True)),
            self.tokenizer.media is not None,
        )


@lru_cache(KEPT)
def answers_of(tokenizer: Tokenizer, template_options: str) -> AnswerFormat:
    """Return how answers are written with options, which are JSON; it is found by rendering some."""
    return answer_format_of(tokenizer, json.loads(template_options))


@lru_cache(KEPT)
def options_of(tokenizer: Tokenizer) -> frozenset[str]:
    """Return the names of the options that a template reads."""
    return values_read(tokenizer)


def ends_of(model: PreTrainedModel, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that end a reply: those of the model, of its tokenizer, and of its template."""
    return frozenset(token for token in (tokenizer.eos_id, *tokenizer.turn_ends, *stops(model)) if token is not None)


def vocabulary_of(model: PreTrainedModel) -> int:
    """Return the number of logits of a model."""
    ends = model.get_output_embeddings()
    return int(ends.weight.shape[0]) if ends is not None else model.config.get_text_config().vocab_size


def context_of(model: PreTrainedModel, limits: Limits) -> int:
    """Return how many tokens prompt and reply may have."""
    said = positions.stated(model) or UNBOUNDED
    return min(said, limits.max_context or said)


def open_source(source: ModelSource, limits: Limits, dtype: str) -> Served:
    """Return a model in memory. Raises GymError where it cannot be opened, or its template is not the one it was trained with."""
    artifact = artifact_of(source)
    found = opened(as_stored(artifact))
    model = found.adapted.model.requires_grad_(False).eval().to(device())  # type: ignore[arg-type]
    model = model if dtype == "auto" else model.to(dtype=DTYPES[dtype])
    fuse(model)  # before tenants stand in the place of its modules
    own = artifact.path if (artifact.path / "tokenizer.json").is_file() else base_of(artifact)
    tokenizer = tokenizer_of(own, source.template, media_for(source, artifact, model))
    check_template(artifact.details, tokenizer, source.name)
    tenants = bool(source.tenants or source.adapters or limits.adapter_folders)
    context, pooling = context_of(model, limits), pooling_of(artifact.path)
    return Served(source, artifact, model, tokenizer, found.head, context, tenants, pooling)


def media_for(source: ModelSource, artifact: Artifact, model: PreTrainedModel) -> MediaReader | None:
    """Return what reads images for a model: as the source says, or as it was trained. Raises GymError where it reads none."""
    media = source.media or media_of(artifact)
    if media is None:
        return None
    if not AutoLanguageModel.reads_media(model.config):
        raise GymError(
            f"{type(model).__name__} takes text alone", where=source.path, key="media", fix="leave `media` out"
        )
    reader: MediaReader = media.build(path=base_of(artifact))
    return reader


def tokenizer_of(path: Path, template: str | Mapping[str, Any] | None, media: MediaReader | None = None) -> Tokenizer:
    """Return the tokenizer of a model, with a template by name or by Jinja file where one is given. Raises GymError."""
    text = template_file(template)
    if text is not None or template is None:
        return Tokenizer(path, text, media=media)
    return tokenizer_with(named_template(template), path, media=media)


def own_tokenizer(
    artifact: Artifact, usual: Tokenizer, template: str | Mapping[str, Any] | None, name: str
) -> Tokenizer:
    """Return the tokenizer of an adapter, with the template that lies beside it; that of its base, where it has the same.

    Raises GymError where it was trained with another template than that.
    """
    found, beside = usual, artifact.path / TEMPLATE
    if (artifact.path / "tokenizer.json").is_file():
        own = tokenizer_of(artifact.path, template, usual.media)
        if (own.fingerprint, own.templates) != (found.fingerprint, found.templates):
            found = own
    elif (
        template is None and beside.is_file() and (text := template_file(str(beside))) != usual.templates.get("default")
    ):
        found = Tokenizer(usual.path, text, media=usual.media)
    check_template(artifact.details, found, name)
    return found


def artifact_of(source: ModelSource) -> Artifact:
    """Return what is served. Raises what `artifact_in` and `based_on` raise."""
    base = None if source.base is None else locate(source.base, key="base")
    return based_on(artifact_in(source.path, base), source.base)


def artifact_in(path: str, base: Path | None = None) -> Artifact:
    """Return what a path or a name means; an adapter that peft wrote elsewhere belongs to `base`, where one is given.

    So does one whose own base is not where it was. Raises GymError where there is nothing to serve.
    """
    found = artifact_at(path)
    if found.kind == "adapter" and not found.details:  # a folder of peft, of which no run says more
        return peft_artifact(found.path, None if base is None else str(base))
    if base is not None and is_gone(found):
        found = replace(found, base=str(base))  # whether it is the same one its fingerprint says
    return replace(found, task=task_in(found.path)) if found == Artifact(found.path) else found


def check_template(details: Mapping[str, object], tokenizer: Tokenizer, name: str) -> None:
    """Raise GymError where the template that is there is another than the one that trained the model."""
    said, template = details.get("template_sha256"), tokenizer.templates.get("default")
    if said is None or template is None or said == template_hash(template):
        return
    raise GymError(
        f"`{name}` was trained with another chat template: {str(said)[:12]}, and {template_hash(template)[:12]} is there",
        where=str(tokenizer.path),
        key="template",
        fix="put back the template it was trained with, beside its weights as chat_template.jinja",
    )
