# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_data.config import DatasetConfig as DatasetConfig
from gym_data.kinds import Data as Data
from gym_data.kinds import DataAlgorithm as DataAlgorithm
from gym_data.kinds import Family as Family
from gym_data.kinds import Format as Format
from gym_data.kinds import Rows as Rows
from gym_data.kinds import Source as Source
from gym_data.kinds import Template as Template
from gym_data.sources import File as File
from gym_data.sources import Hub as Hub
from gym_data.sources import Named as Named
