"""Options of the engine `vllm`. Neither torch nor vLLM is imported here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from gym_serve.kinds import Server

ASKED = frozenset({"name", "url", "token", "timeout"})  #: options that a server which runs already has a use for


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
    replicas: PositiveInt = 1
    """Copies of the model in a server started here, each on GPUs of its own, behind one address."""
    ray: str = ""
    """Address of a Ray cluster, such as `10.0.0.1:6379`, over whose machines a server started here spreads layers and copies."""
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

    @model_validator(mode="after")
    def _used(self) -> Self:
        """Refuse what nobody would look at."""
        if self.url and (unread := sorted(self.model_fields_set - ASKED)):
            raise ValueError(
                f"`{unread[0]}` is of a server that is started here, and `url` names one that runs already"
            )
        return self

    @property
    def max_model_len(self) -> None:
        """None: `max_context` of the command says it."""
