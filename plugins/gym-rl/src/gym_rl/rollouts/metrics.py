"""What is logged of a round with each of its steps."""

from __future__ import annotations

from statistics import fmean

import torch

from gym_rl.environment import CALLS, FAILED_CALLS
from gym_rl.formulas.kl import k3
from gym_rl.rollouts.experience import Experience


def rollout_metrics(experience: Experience) -> dict[str, float]:
    """Return rewards, groups that teach nothing, lengths, entropy, and what a reference or a critic says where there is one.

    Of what no reward judged there is no reward: 0 would be one.
    """
    rewards = experience.rewards
    judged = rewards[~rewards.isnan()]
    means = {f"rewards/{name}/mean": scores for name, scores in experience.scores.items()}
    known = {name: scores[~scores.isnan()] for name, scores in experience.scores.items()}
    means |= {f"rewards/{name}": logged for name, logged in experience.metrics.items()}
    means |= {} if experience.baselines is None else {"reward_baseline": experience.baselines}
    each = {name: fmean(said) for name, values in means.items() if (said := values[~values.isnan()].tolist())}
    failures = {f"rewards/{name}/failures": float(where.sum()) for name, where in experience.failed.items()}
    return {
        **({"reward": float(judged.mean())} if len(judged) else {}),
        **({"reward_std": float(judged.std())} if len(judged) > 1 else {}),
        **each,
        **{f"rewards/{name}/std": float(scores.std()) for name, scores in known.items() if len(scores) > 1},
        **failures,
        **_groups(experience),
        **_lengths(experience),
        **_turns(experience),
        **_environment(experience),
        "completions/clipped_ratio": 1 - float(experience.finished.double().mean()),
        # What is drawn from a distribution is as surprising on average as its entropy says.
        "entropy": -float(experience.columns["sampling_log_probs"].double().mean()),
        **({"kl": _kl(experience)} if "ref_log_probs" in experience.columns else {}),
        **({"explained_variance": _explained(experience)} if "returns" in experience.columns else {}),
    }


def _groups(experience: Experience) -> dict[str, float]:
    """Return the share of groups that cannot be compared; nothing where no group has a second completion to compare."""
    alike = float((~experience.nonzero_std).double().mean())
    return {"frac_reward_zero_std": alike} if len(experience.nonzero_std) < len(experience.groups) else {}


def _lengths(experience: Experience) -> dict[str, float]:
    """Return the mean length of completions and the bounds, of all, and of those that ended by themselves where any did."""
    sizes, ended = experience.lengths.double(), experience.finished
    among = {"": sizes, "terminated_": sizes[ended]}
    return {
        f"completions/{name}_{which}length": float(of(some))
        for which, some in among.items()
        if len(some)
        for name, of in {"mean": torch.mean, "min": torch.min, "max": torch.max}.items()
    }


def _turns(experience: Experience) -> dict[str, float]:
    """Return the mean number of turns of the model, and of tokens that an environment showed it; nothing without one."""
    if experience.observations is None:
        return {}
    count, sizes = len(experience.lengths), experience.columns["observation_size"]
    turns = count + int((sizes > 0).sum())
    return {"num_turns/mean": turns / count, "completions/mean_observation_length": int(sizes.sum()) / count}


def _environment(experience: Experience) -> dict[str, float]:
    """Return the means of what an environment had logged, and how often tools are called, and fail where they are."""
    logged = {name: values[~values.isnan()] for name, values in experience.environment.items()}
    calls, failed = (float(logged.pop(name, torch.zeros(0)).sum()) for name in (CALLS, FAILED_CALLS))
    count = len(experience.lengths)
    tools = {"tools/call_frequency": calls / count, "tools/failure_frequency": failed / calls if calls else 0.0}
    return {
        **(tools if CALLS in experience.environment else {}),
        **{f"environment/{name}": float(values.mean()) for name, values in logged.items() if len(values)},
    }


def _kl(experience: Experience) -> float:
    """Return the mean KL to the reference of a token, by k3, which is unbiased and never negative."""
    sampled = experience.columns["sampling_log_probs"]
    return float(
        k3(experience.columns.get("old_log_probs", sampled), experience.columns["ref_log_probs"], sampled)
        .double()
        .mean()
    )


def _explained(experience: Experience) -> float:
    """Return the share of the variance of returns that the critic's values explain: 1 all of it, 0 no more than a constant."""
    returns = experience.columns["returns"].double()
    judged = ~returns.isnan()
    if judged.sum() < 2:
        return 0.0
    left, spread = (returns - experience.columns["values"])[judged].var(), returns[judged].var()
    return float(1 - left / spread) if spread > 0 else 0.0
