"""`DeltaSoup`: a community in Python, in a folder of this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.rounds.closing import RoundResult, close_round, result
from gym_deltasoup.rounds.community import Community, Evaluate, in_the_open
from gym_deltasoup.rounds.contribution_store import hashed
from gym_deltasoup.rounds.model_to_file import Model, taken
from gym_deltasoup.rounds.privacy_seam import RoundPrivacy
from gym_deltasoup.work_folders import TAKEN, work_folder

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class DeltaSoup:
    """Takes what several users trained from one base, merges it, and says what each has earned.

    What was contributed is in the folder of the configuration by the time `contribute` returns, and stays there when the process
    ends: a round goes on where it was. Whoever can write to the folder is trusted with the names of users; a server asks them to
    sign (`gym soup serve`).
    """

    def __init__(
        self,
        config: DeltaSoupConfig | Mapping[str, Any] | None = None,
        *,
        evaluate: Evaluate | None = None,
        privacy: RoundPrivacy | None = None,
    ) -> None:
        """Open the folder of a community, or make it.

        Args:
            config: the rules; by default those of `DeltaSoupConfig()`.
            evaluate: says how good a `gym_core.Artifact` is, in place of the function that the configuration names.
            privacy: noise and its accounts, in place of those that the configuration asks for.

        Raises GymError where the folder cannot be used, or the rules ask for what is not given.

        """
        rules = config if isinstance(config, DeltaSoupConfig) else DeltaSoupConfig(**(config or {}))
        self.config = rules
        self.community = Community(rules, evaluate, privacy)

    def contribute(self, user_id: str, model: Model | None = None, *, delta: Model | None = None) -> Contribution:
        """Take what a user trained: a directory, what a run made, a model in memory, or its weights by name.

        `delta` is another word for the same. The same contribution again changes nothing.

        Raises Refused where it cannot be merged, belongs to another base, or the user contributed another one to this round, and
        GymError where the disk does not take it.
        """
        given = model if delta is None else delta
        if given is None or (model is not None and delta is not None):
            raise GymError("give a `model` or a `delta`", key="model")
        if not NAME.fullmatch(user_id):
            why = f"`{user_id}` is no name of a user"
            raise GymError(why, key="user_id", fix="use letters, digits, `.`, `_` and `-`, 64 at most")
        community = self.community
        if self.config.secure_aggregation:
            raise in_the_open()
        try:
            with work_folder(community.folder, TAKEN) as folder:
                found = taken(given, folder)
                if found.base:
                    community.set_base(found.base)
                found.check_computes(community.base.path)
                told = found.details
                contribution = Contribution(
                    community.ledger.round().number,
                    user_id,
                    hashed(found.file),
                    found.file.stat().st_size,
                    told.kind,
                    told.told(),
                )
                community.accept(contribution, found.file)
        except OSError as error:
            fix = "if the disk is full, make room; what is there stays"
            raise GymError(f"it cannot be taken: {error}", where=str(community.folder), fix=fix) from error
        return contribution

    @staticmethod
    def user_of(output: Path) -> str:
        """Return the name by which a run contributes: that of its output directory, as far as it is one."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", output.absolute().name).strip("-._")[:64] or "run"

    def aggregate(self, min_contributors: int | None = None) -> RoundResult:
        """Merge what this round accepted, and begin the next. Raises GymError where too few contributions passed the gate."""
        return close_round(self.community, min_contributors)

    def run_round(self) -> RoundResult | None:
        """Merge the round where as many contributed as the configuration asks for; return None where it waits for others."""
        ledger = self.community.ledger
        if len(ledger.contributions(ledger.round().number)) < self.config.min_contributors:
            return None
        return self.aggregate()

    def calculate_rewards(self) -> dict[str, int]:
        """Return the points of each contributor of the last round that was merged. Raises GymError where there is none."""
        if not self.config.enable_rewards:
            raise GymError("this community has no rewards", key="enable_rewards", fix="set it to true")
        return self.report()["rewards"]["points"]

    def report(self, number: int | None = None) -> dict[str, Any]:
        """Return the report of a round, by default of the last that was merged. Raises GymError where there is none."""
        wanted = self.community.ledger.round().number - 1 if number is None else number
        if wanted < 1:
            raise GymError("nothing was merged yet", key="rewards", fix="call `aggregate` first")
        return dict(result(self.community, wanted).report)

    def close(self) -> None:
        """Close the ledger."""
        self.community.close()
