"""Options of the engine `vllm`. Neither torch nor vLLM is imported here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_serve.kinds import Server


class ServedByVLLM(Server):
    """Serves a model with a vLLM server: one that is started for the command (`pip install 'gym-vllm[vllm]'`), or `url`."""

    target: ClassVar[str] = "gym_vllm.serving.engine:VLLMEngine"
    outside: ClassVar[str] = "vLLM"

    url: str = ""
    """Address of a server that runs already, such as `http://127.0.0.1:8000`; empty to start one on this machine."""
    token: str = ""
    """Environment variable that holds the key of a server that runs already."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Precision of a server started here; `auto` is that of the files of the model."""
    devices: str = ""
    """GPUs of a server started here, such as `0` or `0,1`; empty for all."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs over which a server started here spreads each layer."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the memory of its GPUs that a server started here may take."""
    max_lora_rank: PositiveInt = 64
    """Most ranks of an adapter, where there are adapters."""
    startup: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that a server may take to start."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds between two tokens of a reply, the wait for the first one included."""
    log: str = "vllm.log"
    """File for what a server started here prints."""

    @property
    def max_model_len(self) -> None:
        """None: `max_context` of the command says it."""
