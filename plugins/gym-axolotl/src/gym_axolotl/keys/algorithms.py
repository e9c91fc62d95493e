"""`rl`, reward models, and the keys of preference learning."""

from __future__ import annotations

from typing import Any

from gym_axolotl.table import Keys
from gym_dialect import Choice, Key
from gym_dialect.convert import only

_REFERENCED = "dpo ipo kto cdpo hinge robust_dpo exo nca bco_pair sppo apo_zero apo_down discopop"
_PREFERENCE = f"{_REFERENCED} orpo"
_BETA = f"{_PREFERENCE} grpo gdpo"


def beta(value: Any, rl_beta: Any = None) -> Any:
    """Return `trl.beta`. Raises ValueError where `rl_beta` says another."""
    if rl_beta is not None and float(rl_beta) != float(value):
        raise ValueError(f"is {value}, and `rl_beta` {rl_beta}: give one")
    return float(value)


def unless_trl(value: Any, **more: Any) -> float | None:
    """Return the value of `rl_beta` or `orpo_alpha`; None where a key that outweighs it says it."""
    return None if any(each is not None for each in more.values()) else float(value)


def loss(told: Any) -> str:
    """Return the loss that a list of one names. Raises ValueError for several, which are weighed."""
    names = told if isinstance(told, list) else [told]
    if len(names) > 1:
        raise ValueError("several losses are one algorithm here: `algorithm: {name: mpo, loss_weights: {dpo: 1, ...}}`")
    return "" if names in ([], ["sigmoid"]) else str(names[0])


class AlgorithmKeys(Keys):
    """Keys that say how training learns."""

    choices = (
        Choice(
            "rl",
            "algorithm",
            {
                "dpo": "dpo",
                "ipo": "ipo",
                "kto": "kto",
                "orpo": "orpo",
                "simpo": "simpo",
                "grpo": "grpo",
                "gdpo": "gdpo",
            },
            default="sft",
            yields={"dpo": "dpo_label_smoothing dpo_loss_type"},
        ),
        Choice("reward_model", "algorithm", {"true": "reward_model"}),
        Choice("process_reward_model", "algorithm", {"true": "process_reward_model"}),
        Choice("use_eaft", "algorithm", {"true": "eaft"}),
        Choice("dpo_label_smoothing", "algorithm", {"*": "cdpo", "false": ""}),
        Choice(
            "dpo_loss_type",
            "algorithm",
            {
                "apo_down": "apo_down",
                "apo_zero": "apo_zero",
                "bco_pair": "bco_pair",
                "discopop": "discopop",
                "exo_pair": "exo",
                "hinge": "hinge",
                "ipo": "ipo",
                "nca_pair": "nca",
                "robust": "robust_dpo",
                "sppo_hard": "sppo",
            },
            read=loss,
        ),
    )
    keys = (
        Key("trl.beta", "algorithm.beta", f"{_BETA} simpo", beta, together="rl_beta"),
        Key("rl_beta", "algorithm.beta", _BETA, unless_trl, together="trl.beta"),
        Key("rl_beta", "algorithm.beta", "simpo", unless_trl, 0.1, together="trl.beta"),
        Key("orpo_alpha", "algorithm.beta", "orpo", unless_trl, together="trl.beta rl_beta"),
        Key("dpo_label_smoothing", "algorithm.label_smoothing", "cdpo robust_dpo", float),
        Key("rpo_alpha", "algorithm.ftx", _REFERENCED, float),
        Key("cpo_alpha", "algorithm.ftx", "simpo", float, 1.0),
        Key("simpo_gamma", "algorithm.simpo_gamma", "simpo", float, 0.5),
        Key("kto_desirable_weight", "algorithm.desirable_weight", "kto", float),
        Key("kto_undesirable_weight", "algorithm.undesirable_weight", "kto", float),
        Key("precompute_ref_log_probs", "algorithm.precompute_ref_log_probs", _REFERENCED),
        Key("trl.sync_ref_model", "algorithm.ref_model_sync_steps", _REFERENCED, {False: None}),
        Key("center_rewards_coefficient", "algorithm.center_rewards_coefficient", "reward_model", float),
        Key("eaft_alpha", "algorithm.alpha", "eaft", float),
        Key("eaft_k", "algorithm.alpha", "eaft", only(20)),
    )
