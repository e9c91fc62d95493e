"""What is logged of a round with each of its steps."""

from __future__ import annotations

from statistics import fmean

from gym_rl.formulas.kl import k3
from gym_rl.rollouts.experience import Round


def health(round_: Round) -> dict[str, float]:
    """Return rewards, groups that teach nothing, lengths, entropy, and what a reference or a critic says where there is one."""
    rewards = round_.rewards
    judged = rewards[~rewards.isnan()]
    means = {f"rewards/{name}/mean": scores for name, scores in round_.scores.items()}
    means |= {f"rewards/{name}": logged for name, logged in round_.metrics.items()}
    each = {name: fmean(said) for name, values in means.items() if (said := values[~values.isnan()].tolist())}
    failures = {f"rewards/{name}/failures": float(where.sum()) for name, where in round_.failed.items()}
    return {
        "reward": float(judged.mean()) if len(judged) else 0.0,
        "reward_std": float(judged.std()) if len(judged) > 1 else 0.0,
        **each,
        **failures,
        "frac_reward_zero_std": 1 - float(round_.varied.double().mean()),
        "completions/mean_length": float(round_.lengths.double().mean()),
        "completions/clipped_ratio": 1 - float(round_.finished.double().mean()),
        # What is drawn from a distribution is as surprising on average as its entropy says.
        "entropy": -float(round_.columns["sampled"].double().mean()),
        **({"kl": _kl(round_)} if "reference" in round_.columns else {}),
        **({"explained_variance": _explained(round_)} if "returns" in round_.columns else {}),
    }


def _kl(round_: Round) -> float:
    """Return the mean KL to the reference of a token, by k3, which is unbiased and never negative."""
    sampled = round_.columns["sampled"]
    return float(k3(round_.columns.get("old", sampled), round_.columns["reference"], sampled).double().mean())


def _explained(round_: Round) -> float:
    """Return the share of the variance of returns that the critic's values explain: 1 all of it, 0 no more than a constant."""
    returns = round_.columns["returns"].double()
    judged = ~returns.isnan()
    if judged.sum() < 2:
        return 0.0
    left, spread = (returns - round_.columns["values"])[judged].var(), returns[judged].var()
    return float(1 - left / spread) if spread > 0 else 0.0
