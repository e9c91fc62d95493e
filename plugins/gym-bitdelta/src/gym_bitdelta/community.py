"""`enable_deltasoup`: a delta that was made becomes a contribution to a community, in a folder of this machine."""

from __future__ import annotations

import os

from gym_core import Artifact, GymError, Run
from gym_core.loading import find, load
from gym_torch.console import say, warn


def check() -> None:
    """Raise PluginError where gym-deltasoup is not installed."""
    find("facade", "quantization.DeltaSoup", key="quantization.enable_deltasoup")


def contribute(run: Run, delta: Artifact) -> None:
    """Contribute a delta to the community in `$GYM_SOUP`, or in `soup`, and merge its round where enough have contributed.

    The delta itself stays as it is. Where the community refuses it, that is said, and the run goes on. Raises PluginError without
    gym-deltasoup.
    """
    community = load(find("facade", "quantization.DeltaSoup", key="quantization.enable_deltasoup"))
    soup = community({"folder": os.environ.get("GYM_SOUP") or "soup"})
    user = soup.user_of(run.output)
    try:
        soup.contribute(user, delta)
        made = soup.run_round()
    except GymError as error:
        warn(f"deltasoup: {error.problems[0].why}")
        return
    finally:
        soup.close()
    if made is None:
        say(f"deltasoup: {user} contributed; the round waits for others")
    else:
        say(
            f"deltasoup: round {made.report['round']} merged {len(made.report['accepted'])} deltas: {made.artifact.path}"
        )
