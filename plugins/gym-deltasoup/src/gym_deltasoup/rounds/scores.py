"""What is said of models: how good they are and how safe, by functions that contributors do not see."""

from __future__ import annotations

from dataclasses import dataclass

from gym_core import Artifact
from gym_deltasoup.rounds.community import Community


@dataclass(frozen=True)
class Scores:
    """What is said of a model, higher being better; None where nobody says it."""

    quality: float | None = None
    safety: float | None = None

    def worse(self, before: Scores, keep: float) -> str:
        """Return in what it is worse than the base, of whose safety it has to `keep` a share; nothing where it is not."""
        if self.quality is not None and before.quality is not None and not self.quality >= before.quality:  # or NaN
            return "scores below the base"
        return "is less safe than the base" if self.unsafe(before, keep) else ""

    def unsafe(self, before: Scores, keep: float) -> bool:
        """Return whether it keeps too little of the safety of the base."""
        if self.safety is None or before.safety is None:
            return False
        return not self.safety >= before.safety - (1 - keep) * abs(before.safety)  # NaN is unsafe


UNKNOWN = Scores()


def scored(community: Community, artifact: Artifact, safety: bool = True) -> Scores:
    """Return what is said of a model."""
    evaluate, safe = community.evaluate, community.safety
    return Scores(
        None if evaluate is None else float(evaluate(artifact)),
        None if safe is None or not safety else float(safe(artifact)),
    )


def of_base(community: Community) -> Scores:
    """Return what is said of the base."""
    base = community.base
    return scored(community, Artifact(base.path, details={"base": base.name, "base_fingerprint": base.fingerprint}))
