"""Options of a community: how contributions are merged, gated and rewarded. No torch is imported here."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    field_validator,
)

from gym_core.component import Config, Slot
from gym_deltasoup.config.mixing import ByzantineRobust
from gym_deltasoup.kinds import Merger

Share = Annotated[float, Field(ge=0, le=1)]


class AggregationMethod(StrEnum):
    """Mergers for communities by their names; `DeltaSoupConfig.method` takes any other merger too."""

    BYZANTINE_ROBUST = "byzantine_robust"
    KRUM = "krum"
    MULTI_KRUM = "multi_krum"
    BULYAN = "bulyan"
    TRIMMED_MEAN = "trimmed_mean"
    MEDIAN = "median"
    GEOMETRIC_MEDIAN = "geometric_median"
    CENTERED_CLIPPING = "centered_clipping"
    NORM_BOUND = "norm_bound"
    WEIGHTED_MEAN = "weighted_mean"
    MEAN = "uniform_soup"


class DeltaSoupConfig(Config):
    """A community: where its ledger lies, and the rules of its rounds."""

    folder: Annotated[str, Field(min_length=1)] = "soup"
    """Directory of the ledger, of what was contributed and of what the rounds made."""
    base_model: str | None = None
    """The model that everybody trains from: a family, a folder or a Hub id. By default what the first contribution names."""
    kind: Literal["model", "adapter", "delta"] | None = None
    """Kind of all contributions. By default that of the first, whoever sends it: a server for strangers should name it."""
    method: Annotated[SerializeAsAny[Merger], Slot("mergers", default="byzantine_robust")] = ByzantineRobust()
    """What combines the contributions: an `AggregationMethod`, a name, or the options of a merger."""
    byzantine_threshold: Annotated[float, Field(ge=0, lt=0.5)] = 0.3
    """Share of the contributors of a round that may be hostile, rounded down."""
    min_contributors: PositiveInt = 2
    """Accepted contributions without which no round ends."""
    max_contributors: PositiveInt = 1000
    """Contributions after which a round takes no more."""
    contribution_window: PositiveFloat = 86400.0
    """Seconds that a round is open on a server."""
    evaluate: Annotated[str | None, Field(pattern=r".:.")] = None
    """`package.module:function` that is given a `gym_core.Artifact` and returns how good it is, higher being better, on data that
    contributors do not see. Without one nothing is gated, and the report says so."""
    quality_threshold: Share = 0.8
    """Share of the score of the base that a contribution has to keep, counted from `quality_floor`."""
    quality_floor: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Score of a model that knows nothing, such as that of guessing."""
    evaluate_safety: Annotated[str | None, Field(pattern=r".:.")] = None
    """`package.module:function` that is given a `gym_core.Artifact` and returns how safe it is, higher being better."""
    safety_threshold: Share = 0.95
    """Share of the safety of the base that a contribution, and the result of a round, have to keep."""
    duplicate_cosine: Share = 0.999
    """Cosine of two changes from which the later one counts as a copy of the other."""
    max_change: PositiveFloat = 0.5
    """Largest norm of a change of a whole model, in norms of the base: more was trained from another one."""
    rank: PositiveInt | None = None
    """Rank of a merged adapter; by default the largest of those that were contributed."""
    differential_privacy: bool = False
    """Whether noise is added to the result of a round, so that it tells little of any one contributor."""
    privacy_epsilon: PositiveFloat = 1.0
    """Epsilon of a round."""
    privacy_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Delta of a round."""
    privacy_clip: PositiveFloat = 1.0
    """Norm that changes are cut to before noise is added."""
    privacy_budget: PositiveFloat | None = None
    """Most epsilon of a contributor over all rounds; by default there is no end to it."""
    secure_aggregation: bool = False
    """Whether the server learns sums of groups alone, and nothing of one contribution. Rewards, the gate, the search for
    duplicates and reputation look at single contributions, and are refused with it."""
    secure_group: Annotated[int, Field(ge=3, le=100)] = 4
    """Least members of a group whose sum is known; a group has fewer than twice as many."""
    secure_clip: PositiveFloat = 1.0
    """Norm that each member cuts its change to before it is masked."""
    secure_layers: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """Names of the weights of the base that are added up, with `*` for any characters; members send four bytes for each number.
    With `rank`, those of linear layers, of which an adapter is made."""
    enable_rewards: bool = True
    """Whether a round divides `reward_pool` among those who contributed."""
    reward_pool: NonNegativeInt = 1000
    """Points of a round."""
    reward_scheme: Literal["score", "leave_one_out", "shapley", "gradient_similarity"] = "score"
    """What points are given for: held-out quality and participation, what the result lacks without somebody, Shapley values, or
    the cosine of a change to the result."""
    quality_weight: NonNegativeFloat = 0.7
    """Weight of quality in the scheme `score`."""
    participation_weight: NonNegativeFloat = 0.3
    """Weight of participation in `score`: the share of the last ten rounds that somebody took part in."""
    shapley_permutations: PositiveInt = 64
    """Orders in which more than twelve contributors are added, for an estimate of the Shapley value."""
    reputation_memory: Share = 0.9
    """Share of a reputation that stays in a round: `reputation <- memory reputation + (1 - memory) quality`."""
    seed: NonNegativeInt = 0
    """Decides random choices of rewards."""

    @field_validator("method", mode="before")
    @classmethod
    def _named(cls, said: Any) -> Any:
        if not isinstance(said, str | dict):
            return said
        from gym_core.loading import find, load

        options = dict(said) if isinstance(said, dict) else {}
        name = str(options.pop("name", AggregationMethod.BYZANTINE_ROBUST)) if isinstance(said, dict) else str(said)
        return load(find("mergers", name, key="method"))(**options)
