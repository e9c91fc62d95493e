"""The vocabulary and the chat templates of a GGUF file, as llama.cpp reads them. Special tokens in contents stay text."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

from gym_data.chat.chat_rendering import ChatTemplateSpec
from gym_data.chat.loss_masks import Rendered
from gym_data.chat.special_tokens import SpecialTokenQuoter
from gym_data.chat.template_pool import WORKERS
from gym_serve.llama_cpp.library import GGUFModel

TEMPLATE = "tokenizer.chat_template"  #: key of the usual one; others have `.NAME` behind it
ROLES = ("bos", "eos", "pad")
SPM = 1  #: vocabularies of SentencePiece, whose words begin with a space


class GGUFWords:
    """Encodes and decodes as llama.cpp does; `gym_serve.batching.batch_model.Words` says what each method does."""

    media = None  #: none are read

    def __init__(self, model: GGUFModel, template: str | None = None) -> None:
        """Read the vocabulary; `template` is the text of a chat template in place of the file's own."""
        self._model, self._library, self._vocabulary = model, model.library, model.vocabulary
        self.size = int(self._library.llama_vocab_n_tokens(self._vocabulary))
        self._written = [self._library.llama_vocab_get_text(self._vocabulary, token) for token in range(self.size)]
        self._numbers = {text.decode("utf-8", "replace"): token for token, text in enumerate(self._written)}
        self._buffer = 64
        spaces = model.metadata.get("tokenizer.ggml.add_space_prefix", "true") == "true"
        self._strips = spaces and self._library.llama_vocab_type(self._vocabulary) == SPM
        own = {
            key.removeprefix(TEMPLATE).lstrip(".") or "default": text
            for key, text in model.metadata.items()
            if key == TEMPLATE or key.startswith(f"{TEMPLATE}.")
        }
        self.templates: dict[str, str] = {"default": template} if template is not None else own

    @property
    def document_start(self) -> list[int]:
        """Tokens that stand before a text."""
        begins = self._library.llama_vocab_get_add_bos(self._vocabulary)
        return [self._library.llama_vocab_bos(self._vocabulary)] if begins else []

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a reply."""
        ends = self._library.llama_vocab_is_eog
        return frozenset(token for token in range(self.size) if ends(self._vocabulary, token))

    @cached_property
    def special(self) -> list[str]:
        """The special tokens: those that are no text."""
        library = self._library
        return self._of(library.LLAMA_TOKEN_ATTR_CONTROL | library.LLAMA_TOKEN_ATTR_UNKNOWN)

    @cached_property
    def template_spec(self) -> ChatTemplateSpec:
        """What chat templates are told."""
        values: dict[str, Any] = {}
        for role in ROLES:
            token = getattr(self._library, f"llama_vocab_{role}")(self._vocabulary)
            if token >= 0:
                values[f"{role}_token"] = self.written(token)
        further = self._of(self._library.LLAMA_TOKEN_ATTR_USER_DEFINED)
        stops = [text for token in sorted(self.ends) if (text := self.written(token))]
        return ChatTemplateSpec(self.templates, values, self.special, further, stops, self.special)

    @cached_property
    def grammar_words(self) -> LLTokenizer:
        """The vocabulary as grammars read it; this takes about a second for 150,000 tokens."""
        from llguidance.llamacpp import lltokenizer_from_vocab

        return lltokenizer_from_vocab(self._vocabulary, eos_token=sorted(self.ends) or None)

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, None where the vocabulary does not have it."""
        return self._numbers.get(token)

    def written(self, token: int) -> str | None:
        """Return how the vocabulary writes a token."""
        return self._written[token].decode("utf-8", "replace") if 0 <= token < self.size else None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens in it are text."""
        return self._tokens(text, special=False)

    def encode_rendered(self, batch: Sequence[Rendered]) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]]:
        """Return the tokens of texts that a template made; nothing of them is trained on."""
        found = [np.array(self._rendered(rendered.text), dtype=np.int32) for rendered in batch]
        return [(tokens, np.zeros(len(tokens), dtype=np.bool_)) for tokens in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        text = b"".join(self._piece(token) for token in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strips else text

    def _rendered(self, text: str) -> list[int]:
        if not self._quoter.quoted(text):
            return self._tokens(text, special=True)
        found: list[int] = []
        for at, part in enumerate(self._own.split(text)):
            if at % 2:  # what the template wrote
                found += self._tokens(part, special=True)
            else:
                for piece in self._cut(part):
                    found += self._tokens(piece, special=False)
        return found

    def _cut(self, text: str) -> list[str]:
        """Undo the quotes in a text; tokens that llama.cpp finds in any text are cut in two, so that it does not."""
        pieces = [""]
        for at, part in enumerate(self._own.split(self._quoter.unquote(text))):
            if at % 2 and part in self.template_spec.further:
                pieces[-1] += part[:1]
                pieces.append(part[1:])
            else:
                pieces[-1] += part
        return [piece for piece in pieces if piece]

    @cached_property
    def _quoter(self) -> SpecialTokenQuoter:
        return SpecialTokenQuoter(self.special, WORKERS.control(self.template_spec) if self.templates else ())

    @cached_property
    def _own(self) -> re.Pattern[str]:
        """What the template alone writes; a text is split by it into what is between and what matched."""
        tokens = sorted(self._quoter.tokens, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, tokens)) or '(?!)'})")

    def _of(self, attributes: int) -> list[str]:
        """Return the tokens that have one of some attributes."""
        read = self._library.llama_vocab_get_attr
        found = [token for token in range(self.size) if read(self._vocabulary, token) & attributes]
        return [text for token in found if (text := self.written(token))]

    def _tokens(self, text: str, special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        buffer = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), buffer, room, False, special)
        if count < 0:
            buffer = (ctypes.c_int32 * -count)()
            count = self._library.llama_tokenize(self._vocabulary, data, len(data), buffer, -count, False, special)
        return buffer[:count]

    def _piece(self, token: int) -> bytes:
        """Return the bytes of a token, none for one that is not there."""
        if not 0 <= token < self.size:
            return b""
        buffer = ctypes.create_string_buffer(self._buffer)
        size = self._library.llama_token_to_piece(self._vocabulary, token, buffer, self._buffer, 0, True)
        if size < 0:
            self._buffer = -size
            return self._piece(token)
        return buffer.raw[:size]
