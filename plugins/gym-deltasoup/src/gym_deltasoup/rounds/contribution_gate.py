"""The gate: contributions that cannot be merged, are copies of others, or are worse than the base, take no part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

from torch import Tensor

from gym_core import GymError
from gym_core.files import remove
from gym_deltasoup.artifact_merge import merge_artifacts
from gym_deltasoup.config.dense import UniformSoup
from gym_deltasoup.kinds import Merger
from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.rounds.checks import form
from gym_deltasoup.rounds.community import Community
from gym_deltasoup.rounds.contribution_store import FILES
from gym_deltasoup.rounds.model_scores import UNKNOWN, Scores, of_base, scored
from gym_deltasoup.rounds.replay_detection import Earlier, seed_of
from gym_deltasoup.rounds.update_statistics import beside
from gym_deltasoup.sources.inputs import Input

NOTHING = 1e-6  #: norm of a change that is none, in medians of the norms; with privacy, in `privacy_clip`


@dataclass(frozen=True)
class Gated:
    """What is merged, and what is not."""

    inputs: list[Input]  #: in the order of acceptance
    refused: dict[str, str] = field(default_factory=dict)  #: by member: why
    norms: dict[str, float] = field(default_factory=dict)  #: of changes, by member
    scores: dict[str, Scores] = field(default_factory=dict)  #: by member
    quality: dict[str, float] | None = None  #: share of the base's score, at most 1; None where nothing is evaluated
    before: Scores = UNKNOWN  #: of the base
    sketches: dict[str, Tensor] = field(default_factory=dict)  #: of changes, by member


def usable(community: Community, given: Sequence[Contribution], folder: Path) -> Gated:
    """Lay contributions out as directories. Those of another form than most can be merged with nobody, and are refused."""
    forms, refused, found = {}, {}, {}
    for each in given:
        try:
            artifact = community.contents.laid_out(each, community.base, folder / each.member)
        except GymError as error:
            refused[each.member] = error.problems[0].why
            continue
        found[each.member] = Input(artifact.path, each.member)
        forms[each.member] = form(artifact.path / FILES[each.kind], each.kind, community.base)
    if forms:
        most = Counter(forms.values()).most_common(1)[0][0]  # of several as common: that which came first
        why = "it changes other layers than most, or in another number format"
        refused |= {name: why for name, each in forms.items() if each != most}
    return Gated([each for name, each in found.items() if name not in refused], refused)


class Gate:
    """Compares contributions with each other, and with what the base can do."""

    def __init__(self, community: Community, work: Path, earlier: Earlier) -> None:
        """Write into `work` what is evaluated."""
        self.community, self.work, self.earlier = community, work, earlier
        self._numbers = count()

    def judged(self, given: Gated) -> Gated:
        """Refuse copies of others, also of earlier rounds, changes of nothing, and what is worse than the base.

        Raises GymError where the base is worth nothing.
        """
        config, base = self.community.config, self.community.base
        refused = dict(given.refused)
        if not given.inputs:
            return given
        seen = beside(given.inputs, base.path, self.work / "seen", seed_of(self.community.ledger))
        names = [each.name for each in given.inputs]
        norms = dict(zip(names, seen.norms.tolist(), strict=True))
        sketches = dict(zip(names, seen.sketches, strict=True))
        private = config.differential_privacy  # then nothing of one contribution may decide about another
        least = NOTHING * (config.privacy_clip if private else float(seen.norms.median()))
        again = self.earlier.copied(names, seen.sketches, config.duplicate_cosine)
        kept: list[int] = []
        for row, each in enumerate(given.inputs):
            copied = next((at for at in kept if float(seen.cosines[row, at]) >= config.duplicate_cosine), None)
            if norms[each.name] <= least:
                refused[each.name] = "it changes nothing"
            elif each.name in again:
                refused[each.name] = again[each.name]
            elif copied is not None and not private:
                refused[each.name] = f"it is a copy of what {given.inputs[copied].name} contributed"
            else:
                kept.append(row)
        inputs = [given.inputs[row] for row in kept]
        if self.community.evaluate is None and self.community.safety is None:
            return Gated(inputs, refused, norms, sketches=sketches)
        before = self.base_scores
        scores = {each.name: self._of_merge([each], UniformSoup(), 0, safety=True) for each in inputs}
        quality = {}
        for name, found in scores.items():
            kept_share = self._share(found)
            if math.isnan(kept_share):
                refused[name] = "its quality is no number: it is broken, or breaks what evaluates it"
            elif not kept_share >= config.quality_threshold:
                refused[name] = f"quality {kept_share:.3g} is below {config.quality_threshold:g} of that of the base"
            elif found.unsafe(before, config.safety_threshold):
                refused[name] = (
                    f"safety {found.safety:.4g} is below {config.safety_threshold:g} of {before.safety:.4g}, the base's"
                )
            else:
                quality[name] = min(1.0, kept_share)
        passed = [each for each in inputs if each.name not in refused]
        return Gated(passed, refused, norms, scores, None if before.quality is None else quality, before, sketches)

    @cached_property
    def base_scores(self) -> Scores:
        """What is said of the base. Raises GymError where it is no better than `quality_floor`."""
        found = of_base(self.community)
        if found.quality is not None and not found.quality > self.community.config.quality_floor:
            why = f"the base scores {found.quality:.4g}, which is no more than that of a model that knows nothing"
            raise GymError(why, key="quality_floor", fix="lower it, or evaluate what the base can do")
        return found

    def _share(self, found: Scores) -> float:
        """Return the share of the quality of the base, counted from the floor; 1 where nothing is evaluated."""
        before, floor = self.base_scores.quality, self.community.config.quality_floor
        return 1.0 if found.quality is None or before is None else (found.quality - floor) / (before - floor)

    def value(
        self, inputs: Mapping[str, Input], merger: Merger, wanted: int
    ) -> Callable[[frozenset[str]], float] | None:
        """Return how good what a coalition makes is: what rewards ask. None where nothing is evaluated.

        A coalition of fewer than the merger takes makes nothing: the base.
        """
        if self.community.evaluate is None:
            return None

        def worth(members: frozenset[str]) -> float:
            hostile = min(wanted, merger.tolerates(len(members)))
            some = [inputs[name] for name in sorted(members)]
            found = self._of_merge(some, merger, hostile).quality if len(some) >= merger.least_inputs else None
            before = self.base_scores.quality
            assert before is not None, "asked where something is evaluated"
            return found if found is not None and math.isfinite(found) else before

        return worth

    def _of_merge(self, inputs: Sequence[Input], merger: Merger, hostile: int, safety: bool = False) -> Scores:
        """Return what is said of what these make together, as a model that anybody could open."""
        place = self.work / f"candidate-{next(self._numbers)}"
        asked = self.community.evaluate if merger.needs_evaluation else None
        base, rank = self.community.base.name, self.community.config.rank
        made = merge_artifacts(merger, inputs, place, base=base, hostile=hostile, evaluate=asked, rank=rank)
        try:
            return scored(self.community, made.artifact, safety)
        finally:
            remove(place)
