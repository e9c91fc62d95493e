"""Differential privacy of the rounds of a community, beside the ledger of what each contributor has spent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.config.privacy import DifferentialPrivacy
from gym_deltasoup.gaussian_mechanism import mu_of
from gym_deltasoup.kinds import Merger
from gym_deltasoup.privacy.ledger import PrivacyLedger

NAME = "privacy.sqlite"


def round_privacy(config: DeltaSoupConfig, folder: Path) -> CentralPrivacy:
    """Return the privacy that a community is configured to have, with its ledger in a folder."""
    options = (config.privacy_clip, config.privacy_epsilon, config.privacy_delta, config.privacy_budget)
    return CentralPrivacy(folder, *options)


class CentralPrivacy:
    """The server adds the noise: it sees contributions as they are, and nobody else learns much of one of them.

    What is not noised, such as scores of single contributions, rewards or who was refused, is not covered.

    Args:
        folder: where the ledger lies.
        clip: norm that changes are cut to.
        epsilon: of each round.
        delta: of each round, and of what contributors have spent.
        cap: most epsilon of a contributor over all rounds.

    """

    def __init__(self, folder: Path, clip: float, epsilon: float, delta: float, cap: float | None = None) -> None:
        """Open the ledger. Raises GymError where it lost what rounds cost."""
        self.folder = folder
        self.clip, self.epsilon, self.delta, self.cap = clip, epsilon, delta, cap
        self.mu = mu_of(epsilon, delta)
        self.ledger = PrivacyLedger(folder / NAME, delta, cap)
        self._check_whole()

    def merger(self, configured: Merger) -> Merger:
        """Return the configured merger with noise. Raises GymError where no bound of its sensitivity holds."""
        found = DifferentialPrivacy(rule=configured, clip=self.clip, epsilon=self.epsilon, delta=self.delta)
        found.moved_by(1, 0)
        return found

    def admit(self, release: str, members: Sequence[str]) -> None:
        """Raise GymError for a contributor whose cap a round would exceed that was not charged yet."""
        self.ledger.admit(release, members, self.mu)

    def spend(self, release: str, members: Sequence[str]) -> Mapping[str, Any]:
        """Charge all who took part, before anybody sees the result; a second time nothing. Returns what the report says."""
        spent = self.ledger.spend(release, members, self.mu)
        told = {"epsilon": self.epsilon, "delta": self.delta, "spent": spent, "cap": self.cap}
        return {**told, "release": release, "mu": self.mu}

    def _check_whole(self) -> None:
        """Raise GymError where a report names a charge that is not in the ledger: then it is new, or an older copy of it."""
        for file in sorted(self.folder.glob("rounds/*/report.json")):
            told = json.loads(file.read_text(encoding="utf-8"))["privacy"] or {}  # of others' privacy, what they tell
            lost = sorted({*told.get("spent", ())} - self.ledger.charged(told.get("release", "")))
            if lost:
                raise GymError(
                    f"it does not say what round {file.parent.name} cost {lost[0]}: it is new, or an older copy",
                    where=str(self.ledger.path),
                    fix="put back the newest copy of it; what was spent cannot be spent again",
                )
