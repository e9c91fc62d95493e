"""gym-deltasoup: one model of what many people trained. Names are imported on first use; torch comes when a rule is built."""

from __future__ import annotations

from gym_core.lazy import lazily

__version__ = "0.1.0"

_HOMES = {
    "gym_deltasoup.config.mixing": "ARC Bucketing ByzantineRobust NNM",
    "gym_deltasoup.config.privacy": "DifferentialPrivacy",
    "gym_deltasoup.config.robust": (
        "Bulyan CenteredClipping FLTrust GeometricMedian Krum MeaMed Median MultiKrum NormBound SignMajority TrimmedMean"
    ),
    "gym_deltasoup.config.dense": "GreedySoup Karcher ModelStock SLERP TaskArithmetic UniformSoup WeightedMean",
    "gym_deltasoup.config.sparse": "Breadcrumbs DARE DELLA SCE TIES",
    "gym_deltasoup.config.community": "AggregationMethod DeltaSoupConfig",
    "gym_deltasoup.delta_soup": "DeltaSoup",
    "gym_deltasoup.rounds.closing": "RoundResult",
    "gym_deltasoup.kinds": "Merger",
    "gym_deltasoup.artifact_merge": "MergedArtifact merge_artifacts",
    "gym_deltasoup.vector_merge": "MergedVectors merge_vectors",
    "gym_deltasoup.gaussian_mechanism": "delta_of epsilon_of sigma_of",
    "gym_deltasoup.privacy.ledger": "PrivacyLedger",
    "gym_deltasoup.privacy.local": "privatize",
    "gym_deltasoup.privacy.dp_sgd": "RecordPrivacy train_on_records",
    "gym_deltasoup.privacy.rounds": "CentralPrivacy",
    "gym_deltasoup.sources.inputs": "Input",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
