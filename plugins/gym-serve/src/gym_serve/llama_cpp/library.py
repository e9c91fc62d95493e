"""llama.cpp's library through its Python binding: a GGUF file in memory, and a context that computes."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gym_core import GymError

if TYPE_CHECKING:
    from gym_serve.llama_cpp.config import LlamaCpp

LOG = logging.getLogger(__name__)
CAUSE = 200  #: characters of what the library said
_said: deque[str] = deque(maxlen=8)  #: its last errors
_callbacks: list[Any] = []  #: what the library calls; never let go of


def library() -> Any:
    """Return the binding, whose messages go to the log. Raises GymError where it is not installed."""
    if find_spec("llama_cpp") is None:
        raise GymError(
            "GGUF files are read by llama-cpp-python, which is not installed",
            key="engine",
            fix="pip install 'gym-serve[llamacpp]', or serve the run that was exported",
        )
    import llama_cpp

    if not _callbacks:

        def told(level: int, text: bytes, _: Any) -> None:
            line = text.decode("utf-8", "replace").strip()
            LOG.debug("%s", line)
            if level == 3 and line:  # GGML_LOG_LEVEL_ERROR
                _said.append(line)

        _callbacks.append(llama_cpp.llama_log_callback(told))
        llama_cpp.llama_log_set(_callbacks[0], ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
    return llama_cpp


class GGUFModel:
    """A file in memory, freed with the last reference to it."""

    def __init__(self, path: Path, gpu_layers: int = -1, words_only: bool = False) -> None:
        """Read a file, or with `words_only` its vocabulary. Raises GymError where it is none that answers."""
        if not path.is_file():
            raise GymError("there is no such file", where=str(path), key="models", fix="name a GGUF file")
        self.library = library()
        self.path = path
        params = self.library.llama_model_default_params()
        params.n_gpu_layers, params.vocab_only = gpu_layers, words_only
        _said.clear()
        self.pointer = self.library.llama_model_load_from_file(str(path).encode(), params)
        if not self.pointer:
            raise GymError(
                f"llama.cpp does not load it{_cause()}", where=str(path), fix="see that it is whole, and GGUF"
            )
        weakref.finalize(self, self.library.llama_model_free, self.pointer)
        if not words_only and (
            self.library.llama_model_has_encoder(self.pointer) or not self.library.llama_model_has_decoder(self.pointer)
        ):
            raise GymError("it is no model that writes on", where=str(path), fix="name a decoder, such as a chat model")
        self.vocabulary = self.library.llama_model_get_vocab(self.pointer)
        self.metadata = dict(self._metadata())

    @property
    def trained_context(self) -> int:
        """Tokens of the texts that it was trained on."""
        return int(self.library.llama_model_n_ctx_train(self.pointer))

    def _metadata(self) -> Iterator[tuple[str, str]]:
        """Yield what the file says of itself, lists aside."""
        library, model = self.library, self.pointer
        for at in range(library.llama_model_meta_count(model)):
            found = []
            for read in (library.llama_model_meta_key_by_index, library.llama_model_meta_val_str_by_index):
                size = read(model, at, None, 0)
                buffer = ctypes.create_string_buffer(max(size, 0) + 1)
                read(model, at, buffer, len(buffer))
                found.append(buffer.value.decode("utf-8", "replace"))
            yield found[0], found[1]


class Context:
    """Keys and values of several sequences of tokens, and what computes more of them. One thread uses it at a time."""

    def __init__(self, model: GGUFModel, config: LlamaCpp, sequences: int, length: int) -> None:
        """Take memory for so many sequences of this length. Raises GymError where there is not enough."""
        self.model, self._library, self._size = model, model.library, config.prompt_batch
        library, threads = model.library, config.threads or torch.get_num_threads()
        params = library.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = sequences * (length + -length % 256), sequences, False
        params.n_batch = params.n_ubatch = self._size
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = True  # else what a window has left behind is missing where a sequence is cut back
        params.type_k = params.type_v = getattr(library, f"GGML_TYPE_{config.cache_type.upper()}")
        _said.clear()
        self._pointer = library.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise GymError(
                f"llama.cpp has no room for {sequences} replies of {length} tokens{_cause()}",
                where=str(model.path),
                key="max_context",
                fix="set `max_context` or `engine.slots` lower",
            )
        self._width = int(library.llama_vocab_n_tokens(model.vocabulary))
        self._memory = library.llama_get_memory(self._pointer)
        self._batch = library.llama_batch_init(self._size, 0, 1)
        weakref.finalize(self, _free, library, self._pointer, self._batch, model)

    def compute(self, sequence: int, done: int, tokens: Sequence[int]) -> Tensor:
        """Write tokens behind the `done` first ones of a sequence; return the logits `[vocabulary]` fp32 behind the last.

        Raises GymError where it fails.
        """
        batch = self._batch
        for start in range(0, len(tokens), self._size):
            part = tokens[start : start + self._size]
            batch.n_tokens = len(part)
            for at, token in enumerate(part):
                batch.token[at], batch.pos[at] = token, done + start + at
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
                batch.logits[at] = start + at == len(tokens) - 1
            status = self._library.llama_decode(self._pointer, batch)
            if status != 0:
                raise GymError(f"llama.cpp failed with status {status}{_cause()}", where=str(self.model.path))
        logits = self._library.llama_get_logits_ith(self._pointer, -1)
        return torch.from_numpy(np.ctypeslib.as_array(logits, (self._width,)).copy())

    def cut(self, sequence: int, length: int) -> int:
        """Keep the first tokens of a sequence; return how many are kept, none where its cache cannot be cut."""
        if not self._library.llama_memory_seq_rm(self._memory, sequence, length, -1):
            self._library.llama_memory_seq_rm(self._memory, sequence, -1, -1)
            return 0
        return length

    def copy(self, sequence: int, into: int) -> None:
        """Make a sequence the same as another one."""
        self._library.llama_memory_seq_rm(self._memory, into, -1, -1)
        self._library.llama_memory_seq_cp(self._memory, sequence, into, -1, -1)


def _free(library: Any, context: Any, batch: Any, model: GGUFModel) -> None:
    """Free a context; its model is there until then."""
    library.llama_batch_free(batch)
    library.llama_free(context)


def _cause() -> str:
    return f": {_said[0][:CAUSE]}" if _said else ""
