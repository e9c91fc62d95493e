"""Local differential privacy: a contributor adds noise before anybody else sees anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gym_core import GymError
from gym_core.files import replacing
from gym_deltasoup.artifact_merge import MergedArtifact, check_free, merge_artifacts
from gym_deltasoup.config.dense import UniformSoup
from gym_deltasoup.config.privacy import DifferentialPrivacy
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
        ledger: of what the contributor has spent, charged when all is written, before it appears as `into`. Each call draws noise
            of its own and is charged, also into one directory.
        announce: is told how much noise there will be.

    Raises GymError where the cap of the ledger would be exceeded, or the contribution has no name to charge, and what
    `merge_artifacts` raises.

    """
    check_free(into)
    merger = DifferentialPrivacy(rule=UniformSoup(), clip=clip, epsilon=epsilon, delta=delta)
    what, mu = f"noised into {into.absolute()}", mu_of(epsilon, delta)
    if ledger is not None:
        if not contribution.name:
            raise GymError(
                "nothing says whose account is charged", key="name", fix="give `Input` the name of the contributor"
            )
        ledger.admit(what, [contribution.name], mu)
    into.parent.mkdir(parents=True, exist_ok=True)
    with replacing(into, alone=True) as building:
        made = merge_artifacts(merger, [contribution], building, base=base, hostile=0, announce=announce)
        if ledger is not None:
            ledger.spend_anew(what, contribution.name, mu)
    return replace(made, artifact=replace(made.artifact, path=into))
