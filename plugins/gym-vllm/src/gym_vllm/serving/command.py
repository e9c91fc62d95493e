"""What a vLLM server is started with to answer requests: beside the model, its copies, and the machines they are spread over."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gym_core import GymError
from gym_core.files import expanded
from gym_serve.contract import Limits
from gym_vllm.launch import Server
from gym_vllm.serving.config import ServedByVLLM
from gym_vllm.serving.model import AskedModel

COMPACT = {"backend": "guidance", "disable_any_whitespace": True}  #: else a model may write space until its limit
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  #: variables that hold the token of a Ray cluster, or name its file
TOKEN_FILE = Path("~/.ray/auth_token")  #: where Ray looks for it else


def server_of(config: ServedByVLLM, model: AskedModel, limits: Limits) -> Server:
    """Return a server that serves a model and takes no weights, to be started. Raises GymError for a Ray without a token."""
    options = {
        "--logprobs-mode": "raw_logprobs",
        "--max-logprobs": str(max(1, limits.max_logprobs)),
        "--max-num-seqs": str(limits.max_batch),
        "--max-model-len": str(model.context),
        "--served-model-name": model.source.name,
        "--structured-outputs-config": json.dumps(COMPACT),
    }
    if config.replicas > 1:
        options["--data-parallel-size"] = str(config.replicas)
    flags: list[str] = []
    if model.adapters:
        options |= {"--max-lora-rank": str(config.max_lora_rank), "--max-loras": str(min(8, len(model.adapters)))}
        named = [f"{model.name(name)}={path.resolve()}" for name, path in model.adapters.items()]
        flags = ["--enable-lora", "--lora-modules", *named]
    environment: dict[str, str] = {}
    if config.ray:
        options["--distributed-executor-backend"] = "ray"
        if config.replicas > 1:
            options["--data-parallel-backend"] = "ray"
        environment = _of_cluster(config.ray)
    return Server(config, model.path, Path(config.log), options, flags, environment, "engine")


def _of_cluster(address: str) -> dict[str, str]:
    """Return the environment of whoever joins a cluster: whoever reaches one without a token runs code on it (CVE-2023-48022)."""
    if not any(os.environ.get(name) for name in TOKENS) and not expanded(TOKEN_FILE).is_file():
        raise GymError(
            "there is no token for the Ray cluster, and one that asks for none runs anybody's code",
            key="engine.ray",
            fix="start it with RAY_AUTH_MODE=token (`ray get-auth-token --generate`), and set RAY_AUTH_TOKEN_PATH here",
        )
    return {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token"}
