"""Options of the engine `llama_cpp`. Neither torch nor llama.cpp is imported here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_serve.kinds import Server


class LlamaCpp(Server):
    """Serves GGUF files with llama.cpp (`pip install 'gym-serve[llamacpp]'`), tokenizer and chat template from the file."""

    target: ClassVar[str] = "gym_serve.llama_cpp.engine:LlamaCppEngine"
    outside: ClassVar[str] = "llama-cpp-python"
    suffixes: ClassVar[tuple[str, ...]] = (".gguf",)

    slots: PositiveInt = 4
    """Most replies that are decoded side by side. Each has a cache for the whole context, which is taken at the start."""
    cache_type: Literal["f32", "f16", "q8_0"] = "f16"
    """Number format of keys and values."""
    gpu_layers: Annotated[int, Field(ge=-1)] = -1
    """Layers that a GPU computes, where llama.cpp was built for one; -1 is all."""
    threads: PositiveInt | None = None
    """Threads that compute; by default as many as torch uses."""
    prompt_batch: PositiveInt = 512
    """Tokens of a prompt that are computed at once."""
