"""Dynamic sampling: groups whose completions are all as right teach nothing, so other prompts are asked in their place.

Completions are told apart by the rewards that look at what they say, or by one that is named: a punishment of length alone does
not make a prompt worth learning from. DAPO, arXiv:2503.14476, section 3.2. Everything here follows from rewards that every
process knows, so all of them decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from typing import cast

import torch
from torch import Tensor

from gym_rl.config.base import PolicyGradient
from gym_rl.rollouts.experience import OF_ANSWERS, RAGGED, Experience
from gym_rl.rollouts.metrics import rollout_metrics
from gym_rl.rollouts.routing_replay import concatenate_prompt_experts


@dataclass(frozen=True)
class DynamicSample:
    """What became of the prompts of a round."""

    experience: Experience  #: as many groups as were wanted
    metrics: dict[str, float]
    """Of all that was asked, which says how good the policy is; what is trained on is a selection."""
    carried_over: tuple[Experience, ...] = ()  #: groups too many, for the next round


def dynamic_sample(
    number: int, wanted: int, attempts: int, carried_over: Sequence[Experience], ask: Callable[[int], Experience]
) -> DynamicSample:
    """Return groups whose completions can be told apart for round `number`: those carried over, then of prompts that are asked
    now.

    Each attempt asks as many prompts as are likely to give what is missing. Where the attempts are used up, the
    other groups make up the number; `in_loss` leaves them out.

    Args:
        number: of the round.
        wanted: groups.
        attempts: how often prompts may be asked, at least once.
        carried_over: groups too many of the round before.
        ask: samples completions of so many of the next prompts.

    """
    asked: list[Experience] = []
    have, tried, kept = sum(map(group_count, carried_over)), 0, 0
    while have + kept < wanted and len(asked) < attempts:
        missing = wanted - have - kept
        asked.append(ask(min(wanted, ceil(missing * tried / max(kept, 1))) if tried else missing))
        tried, kept = tried + group_count(asked[-1]), kept + int(asked[-1].informative.sum())
    useful = concatenate([*carried_over, *(select_groups(each, each.informative) for each in asked)])
    equal = [select_groups(each, ~each.informative) for each in asked]
    everything = concatenate([useful, *equal])
    first = torch.arange(group_count(everything)) < wanted
    left = select_groups(useful, ~first[: group_count(useful)])
    said = {
        "dynamic_sampling/num_prompts": float(tried),
        "dynamic_sampling/frac_filled": max(0, wanted - group_count(useful)) / wanted,
    }
    if tried:
        said["dynamic_sampling/frac_dropped"] = 1 - kept / tried
    return DynamicSample(
        replace(select_groups(everything, first), number=torch.tensor(number)),
        said | (rollout_metrics(concatenate(asked)) if asked else {}),
        (left,) if group_count(left) else (),
    )


def in_loss(experience: Experience, config: PolicyGradient) -> Tensor:
    """Return which completions are trained on, `[completions]` bool: not those without a reward, nor, where asked for, those cut
    off and those of groups whose completions cannot be told apart.
    """
    chosen = ~experience.rewards.isnan()
    if config.mask_truncated_completions:
        chosen &= experience.finished
    if config.max_resample:
        chosen &= experience.informative[experience.groups]
    return chosen


def group_count(experience: Experience) -> int:
    """Return the number of groups."""
    return int(experience.groups[-1]) + 1 if len(experience.groups) else 0


def select_groups(experience: Experience, groups: Tensor) -> Experience:
    """Return a round of the groups that `groups` `[groups]`, bool, says."""
    answers = groups[experience.groups]
    tokens = answers[experience.owner]
    return replace(
        experience,
        groups=torch.unique_consecutive(experience.groups[answers], return_inverse=True)[1],
        prompts=experience.prompts[answers],
        lengths=experience.lengths[answers],
        tokens=experience.tokens[tokens],
        finished=experience.finished[answers],
        stopped=None if experience.stopped is None else experience.stopped[answers],
        rewards=experience.rewards[answers],
        compared=None if experience.compared is None else experience.compared[answers],
        baselines=None if experience.baselines is None else experience.baselines[answers],
        **{table: {name: said[answers] for name, said in getattr(experience, table).items()} for table in OF_ANSWERS},
        columns={name: column[tokens] for name, column in experience.columns.items()},
        **{
            name: ragged[tokens.repeat_interleave(experience.columns[size])]
            for name, size in RAGGED.items()
            if (ragged := getattr(experience, name)) is not None
        },
        prompt_experts=None if experience.prompt_experts is None else experience.prompt_experts[groups],
    )


def concatenate(rounds: Sequence[Experience]) -> Experience:
    """Return the groups of several rounds as one."""
    first = rounds[0]
    lengths = [len(each.lengths) for each in rounds]
    before = [sum(map(group_count, rounds[:place])) for place in range(len(rounds))]
    return replace(
        first,
        groups=torch.cat([each.groups + start for each, start in zip(rounds, before, strict=True)]),
        prompts=torch.cat([each.prompts for each in rounds]),
        lengths=torch.cat([each.lengths for each in rounds]),
        tokens=torch.cat([each.tokens for each in rounds]),
        finished=torch.cat([each.finished for each in rounds]),
        stopped=None if first.stopped is None else torch.cat([cast(Tensor, each.stopped) for each in rounds]),
        rewards=torch.cat([each.rewards for each in rounds]),
        compared=None if first.compared is None else torch.cat([cast(Tensor, each.compared) for each in rounds]),
        baselines=None if first.baselines is None else torch.cat([cast(Tensor, each.baselines) for each in rounds]),
        **{table: _below([getattr(each, table) for each in rounds], lengths) for table in OF_ANSWERS},
        columns={name: torch.cat([each.columns[name] for each in rounds]) for name in first.columns},
        **{
            name: torch.cat([getattr(each, name) for each in rounds])
            for name in RAGGED
            if getattr(first, name) is not None
        },
        prompt_experts=concatenate_prompt_experts([each.prompt_experts for each in rounds]),
    )


def _below(tables: Sequence[Mapping[str, Tensor]], lengths: Sequence[int]) -> dict[str, Tensor]:
    """Join tables of completions; what only some of them have is unknown of the others."""
    kinds = {name: column.dtype for table in tables for name, column in table.items()}

    def unknown(name: str, length: int) -> Tensor:
        return torch.full((length,), False if kinds[name] == torch.bool else nan, dtype=kinds[name])

    pairs = list(zip(tables, lengths, strict=True))
    return {name: torch.cat([table.get(name, unknown(name, many)) for table, many in pairs]) for name in sorted(kinds)}
