# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_core.artifact import Artifact as Artifact
from gym_core.component import Component as Component
from gym_core.component import Config as Config
from gym_core.component import Slot as Slot
from gym_core.errors import BusyError as BusyError
from gym_core.errors import DataError as DataError
from gym_core.errors import GymError as GymError
from gym_core.errors import Interrupted as Interrupted
from gym_core.errors import PluginError as PluginError
from gym_core.errors import Problem as Problem
from gym_core.errors import RecipeError as RecipeError
from gym_core.execution import execute as execute
from gym_core.files import cache_dir as cache_dir
from gym_core.hooks import Trainer as Trainer
from gym_core.hooks import hookimpl as hookimpl
from gym_core.hooks import hookspec as hookspec
from gym_core.kinds import Algorithm as Algorithm
from gym_core.kinds import Backend as Backend
from gym_core.kinds import Callback as Callback
from gym_core.kinds import Exporter as Exporter
from gym_core.kinds import Quantizer as Quantizer
from gym_core.kinds import Strategy as Strategy
from gym_core.recipe import Recipe as Recipe
from gym_core.recipe import load_recipe as load_recipe
from gym_core.run import Outcome as Outcome
from gym_core.run import Run as Run
from gym_core.train import Train as Train

__version__: str
