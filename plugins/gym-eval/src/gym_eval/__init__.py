"""`gym eval`: how well a model does on benchmarks, and what it lost. No torch here."""

from gym_eval.kinds import Evaluator
from gym_eval.scores import Evaluation, Results, Score

__all__ = ["Evaluation", "Evaluator", "Results", "Score"]
