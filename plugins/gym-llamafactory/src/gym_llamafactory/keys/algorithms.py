"""`stage`, `pref_loss`, and the keys of preference learning and reinforcement learning."""

from __future__ import annotations

from typing import Any

from gym_dialect import Choice, Key
from gym_dialect.convert import only
from gym_llamafactory.keys.quantization import quantizer
from gym_llamafactory.keys.run import PPO_EPOCHS
from gym_llamafactory.table import Keys

_REFERENCED = (
    "dpo apo_down apo_zero bco bco_pair cdpo discopop dpo_norm exo hinge ipo kto ld_dpo mpo nca robust_dpo sppo "
    "tdpo1 tdpo2"
)
_PREFERENCE = f"{_REFERENCED} cpo orpo"
_BETA = _PREFERENCE.replace("dpo_norm ", "")
_REINFORCED = "ppo rloo grpo gspo dapo bnpo cispo dr_grpo gspo_token reinforce_pp reinforce_pp_baseline"


def _reward(path: str, reward_model_quantization_bit: int | None = None) -> list[dict[str, Any]]:
    """Return a reward model as a reward."""
    bits = reward_model_quantization_bit
    return [{"name": "model", "path": path} | ({"quantization": quantizer(bits)} if bits else {})]


def _loss(pref_loss: Any) -> str:
    """Return what replaces the loss of `stage`; nothing for `sigmoid`, which LLaMA Board writes for `dpo` and `kto` alike."""
    told = str(pref_loss).lower()
    return "" if told == "sigmoid" else told


class AlgorithmKeys(Keys):
    """Keys that say how training learns."""

    choices = (
        Choice(
            "stage",
            "algorithm",
            {
                "sft": "sft",
                "pt": "pretrain",
                "dpo": "dpo",
                "kto": "kto",
                "rm": "reward_model",
                "ppo": "ppo",
                "rloo": "rloo",
                "grpo": "grpo",
                "dapo": "dapo",
                "gspo": "gspo",
            },
            default="sft",
            yields={
                "dpo": "dpo_label_smoothing ld_alpha pref_loss",
                "sft": "use_dft_loss use_eaft_loss use_asft_loss",
            },
        ),
        Choice(
            "pref_loss",
            "algorithm",
            {
                "sigmoid": "dpo",
                "hinge": "hinge",
                "ipo": "ipo",
                "kto_pair": "kto",
                "orpo": "orpo",
                "simpo": "simpo",
            },
            read=_loss,
        ),
        Choice("use_dft_loss", "algorithm", {"true": "dft"}),
        Choice("use_eaft_loss", "algorithm", {"true": "eaft"}),
        Choice("use_asft_loss", "algorithm", {"true": "asft"}),
        Choice("dpo_label_smoothing", "algorithm", {"*": "cdpo", "false": ""}),
        Choice("ld_alpha", "algorithm", {"*": "ld_dpo"}),
    )
    keys = (
        Key("compute_accuracy", "algorithm.compute_accuracy", "sft dft eaft asft"),
        Key("pref_beta", "algorithm.beta", _BETA),
        Key("pref_beta", "algorithm.beta", "dpo_norm simpo", default=0.1),
        Key("pref_ftx", "algorithm.ftx", f"{_PREFERENCE} simpo"),
        Key("ref_model", "algorithm.ref_model", f"{_REFERENCED} asft"),
        Key("dpo_label_smoothing", "algorithm.label_smoothing", "cdpo", float),
        Key("label_smoothing_factor", "algorithm.label_smoothing", "sft pretrain", float),
        Key("ld_alpha", "algorithm.ld_alpha", "ld_dpo"),
        Key("eaft_alpha", "algorithm.alpha", "eaft"),
        Key("asft_alpha", "algorithm.alpha", "asft"),
        Key("simpo_gamma", "algorithm.simpo_gamma", "simpo", default=0.5),
        Key("kto_chosen_weight", "algorithm.desirable_weight", "kto"),
        Key("kto_rejected_weight", "algorithm.undesirable_weight", "kto"),
        Key("top_k", "algorithm.top_k", "ppo", int, 50),
        Key("do_sample", "algorithm.temperature", "ppo", only(True)),
        Key("num_beams", "algorithm.temperature", "ppo", only(1)),
        Key("repetition_penalty", "algorithm.temperature", "ppo", only(1.0)),
        Key("max_new_tokens", "algorithm.max_new_tokens", "ppo", int, 1024),
        Key("temperature", "algorithm.temperature", "ppo", float, 0.95),
        Key("top_p", "algorithm.top_p", "ppo", float, 0.7),
        Key("ppo_buffer_size", "algorithm.num_mini_batches", "ppo", int, 1),
        Key("ppo_epochs", "algorithm.num_iterations", "ppo", int, PPO_EPOCHS),
        Key("ppo_score_norm", "algorithm.beta", "ppo", only(False)),
        Key("ppo_whiten_rewards", "algorithm.beta", "ppo", only(False)),
        Key("ppo_target", "algorithm.kl_target", "ppo", float, 6.0, unless="beta"),
        Key("", "algorithm.beta", "ppo", default=0.2),
        Key("", "algorithm.vf_coef", "ppo", default=0.1),
        Key("reward_model", "algorithm.rewards", _REINFORCED, _reward, together="reward_model_quantization_bit"),
    )
