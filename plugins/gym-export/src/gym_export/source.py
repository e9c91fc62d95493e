"""What is exported: an artifact opened for exporters, with its tokenizer, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel

from gym_core import Artifact, GymError
from gym_export.bounded_rendering import rendered
from gym_torch.checkpoints import weight_shards
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.open_artifact import Opened, opened, plain_model
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer, remove_templates
from gym_torch.model.adapted import Plain, skeleton
from gym_torch.model.stored_precisions import stored_dtype
from gym_torch.model.tasks import PROBE, Task, answers, built, task_of

LONGEST = 160  #: tokens of a prompt
CONTINUED = 8  #: tokens that are written behind a prompt
TEXT = "Hello, world! 1234567890 it's 3.14 \u00e4\u00f6\u00fc \u4f60\u597d \U0001f600\n\n\tdef f(x):  return x**2\r\n  "
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
TALK = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Hi \u2014 who are you?"},
    {"role": "assistant", "content": "I'm a model."},
    {"role": "user", "content": "  And 7 * 8?\n"},
]


@dataclass(frozen=True)
class Prompt:
    """What both sides are asked."""

    name: str  #: `probe`, `text`, `question` or `talk`
    tokens: tuple[int, ...]  #: as the source's tokenizer has it
    text: str = ""  #: what these are; empty for the probe, which is of no text
    messages: tuple[dict[str, str], ...] = ()  #: what the text was rendered from


class Source:
    """An artifact, opened. A context: temporary files of its tokenizer are removed at the end."""

    def __init__(self, artifact: Artifact) -> None:
        """Open nothing yet."""
        self.artifact = artifact
        self.task: Task = task_of(artifact.task)
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove temporary files."""
        self._exit.close()

    @cached_property
    def whole(self) -> Opened:
        """The model with its adapter beside the weights, mapped. Raises what `opened` does."""
        return opened(self.artifact, exact=True)

    @property
    def model(self) -> PreTrainedModel:
        """The language model that answers."""
        return self.whole.adapted.model

    @property
    def base(self) -> Path:
        """The folder of the model that was trained."""
        return base_of(self.artifact)

    @property
    def config(self) -> PretrainedConfig:
        """The configuration of the model, of its text part where it has several."""
        found: PretrainedConfig = self.model.config.get_text_config()
        return found

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the model is stored in."""
        return stored_dtype(self.model, self.artifact)

    def plain(self, dtype: torch.dtype) -> Plain:
        """Return one plain model for a format of this precision, its weights by their names in files of transformers.

        They come one after another. What an adapter changes is rounded once: see `adding_in`.
        """
        return plain_model(self.artifact, self.adding_in(dtype))

    def merged(self, dtype: torch.dtype) -> Plain:
        """Return the same by the names that weights have in the model. Raises what `opened` does."""
        adding = self.adding_in(dtype)
        whole = self.whole if adding == "auto" else opened(self.artifact, adding, exact=True)
        return whole.plain()

    def adding_in(self, dtype: torch.dtype) -> torch.dtype | str:
        """Return the precision to add in what an adapter changes: fp32 where the format holds other digits than the base.

        The base is then in memory in fp32; else, by `auto`, it is mapped in the precision of its files.
        """
        rounded = self.artifact.kind == "adapter" and dtype != self.dtype and self.model.dtype != torch.float32
        return torch.float32 if rounded else "auto"

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of these weights by name."""
        plain = self.whole.plain()
        empty = skeleton(plain.config, built(plain.config, self.task))
        laid = weight_shards.on_disk(empty, weight_shards.own_weights(empty).items())
        return {name: tuple(weight.shape) for name, weight in laid}

    @property
    def numbers(self) -> int:
        """How many numbers the weights have."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @cached_property
    def tokenizer_files(self) -> Path:
        """A folder with the tokenizer and the chat template: the artifact's, and the base's where it has none."""
        folder = Path(self._exit.enter_context(TemporaryDirectory(prefix="gym-tokenizer-")))
        self.carry_tokenizer(folder)
        return folder

    def carry_tokenizer(self, into: Path) -> None:
        """Copy the files of the tokenizer, the chat template and the stop tokens: the base's first, then the artifact's."""
        for holder in dict.fromkeys((self.base, self.artifact.path)):
            if _has_template(holder):
                # transformers takes files before those in the configuration, and these are another's
                remove_templates(into)
            copy_tokenizer(holder, into)

    def carry_card(self, into: Path) -> None:
        """Write the card of the artifact, where it has one, as that of a whole model."""
        card = self.artifact.path / "README.md"
        if not card.is_file():
            return
        text = card.read_text(encoding="utf-8", errors="replace")
        if self.artifact.kind != "model":
            head, mark, body = text.partition("\n---\n") if text.startswith("---\n") else ("", "", text)
            head = head.replace("library_name: peft", "library_name: transformers")
            added = f"\nThis is a whole model: what this card calls the {self.artifact.kind} was added to its base.\n"
            text = head + mark + added + ("" if body.startswith("\n") else "\n") + body
        (into / "README.md").write_text(text, encoding="utf-8")

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, None where the model has none. Raises GymError where it cannot be read."""
        return read_tokenizer(self.tokenizer_files, self.base)

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """The tokens that end an answer: the tokenizer's own first, then those of the generation config."""
        own = None if self.tokenizer is None else self.tokenizer.eos_token_id
        file = self.tokenizer_files / "generation_config.json"
        said = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        return tuple(
            dict.fromkeys(
                token for token in (own, *np.atleast_1d([] if said is None else said).tolist()) if token is not None
            )
        )

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        """What both sides are asked: tokens from all over the vocabulary, text with special tokens, and conversations."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        pad = getattr(self.config, "pad_token_id", None)
        tokens = [(13 + 7919 * place) % vocabulary for place in range(PROBE)]
        found = [Prompt("probe", tuple(token if token != pad else (token + 1) % vocabulary for token in tokens))]
        if self.tokenizer is None:
            return tuple(found)
        special = "".join(self.tokenizer.all_special_tokens[:16]) + "".join(list(self.tokenizer.get_added_vocab())[:16])
        found.append(self._prompt("text", TEXT + special + " and so on"))
        for name, messages in (("question", QUESTION), ("talk", TALK)):
            text = render(self.tokenizer, messages)
            if text is not None:
                found.append(self._prompt(name, text, tuple(messages)))
        return tuple(prompt for prompt in found if prompt.tokens)

    def _prompt(self, name: str, text: str, messages: tuple[dict[str, str], ...] = ()) -> Prompt:
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Prompt(name, tuple(tokens), text, messages)

    def asked(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens of a prompt that a model is asked about: as many as it has positions for, and rows of embeddings."""
        rows = self.model.get_input_embeddings().weight.shape[0]
        most = min(LONGEST, (getattr(self.config, "max_position_embeddings", None) or LONGEST) - CONTINUED)
        return tuple(token for token in prompt.tokens if token < rows)[: max(most, 1)]

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return what the artifact answers to tokens, in fp32: logits `[len(tokens), vocabulary]`, or scores `[n, 1]`."""
        ids = torch.tensor([list(tokens)])
        found = answers(lambda model, asked: self.task.wanted(model, asked, self.whole.head), self.model, ids)
        return rows(found)


def _has_template(folder: Path) -> bool:
    """Whether a tokenizer has a chat template; a configuration that cannot be read is refused with the tokenizer."""
    if any(folder.glob("chat_template.*")):
        return True
    file = folder / "tokenizer_config.json"
    with suppress(ValueError):
        return file.is_file() and bool(json.loads(file.read_text(encoding="utf-8")).get("chat_template"))
    return False


def rows(found: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return answers of a model as rows."""
    array: npt.NDArray[np.float32] = found.squeeze(0).reshape(-1, found.shape[-1] if found.dim() > 1 else 1).numpy()
    return array


def read_tokenizer(folder: Path, named: Path) -> Any:
    """Read a tokenizer with transformers, None where the folder has none; errors name the model `named`."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises no other class
        why = f"its tokenizer cannot be read: {str(error).splitlines()[0][:160]}"
        raise GymError(why, where=str(named), fix="put back the tokenizer files that belong to the model") from error


def render(tokenizer: Any, messages: Sequence[dict[str, str]]) -> str | None:
    """Return messages as the chat template has them, up to where an answer begins; None where it has none, or none for such.

    Raises GymError where the template cannot be rendered at all.
    """
    given = tokenizer.chat_template
    if not given or (isinstance(given, dict) and "default" not in given):
        return None
    try:
        return rendered(tokenizer, messages)
    except TemplateError as error:
        if len(messages) > 1:  # such as one that takes no system message
            return None
        why = f"the chat template does not render a question: {str(error)[:160]}"
        raise GymError(why, fix="repair the chat template of the model") from error
