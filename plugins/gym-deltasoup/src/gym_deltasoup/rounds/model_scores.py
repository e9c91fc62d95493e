"""What is said of models: how good they are and how safe, by functions that contributors do not see."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import nan

from gym_core import Artifact
from gym_core.errors import printable
from gym_deltasoup.rounds.community import Community, Evaluate

_log = logging.getLogger(__name__)


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
    """Return what is said of a model; NaN where it breaks what evaluates it.

    Raises what that raises where it fails with the base as well: then it is not the model's fault.
    """
    asked = (community.evaluate, community.safety if safety else None)
    try:
        return _said(*asked, artifact)
    except Exception as error:  # a stranger's weights in a function of the operator: anything may come
        said = _said(*asked, _base(community))
        _log.warning("a model broke its evaluation: %s: %s", type(error).__name__, printable(str(error), 200))
        return Scores(*(None if each is None else nan for each in (said.quality, said.safety)))


def of_base(community: Community) -> Scores:
    """Return what is said of the base."""
    return _said(community.evaluate, community.safety, _base(community))


def _base(community: Community) -> Artifact:
    base = community.base
    return Artifact(base.path, details={"base": base.name, "base_fingerprint": base.fingerprint})


def _said(evaluate: Evaluate | None, safe: Evaluate | None, artifact: Artifact) -> Scores:
    return Scores(
        None if evaluate is None else float(evaluate(artifact)), None if safe is None else float(safe(artifact))
    )
