"""The keys of GRPO and GDPO: `trl` and `vllm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gym_axolotl.table import Keys
from gym_dialect import Key
from gym_dialect.convert import only

_OF = "grpo gdpo"
_ANY = "0.0.0.0"  # noqa: S104 (where a server listens; nothing does here)
_AGGREGATED = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}


def rewards(functions: Any, **more: Any) -> list[dict[str, Any]]:
    """Return functions as rewards: `module.function` of a file beside the recipe, or of a package."""
    names = [functions] if isinstance(functions, str) else list(functions)
    weights = list(more.get("trl.reward_weights") or [1.0] * len(names))
    if len(weights) != len(names):
        raise ValueError(f"are {len(names)}, and `trl.reward_weights` {len(weights)}")
    return [_reward(str(name), float(weight)) for name, weight in zip(names, weights, strict=True)]


def _reward(name: str, weight: float) -> dict[str, Any]:
    module, _, function = name.rpartition(".")
    if not module or "/" in name:  # a model, whose name may hold a dot
        return {"name": "model", "path": name, "weight": weight}
    place = f"{Path(*module.split('.')).with_suffix('.py')}:{function}"
    return {"name": "python", "function": place, "conversational": True, "weight": weight}


def engine(on: Any, **more: Any) -> dict[str, Any] | None:
    """Return what answers: a server of vLLM, or vLLM in the process of training; None for the model itself."""
    if not on:
        return None
    if more.get("trl.vllm_mode") == "colocate":
        return {"name": "vllm-colocated"}
    host, port = more.get("trl.vllm_server_host"), more.get("trl.vllm_server_port") or 8000
    return {"name": "vllm", "url": f"http://{host if host and host != _ANY else '127.0.0.1'}:{port}"}


class ReinforcementKeys(Keys):
    """Keys of learning from rewards."""

    keys = (
        Key("trl.reward_funcs", "algorithm.rewards", _OF, rewards, together="trl.reward_weights"),
        Key("trl.num_generations", "algorithm.group_size", _OF),
        Key("trl.max_completion_length", "algorithm.max_new_tokens", _OF),
        Key("trl.temperature", "algorithm.temperature", _OF, float),
        Key("trl.top_p", "algorithm.top_p", _OF, float),
        Key("trl.top_k", "algorithm.top_k", _OF),
        Key("trl.min_p", "algorithm.min_p", _OF, float),
        Key("trl.num_iterations", "algorithm.num_iterations", _OF),
        Key("trl.epsilon", "algorithm.epsilon", _OF, float),
        Key("trl.epsilon_high", "algorithm.epsilon_high", _OF, float),
        Key("trl.loss_type", "algorithm.loss_agg_mode", _OF, _AGGREGATED, "dapo"),
        Key("trl.scale_rewards", "algorithm.scale_rewards", "grpo"),
        Key("trl.scale_rewards", "algorithm.beta", "gdpo", {True: None}),
        Key("trl.multi_objective_aggregation", "algorithm.beta", "gdpo", {"normalize_then_sum": None}),
        Key("trl.mask_truncated_completions", "algorithm.mask_truncated_completions", _OF),
        Key("trl.repetition_penalty", "algorithm.temperature", _OF, only(1, 1.0)),
        Key("trl.importance_sampling_level", "algorithm.loss_agg_mode", _OF, {"token": None}),
        Key("trl.off_policy_mask_threshold", "algorithm.off_policy_mask_threshold", _OF, float),
        Key("trl.sync_ref_model", "algorithm.ref_model_sync_steps", _OF, {False: None}),
        Key("trl.log_completions", "algorithm.log_completions", _OF, {True: 1, False: 0}),
        Key(
            "trl.use_vllm",
            "algorithm.rollouts",
            _OF,
            engine,
            together="trl.vllm_mode trl.vllm_server_host trl.vllm_server_port",
        ),
    )
