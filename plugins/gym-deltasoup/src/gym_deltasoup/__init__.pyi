# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_deltasoup.artifacts import MergedArtifact as MergedArtifact
from gym_deltasoup.artifacts import merge_artifacts as merge_artifacts
from gym_deltasoup.config.community import AggregationMethod as AggregationMethod
from gym_deltasoup.config.community import DeltaSoupConfig as DeltaSoupConfig
from gym_deltasoup.config.mixing import ARC as ARC
from gym_deltasoup.config.mixing import NNM as NNM
from gym_deltasoup.config.mixing import Bucketing as Bucketing
from gym_deltasoup.config.mixing import ByzantineRobust as ByzantineRobust
from gym_deltasoup.config.robust import Bulyan as Bulyan
from gym_deltasoup.config.robust import CenteredClipping as CenteredClipping
from gym_deltasoup.config.robust import FLTrust as FLTrust
from gym_deltasoup.config.robust import GeometricMedian as GeometricMedian
from gym_deltasoup.config.robust import Krum as Krum
from gym_deltasoup.config.robust import Median as Median
from gym_deltasoup.config.robust import MultiKrum as MultiKrum
from gym_deltasoup.config.robust import NormBound as NormBound
from gym_deltasoup.config.robust import SignMajority as SignMajority
from gym_deltasoup.config.robust import TrimmedMean as TrimmedMean
from gym_deltasoup.config.soups import SLERP as SLERP
from gym_deltasoup.config.soups import GreedySoup as GreedySoup
from gym_deltasoup.config.soups import ModelStock as ModelStock
from gym_deltasoup.config.soups import TaskArithmetic as TaskArithmetic
from gym_deltasoup.config.soups import UniformSoup as UniformSoup
from gym_deltasoup.config.soups import WeightedMean as WeightedMean
from gym_deltasoup.config.sparse import DARE as DARE
from gym_deltasoup.config.sparse import DELLA as DELLA
from gym_deltasoup.config.sparse import TIES as TIES
from gym_deltasoup.config.sparse import Breadcrumbs as Breadcrumbs
from gym_deltasoup.kinds import Merger as Merger
from gym_deltasoup.merge import MergedVectors as MergedVectors
from gym_deltasoup.merge import merge_vectors as merge_vectors
from gym_deltasoup.rounds.closing import RoundResult as RoundResult
from gym_deltasoup.soup import DeltaSoup as DeltaSoup
from gym_deltasoup.sources.inputs import Input as Input

__version__: str
