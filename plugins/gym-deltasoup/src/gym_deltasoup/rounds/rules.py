"""Whether rounds can end by the rules of a community: what would keep all of them open is said before anybody contributes."""

from __future__ import annotations

from gym_core import GymError
from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.config.privacy import DifferentialPrivacy
from gym_deltasoup.kinds import Merger, name_of, require
from gym_deltasoup.rewards.schemes import SCHEMES
from gym_deltasoup.rounds.privacy_seam import RoundPrivacy
from gym_deltasoup.vector_merge import expected


def check_rules(config: DeltaSoupConfig, privacy: RoundPrivacy | None, *, evaluated: bool) -> None:
    """Raise GymError for rules by which no round can end, or none with what they promise.

    Args:
        config: the rules.
        privacy: noise and its accounts, where they are not those that the rules ask for.
        evaluated: whether there is a function that says how good a model is.

    """
    if config.min_contributors > config.max_contributors:
        why = f"a round takes {config.max_contributors} contributors, and needs {config.min_contributors}"
        raise GymError(why, key="min_contributors", fix="lower it, or raise `max_contributors`")
    name, fix = name_of(config.method), "name one: `evaluate: package.module:function`"
    if config.method.needs_trusted:
        why = f"{name} compares with a contribution that is known to be honest, and a round knows of none"
        raise GymError(why, key="method", fix="use byzantine_robust; `gym merge` takes a `trusted` input")
    coalitions = config.enable_rewards and SCHEMES[config.reward_scheme].values_coalitions
    asking = config.reward_scheme if coalitions else name if config.method.needs_evaluation else ""
    if asking and not evaluated:
        raise GymError(
            f"`{asking}` asks how good models are, and there is no function to say so", key="evaluate", fix=fix
        )
    merger = _noised(config, privacy)
    if coalitions and merger.is_random():
        why = f"`{config.reward_scheme}` merges other members again and again, and each of these merges has new noise"
        fix = "use `score` or `gradient_similarity`: points for noise say nothing, and without noise nobody accounts for it"
        raise GymError(why, key="reward_scheme", fix=fix)
    if config.method.hides_inputs():
        why = f"{name} promises something of one merge, and nobody would keep an account of several rounds"
        raise GymError(
            why, key="method", fix="set `differential_privacy: true`, and name what combines changes as `method`"
        )
    most = config.max_contributors
    if config.secure_aggregation:  # then groups are merged, and a round of too few of them ends too
        return
    try:  # with fewer contributors it may wait for more
        require(merger, most, expected(merger, most, None, config.byzantine_threshold))
    except GymError as error:
        why = f"a round of {most} contributors (`max_contributors`) could not be merged: {error.problems[0].why}"
        raise GymError(
            why, key="method", fix="name another merger, or change `max_contributors`, `byzantine_threshold`"
        ) from None


def _noised(config: DeltaSoupConfig, privacy: RoundPrivacy | None) -> Merger:
    """Return what combines contributions. Raises GymError where no noise makes it private."""
    if privacy is not None:
        return privacy.merger(config.method)
    if not config.differential_privacy:
        return config.method
    made = DifferentialPrivacy(
        rule=config.method, clip=config.privacy_clip, epsilon=config.privacy_epsilon, delta=config.privacy_delta
    )
    made.moved_by(1, 0)
    return made
