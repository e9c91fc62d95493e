"""Dynamic sampling: groups whose answers are all as right teach nothing, so other prompts are asked in their place.

Answers are told apart by the rewards that look at what they say, or by one that is named: a punishment of length alone does not
make a prompt worth learning from. DAPO, arXiv:2503.14476, section 3.2. Everything here follows from rewards that every process
knows, so all of them decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from typing import cast

import torch
from torch import Tensor

from gym_rl.config import PolicyGradient
from gym_rl.rollouts.experience import OF_ANSWERS, Round
from gym_rl.rollouts.metrics import health
from gym_rl.rollouts.routing_replay import joined as joined_experts


@dataclass(frozen=True)
class Drawn:
    """What became of the prompts of a round."""

    round: Round  #: as many groups as were wanted
    health: dict[
        str, float
    ]  #: of all that was asked, which says how good the policy is; what is learnt from is a selection
    carried: tuple[Round, ...] = ()  #: groups too many, for the next round


def draw(number: int, wanted: int, attempts: int, carried: Sequence[Round], ask: Callable[[int], Round]) -> Drawn:
    """Return groups whose answers can be told apart for round `number`: those carried over, then of prompts that are asked now.

    Each attempt asks as many prompts as are likely to give what is missing. Where the attempts are used up, the
    other groups make up the number; `learnt` leaves them out.

    Args:
        number: of the round.
        wanted: groups.
        attempts: how often prompts may be asked, at least once.
        carried: groups too many of the round before.
        ask: answers so many of the next prompts.

    """
    asked: list[Round] = []
    have, tried, kept = sum(map(groups_of, carried)), 0, 0
    while have + kept < wanted and len(asked) < attempts:
        missing = wanted - have - kept
        asked.append(ask(min(wanted, ceil(missing * tried / max(kept, 1))) if tried else missing))
        tried, kept = tried + groups_of(asked[-1]), kept + int(asked[-1].told_apart.sum())
    useful = joined([*carried, *(only(each, each.told_apart) for each in asked)])
    equal = [only(each, ~each.told_apart) for each in asked]
    everything = joined([useful, *equal])
    first = torch.arange(groups_of(everything)) < wanted
    left = only(useful, ~first[: groups_of(useful)])
    said = {
        "dynamic_sampling/num_prompts": float(tried),
        "dynamic_sampling/frac_filled": max(0, wanted - groups_of(useful)) / wanted,
    }
    if tried:
        said["dynamic_sampling/frac_dropped"] = 1 - kept / tried
    return Drawn(
        replace(only(everything, first), number=torch.tensor(number)),
        said | (health(joined(asked)) if asked else {}),
        (left,) if groups_of(left) else (),
    )


def learnt(round_: Round, config: PolicyGradient) -> Tensor:
    """Return which answers are learnt from, `[answers]` bool: not those that nothing judged, nor, where asked for, those cut
    off and those of groups whose answers cannot be told apart.
    """
    chosen = ~round_.rewards.isnan()
    if config.mask_truncated_completions:
        chosen &= round_.finished
    if config.max_resample:
        chosen &= round_.told_apart[round_.groups]
    return chosen


def groups_of(round_: Round) -> int:
    """Return the number of groups."""
    return int(round_.groups[-1]) + 1 if len(round_.groups) else 0


def only(round_: Round, groups: Tensor) -> Round:
    """Return a round of the groups that `groups` `[groups]`, bool, says."""
    answers = groups[round_.groups]
    tokens = answers[round_.owner]
    return replace(
        round_,
        groups=torch.unique_consecutive(round_.groups[answers], return_inverse=True)[1],
        prompts=round_.prompts[answers],
        lengths=round_.lengths[answers],
        tokens=round_.tokens[tokens],
        finished=round_.finished[answers],
        rewards=round_.rewards[answers],
        compared=None if round_.compared is None else round_.compared[answers],
        **{table: {name: said[answers] for name, said in getattr(round_, table).items()} for table in OF_ANSWERS},
        columns={name: column[tokens] for name, column in round_.columns.items()},
        kept=None if round_.kept is None else round_.kept[tokens.repeat_interleave(round_.columns["kept"])],
        prompt_experts=None if round_.prompt_experts is None else round_.prompt_experts[groups],
    )


def joined(rounds: Sequence[Round]) -> Round:
    """Return the groups of several rounds as one."""
    first = rounds[0]
    lengths = [len(each.lengths) for each in rounds]
    before = [sum(map(groups_of, rounds[:place])) for place in range(len(rounds))]
    return replace(
        first,
        groups=torch.cat([each.groups + start for each, start in zip(rounds, before, strict=True)]),
        prompts=torch.cat([each.prompts for each in rounds]),
        lengths=torch.cat([each.lengths for each in rounds]),
        tokens=torch.cat([each.tokens for each in rounds]),
        finished=torch.cat([each.finished for each in rounds]),
        rewards=torch.cat([each.rewards for each in rounds]),
        compared=None if first.compared is None else torch.cat([cast(Tensor, each.compared) for each in rounds]),
        **{table: _below([getattr(each, table) for each in rounds], lengths) for table in OF_ANSWERS},
        columns={name: torch.cat([each.columns[name] for each in rounds]) for name in first.columns},
        kept=None if first.kept is None else torch.cat([cast(Tensor, each.kept) for each in rounds]),
        prompt_experts=joined_experts([each.prompt_experts for each in rounds]),
    )


def _below(tables: Sequence[Mapping[str, Tensor]], lengths: Sequence[int]) -> dict[str, Tensor]:
    """Join tables of answers; what only some of them have is unknown of the others."""
    kinds = {name: column.dtype for table in tables for name, column in table.items()}

    def unknown(name: str, length: int) -> Tensor:
        return torch.full((length,), False if kinds[name] == torch.bool else nan, dtype=kinds[name])

    pairs = list(zip(tables, lengths, strict=True))
    return {name: torch.cat([table.get(name, unknown(name, many)) for table, many in pairs]) for name in sorted(kinds)}
