"""Local differential privacy: a contributor adds noise before anybody else sees anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gym_deltasoup.artifacts import MergedArtifact, merge_artifacts
from gym_deltasoup.config.privacy import DifferentialPrivacy
from gym_deltasoup.config.soups import UniformSoup
from gym_deltasoup.gaussian_mechanism import mu_of
from gym_deltasoup.privacy.ledger import PrivacyLedger
from gym_deltasoup.sources.inputs import Input


def privatize(
    contribution: Input,
    into: Path,
    *,
    base: str,
    epsilon: float,
    delta: float = 1e-5,
    clip: float = 1.0,
    ledger: PrivacyLedger | None = None,
    announce: Callable[[str], None] | None = None,
) -> MergedArtifact:
    """Write a contribution that was cut to a norm and noised; whatever is done with it afterwards costs no more privacy.

    Args:
        contribution: what was trained, and the name of who trained it.
        into: a directory that is not there yet, or is empty.
        base: the model that it was trained from.
        epsilon: of this contribution. The noise is that of a mean of one: very much more than a server would add.
        delta: of this contribution.
        clip: norm that the change is cut to.
        ledger: of what the contributor has spent, charged before anything is written under `into`.
        announce: is told how much noise there will be.

    Raises GymError where the cap of the ledger would be exceeded, and what `merge_artifacts` raises.

    """
    merger = DifferentialPrivacy(rule=UniformSoup(), clip=clip, epsilon=epsilon, delta=delta)
    if ledger is not None:
        ledger.spend(str(into.absolute()), [contribution.name or str(contribution.path)], mu_of(epsilon, delta))
    return merge_artifacts(merger, [contribution], into, base=base, hostile=0, announce=announce)
