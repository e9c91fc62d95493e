# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_rewards.builtin.code_execution import Code as Code
from gym_rewards.builtin.exact_match import Exact as Exact
from gym_rewards.builtin.format_tags import Format as Format
from gym_rewards.builtin.http_endpoint import Http as Http
from gym_rewards.builtin.json_schema import JsonText as JsonText
from gym_rewards.builtin.length import Length as Length
from gym_rewards.builtin.math_verifier import Math as Math
from gym_rewards.builtin.overlong import Overlong as Overlong
from gym_rewards.builtin.python_function import PythonFunction as PythonFunction
from gym_rewards.builtin.regex_match import Regex as Regex
from gym_rewards.builtin.tool_calls import ToolCall as ToolCall
from gym_rewards.reward import Logging as Logging
from gym_rewards.reward import Reward as Reward
from gym_rewards.reward import RewardInput as RewardInput
from gym_rewards.reward import Score as Score
from gym_rewards.reward import Selective as Selective
from gym_rewards.reward_manager import RewardManager as RewardManager
from gym_rewards.reward_manager import RewardResult as RewardResult

__version__: str
