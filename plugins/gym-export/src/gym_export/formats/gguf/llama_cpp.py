"""llama.cpp through its Python binding: answers of a GGUF file, and the types that its library alone writes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gym_core import GymError
from gym_export.format import Loaded, Logits
from gym_export.formats.gguf.importance import Importances
from gym_export.source import CONTINUED, LONGEST, Prompt, render

PACKAGE = "llama-cpp-python"


def installed() -> bool:
    """Whether the binding is there."""
    return find_spec("llama_cpp") is not None


class LlamaCpp(Loaded):
    """A GGUF file in llama.cpp, on the processor, its cache in fp32."""

    def __init__(self, file: Path, tokenizer: Any) -> None:
        """Load it; `tokenizer` renders the template that the file holds. Raises GymError where llama.cpp does not take it."""
        import llama_cpp
        import torch

        try:
            self.model = llama_cpp.Llama(
                str(file), n_ctx=LONGEST + CONTINUED + 8, n_batch=LONGEST + CONTINUED, logits_all=True, verbose=False,
                n_gpu_layers=0, n_threads=torch.get_num_threads(), n_threads_batch=torch.get_num_threads(),
                type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
            )  # fmt: skip
        except (ValueError, AssertionError, RuntimeError) as error:
            raise GymError(f"llama.cpp does not load it: {error}", where=str(file), fix="report it") from error
        self.tokenizer = tokenizer

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Return what it answers."""
        self.model.reset()
        self.model.eval(list(tokens))
        return np.array(self.model.scores[: len(tokens)], dtype=np.float32)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """Write on, with its cache."""
        found = [int(self.logits(tokens)[-1].argmax())]
        while len(found) < count:
            self.model.eval(found[-1:])
            found.append(int(self.model.scores[self.model.n_tokens - 1].argmax()))
        return found

    def ends(self, token: int) -> bool:
        """Whether it ends an answer at a token."""
        import llama_cpp

        return bool(llama_cpp.llama_vocab_is_eog(llama_cpp.llama_model_get_vocab(self.model.model), token))

    def encode(self, prompt: Prompt) -> list[int] | None:
        """Return a prompt as llama.cpp's tokenizer has it, rendered by the template in the file."""
        text = prompt.text
        template = self.model.metadata.get("tokenizer.chat_template")
        if prompt.messages and self.tokenizer is not None:
            own, self.tokenizer.chat_template = self.tokenizer.chat_template, template
            text = render(self.tokenizer, prompt.messages) or ""
            self.tokenizer.chat_template = own
        found: list[int] = self.model.tokenize(text.encode(), add_bos=False, special=True)
        return found


def quantize(file: Path, into: Path, kind: str, threads: int, importances: Importances) -> None:
    """Write a file of weights in fp32 again, in a type of llama.cpp (`q4_k_m`), by importances `[columns]` of tensors.

    Raises GymError where it fails.
    """
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = threads
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    if importances:  # the last entry, without a name, ends the list
        entries = (llama_cpp.llama_model_imatrix_data * (len(importances) + 1))()
        for entry, (name, columns) in zip(entries, importances.items(), strict=False):
            entry.name, entry.size = name.encode(), len(columns)
            entry.data = columns.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = entries
    status = llama_cpp.llama_model_quantize(str(file).encode(), str(into).encode(), params)
    if status != 0 or not into.is_file():
        raise GymError(f"llama.cpp's library cannot write {kind} (status {status})", where=str(into), key="export.type")
