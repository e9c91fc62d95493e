"""What a round asks of differential privacy. No torch is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gym_deltasoup.kinds import Merger


class RoundPrivacy(Protocol):
    """Noise, and the accounts of what each contributor has spent."""

    def merger(self, configured: Merger) -> Merger:
        """Return what combines contributions with noise, in place of the merger that is configured.

        Raises GymError where no bound of its sensitivity holds.
        """
        ...

    def admit(self, release: str, members: Sequence[str]) -> None:
        """Raise GymError for a contributor whose budget a release would exceed. Called before anything is released.

        One that was charged already, by a process that died then, costs nothing more.
        """
        ...

    def spend(self, release: str, members: Sequence[str]) -> Mapping[str, Any]:
        """Write down what a release costs each contributor, before anybody sees it, and return it as plain data for the report.

        A release of the same name costs nothing a second time: a round that was killed is made again.
        """
        ...
