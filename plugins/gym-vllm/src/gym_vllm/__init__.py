"""gym-vllm: rollout engines that answer with vLLM. Nothing heavy is imported here, vLLM least of all."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_rl import RolloutEngineConfig

__version__ = "0.1.0"
__all__ = ["VLLM", "Colocated"]


class VLLMConfig(RolloutEngineConfig):
    """Base of both engines: what vLLM is told about the model."""

    outside: ClassVar[str] = "vLLM and a GPU"

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Precision of the answering model; `auto` is that of the files of the model."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the memory of a GPU that vLLM may take."""
    max_model_len: PositiveInt | None = None
    """Most tokens of a prompt and its answer together; by default what the model can, which may take much memory."""


class VLLM(VLLMConfig):
    """Answers with a vLLM server, which gets the weights before each round. It is started for the run unless one is named."""

    target: ClassVar[str] = "gym_vllm.server:ServerEngine"

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the memory of its GPUs that a server started here may take."""
    url: str = ""
    """Address of a server that runs already, such as `http://127.0.0.1:8000`; empty to start one on this machine."""
    token: str = ""
    """Environment variable that holds the key of a server that runs already."""
    devices: str = ""
    """GPUs of a server started here, such as `1` or `2,3`: not those that train. Empty for all."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs over which a server started here spreads each layer."""
    startup: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that a server may take to start."""
    weights: str = ""
    """Folder for weights on their way to the server, which must see it under the same path; a folder in memory, such as
    `/dev/shm`, is fastest. Empty for the directory of the run."""
    concurrency: PositiveInt = 256
    """Most answers asked for at once."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that one answer, or loading the weights, may take."""
    retries: Annotated[int, Field(ge=0)] = 2
    """How often an answer is asked for again when the connection breaks or the server is busy."""
    verify: bool = True
    """See that the server computes with the weights that it was given, when it got them and after each round: by the
    log-probabilities of a text, and by a name, for one that was restarted in between has old ones."""


class Colocated(VLLMConfig):
    """Answers with a vLLM engine in the training process, on the same GPU: one of them works while the other sleeps."""

    target: ClassVar[str] = "gym_vllm.colocated:ColocatedEngine"

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the memory of the GPU that vLLM may take while it answers."""
    enable_sleep_mode: bool = True
    """Free vLLM's memory while the policy is trained."""
