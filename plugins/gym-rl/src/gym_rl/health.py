"""What is logged of a round with each of its steps."""

from __future__ import annotations

from statistics import fmean

from gym_rl.answers import Round


def health(round_: Round) -> dict[str, float]:
    """Return rewards, groups that teach nothing, and lengths."""
    rewards = round_.rewards
    judged = rewards[~rewards.isnan()]
    spread = [float(part.max() - part.min()) for part in rewards.view(-1, int((round_.groups == 0).sum()))]
    each = {
        f"reward/{name}": fmean(said)
        for name, scores in round_.scores.items()
        if (said := scores[~scores.isnan()].tolist())
    }
    return {
        "reward": float(judged.mean()) if len(judged) else 0.0,
        "reward_std": float(judged.std()) if len(judged) > 1 else 0.0,
        **each,
        "groups_without_spread": fmean(not apart > 0 for apart in spread),
        "answer_tokens": float(round_.lengths.double().mean()),
        "answers_cut_off": 1 - float(round_.finished.double().mean()),
    }
