"""What secure aggregation rules out: whatever looks at single contributions. No torch is imported here."""

from __future__ import annotations

from gym_core import GymError
from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.kinds import Merger, name_of


def check_merger(merger: Merger) -> None:
    """Raise GymError for a merger that looks at single contributions."""
    name = name_of(merger)
    asks = {"asks for a score of single contributions": merger.needs_evaluation,
            "looks at a trusted contribution": merger.needs_trusted,
            "takes weights of single contributions": merger.takes_weights()}  # fmt: skip
    for what, does in asks.items():
        if does:
            raise single(f"{name} {what}", "method")


def check_community(config: DeltaSoupConfig, *, evaluated: bool) -> None:
    """Raise GymError for rules of a community that look at single contributions, or that groups cannot hold.

    What is on by default has to be turned off: `enable_rewards: false`, and with an evaluation `quality_threshold: 0`, which then
    judges the result alone. The search for duplicates and reputation are refused where somebody asks for them.
    """
    said = config.model_fields_set
    steps = {
        "the quality gate": ("quality_threshold", evaluated and config.quality_threshold > 0),
        "the search for duplicates": ("duplicate_cosine", "duplicate_cosine" in said),
        "reputation": ("reputation_memory", "reputation_memory" in said),
        "what points are given for": ("enable_rewards", config.enable_rewards),
    }
    for name, (key, wanted) in steps.items():
        if wanted:
            raise single(f"{name} looks at single contributions", key)
    if config.kind is not None:
        raise GymError("members send numbers under masks, whatever they trained", key="kind", fix="leave it out")
    check_merger(config.method)
    spoiled = config.byzantine_threshold * config.secure_group
    if config.method.tolerates(1000) and spoiled >= 0.5:
        raise GymError(
            f"each hostile member may spoil a group, and of groups of {config.secure_group} that is half of them",
            key="byzantine_threshold",
            fix=f"expect fewer than {0.5 / config.secure_group:.3g} of the members to be hostile, or make groups smaller",
        )
    if config.rank is not None and "*" in config.secure_layers:
        fix = "name them, such as `*.self_attn.?_proj.weight`"
        raise GymError("an adapter changes some linear layers, and all weights are named", key="secure_layers", fix=fix)


def single(what: str, key: str) -> GymError:
    """Return the refusal of whatever looks at single contributions."""
    off = {"enable_rewards": "set it to false", "quality_threshold": "set it to 0: the result is evaluated still"}
    fix = off.get(key, "leave it out")
    return GymError(f"{what}, and secure aggregation shows sums of groups alone", key=key, fix=fix)
