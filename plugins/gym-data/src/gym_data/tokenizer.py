"""A model's tokenizer and chat template, read from its directory. Special tokens in contents stay text.

It knows `tokenizer.json`, not transformers: nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from gym_core import DataError
from gym_data.chat import loss_masks
from gym_data.chat.chat_rendering import ChatTemplateSpec, RenderRequest, RenderResult
from gym_data.chat.loss_masks import Rendered
from gym_data.chat.special_tokens import NAME, SpecialTokenQuoter
from gym_data.chat.template_pool import WORKERS, WorkerPool
from gym_data.media import MediaReader
from gym_data.rows import Message
from gym_data.tokenizer_files import read_tokenizer, renamed

Tokens = npt.NDArray[np.int32]  #: [length]
Mask = npt.NDArray[np.bool_]  #: [length]


class Tokenizer:
    """Encodes text and conversations as the model's own tokenizer does."""

    def __init__(
        self,
        path: Path | str,
        template: str | None = None,
        options: Mapping[str, Any] | None = None,
        split_special_tokens: bool = True,
        media: MediaReader | None = None,
    ) -> None:
        """Read the tokenizer of a model directory.

        `template` is used in place of the model's own chat template, `options` are handed to it. Without `split_special_tokens`,
        special tokens that texts spell out are these tokens; `media` reads those of messages. Raises DataError without one.
        """
        self.split_special_tokens, self.media = split_special_tokens, media
        self.path = Path(path)
        files = read_tokenizer(self.path)
        self.fingerprint = files.fingerprint
        self._files = files
        self._values = {**files.named, **(options or {})}
        self._templates = {"default": template} if template is not None else files.templates
        bare = files.tokenizer | {"post_processor": None, "truncation": None, "padding": None}
        try:
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(bare))
        except Exception as error:  # the library raises no other class
            why = f"not a tokenizer: {str(error).splitlines()[0][:200]}"
            raise DataError(why, where=str(self.path / "tokenizer.json"), fix="fetch the model again") from error

    @property
    def eos_id(self) -> int | None:
        """Token that ends a text; None where the model names none."""
        return self._named("eos_token")

    @property
    def bos_id(self) -> int | None:
        """Token that begins a text; None where the model names none."""
        return self._named("bos_token")

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._plain.get_vocab_size())

    @property
    def templates(self) -> dict[str, str]:
        """Text of each chat template; `default` is the usual one. Empty where the model has none."""
        return dict(self._templates)

    @cached_property
    def special(self) -> list[str]:
        """The special tokens."""
        return [token["content"] for token in self._files.tokenizer["added_tokens"] if token["special"]]

    @cached_property
    def document_start(self) -> list[int]:
        """Tokens that the model's tokenizer puts before a text: the one that begins it, or none."""
        alone = tokenizers.Tokenizer.from_str(json.dumps(self._files.tokenizer)).encode("").ids
        return [token for token in alone[:1] if token == self.bos_id and token != self.eos_id]

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, None where the vocabulary does not have it."""
        found: int | None = self._plain.token_to_id(token)
        return found

    def written(self, token: int) -> str | None:
        """Return how a token is written, None where the vocabulary has none of that id."""
        found: str | None = self._plain.id_to_token(token)
        return found

    @cached_property
    def turn_ends(self) -> list[int]:
        """Special tokens with which the chat template ends the assistant's turn, as they are trained on.

        Empty where the model has no template, or one that ends a turn with none.
        """
        messages: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            ids, trained = self.encode_rendered(self.learnable(messages, (), [1]))[-1]
        except (ValueError, DataError):  # no template, or one that asks for other messages
            return []
        end = self._end(ids, trained)
        return [] if end is None else [end]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without any that begin or end it. Special tokens in it are text, unless not split."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of several texts, as `encode` does."""
        tokenizer = self._literal if self.split_special_tokens else self._plain
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def splits(self, text: str) -> bool:
        """Whether a text spells out special tokens, which are split into those of their text."""
        if not self.split_special_tokens or not any(begin in text for begin in self._begins):
            return False
        return any(token in text for token in self.special)

    @cached_property
    def _begins(self) -> set[str]:
        """What special tokens begin with: most texts hold none of it, and there may be hundreds of tokens."""
        return {token[:2] for token in self.special}

    def decode(self, ids: Sequence[int] | Tokens, skip_special: bool = False) -> str:
        """Return the text of tokens, special ones included unless `skip_special`."""
        return str(self._plain.decode([int(token) for token in ids], skip_special_tokens=skip_special))

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: bool = False,
    ) -> tuple[Tokens, Mask]:
        """Return the tokens of a conversation, and which of them the assistant wrote, the end of its turn included.

        The tokens are those of transformers' `apply_chat_template`, but that special tokens in contents are text. With
        `generation_prompt` the text ends where the assistant is to write. Raises ValueError where the template refuses it.
        """
        return self.encode_rendered([self._rendered(RenderRequest(messages, tools or (), prompt=generation_prompt))])[0]

    def render(
        self,
        messages: Sequence[Message],
        generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        values: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text that `chat` encodes. Raises ValueError where the template refuses the messages."""
        return self._rendered(RenderRequest(messages, tools, prompt=generation_prompt, values=values or {})).text

    def quoted(self, value: Any, role: str) -> Any:
        """Return what a role wrote, a text or plain data, with special tokens as text inside of what `encode_rendered` takes.

        Raises ValueError for what cannot be encoded.
        """
        return self._quoter.quote_messages([{"role": role, "content": value}])[0]["content"]

    def steps(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        steps: Sequence[str],
        separator: str,
        values: Mapping[str, Any] | None = None,
        shown: Callable[[Rendered], Rendered] = lambda text: text,
    ) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """Return the tokens of a prompt and of the steps that answer it, and the place of the last token of each step, `[steps]`.

        A separator stands behind each step, and no token holds parts of two; `shown` puts media into the text of the prompt.
        Raises what `learnable` and `shown` raise.
        """
        (text,) = self._sequences(RenderRequest(messages, tools or (), prompt=True, values=values or {}))
        prompt, _ = self.encode_rendered([shown(text)])[0]
        pieces = [np.asarray(ids, dtype=np.int32) for ids in self.encode_batch([step + separator for step in steps])]
        return np.concatenate([prompt, *pieces]), np.cumsum([len(prompt), *map(len, pieces)])[1:] - 1

    def learnable(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        wanted: Collection[int],
        everything: bool = False,
    ) -> list[Rendered]:
        """Return the sequences in which the wanted answers are trained on, or with `everything` all but unwanted answers.

        Raises ValueError where the template refuses the messages or leaves some of them out.
        """
        return self._sequences(RenderRequest(messages, tools, wanted, everything))

    def found(
        self, requests: Sequence[RenderRequest], workers: WorkerPool = WORKERS, to_first: bool = False
    ) -> list[RenderResult | ValueError]:
        """Return for each of many conversations what of it is trained on and what the template leaves out, or why it cannot be.

        With `to_first` none is tried after the first that cannot be.
        """
        if requests:
            self._check_template()
        return workers.learnable(self.template_spec, requests, to_first)

    def encode_rendered(self, batch: Sequence[Rendered]) -> list[tuple[Tokens, Mask]]:
        """Return tokens and mask of rendered texts; a token is trained on when any character of it is in a span.

        The first token of a sequence is never trained on: nothing comes before it.
        """
        odd = [self._quoter.quoted(rendered.text) for rendered in batch]
        texts = [loss_masks.named(each, self._quoter) if flag else each for each, flag in zip(batch, odd, strict=True)]
        plain = iter(self._encode(self._plain, [text for text, flag in zip(texts, odd, strict=True) if not flag]))
        named = iter(
            self._encode(self._renamed, [text for text, flag in zip(texts, odd, strict=True) if flag])
            if any(odd)
            else []
        )
        return [next(named if flag else plain) for flag in odd]

    def quotes(self, rendered: Rendered) -> bool:
        """Whether messages of a rendered text spell out special tokens, which are split into those of their text."""
        return self._quoter.quoted(rendered.text)

    def closes(self, ids: Tokens, trained: Mask) -> bool:
        """Whether the last trained token, blanks aside, is a special one, so that the model learns where to stop."""
        return self._end(ids, trained) is not None

    def _end(self, ids: Tokens, trained: Mask) -> int | None:
        """Return the special token that ends what is trained; None where there is none."""
        for place in np.flatnonzero(trained)[::-1]:
            token = int(ids[place])
            if self._plain.id_to_token(token) in self.special:
                return token
            if self.decode([token]).strip():
                break
        return None

    def _rendered(self, request: RenderRequest) -> Rendered:
        self._check_template()
        return WORKERS.chat(self.template_spec, request).sequences[0]

    def _sequences(self, request: RenderRequest) -> list[Rendered]:
        found = self.found([request])[0]
        if isinstance(found, ValueError):
            raise found
        return found.sequences

    def _check_template(self) -> None:
        if "default" not in self.templates:
            raise DataError(
                "the model has no chat template",
                where=str(self.path),
                key="data.template",
                fix="name one, such as `template: chatml`, or use the `chat` variant of the model",
            )

    def _encode(self, tokenizer: tokenizers.Tokenizer, batch: Sequence[Rendered]) -> list[tuple[Tokens, Mask]]:
        encodings = tokenizer.encode_batch([rendered.text for rendered in batch], add_special_tokens=False)
        return [
            (np.asarray(encoding.ids, dtype=np.int32), loss_masks.tokens_within(encoding.offsets, rendered.spans))
            for encoding, rendered in zip(encodings, batch, strict=True)
        ]

    @cached_property
    def template_spec(self) -> ChatTemplateSpec:
        """What chat templates are told."""
        further = [token["content"] for token in self._files.tokenizer["added_tokens"] if not token["special"]]
        quoted = self.special if self.split_special_tokens else []
        named = self.templates, self._values, quoted, further, self._files.stops, self.special
        return ChatTemplateSpec(*named, parts=[*self.media.marks] if self.media else ())

    @cached_property
    def _quoter(self) -> SpecialTokenQuoter:
        quoted = self.template_spec.special
        return SpecialTokenQuoter(quoted, WORKERS.control(self.template_spec) if quoted and self.templates else ())

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The tokenizer that takes special tokens for text."""
        literal = tokenizers.Tokenizer.from_str(self._plain.to_str())
        literal.encode_special_tokens = True
        return literal

    @cached_property
    def _renamed(self) -> tokenizers.Tokenizer:
        """The tokenizer that knows the quoted tokens under their other names."""
        return renamed(self._plain, {token: NAME.format(number) for number, token in enumerate(self._quoter.tokens)})

    def _named(self, role: str) -> int | None:
        token = self._files.named.get(role)
        return self.token_id(token) if token is not None else None
