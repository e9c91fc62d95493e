"""gym-rewards: what scores the completions of a model. Neither torch nor transformers is imported anywhere here.

The public names below are imported on first use, so that naming one reward does not import all.
"""

from __future__ import annotations

from gym_core.lazy import lazily

__version__ = "0.1.0"

_HOMES = {
    "gym_rewards.builtin.code_execution": "Code",
    "gym_rewards.builtin.exact_match": "Exact",
    "gym_rewards.builtin.format_tags": "Format",
    "gym_rewards.builtin.http_endpoint": "Http",
    "gym_rewards.builtin.json_schema": "JsonText",
    "gym_rewards.builtin.length": "Length",
    "gym_rewards.builtin.math_verifier": "Math",
    "gym_rewards.builtin.overlong": "Overlong",
    "gym_rewards.builtin.python_function": "PythonFunction",
    "gym_rewards.builtin.regex_match": "Regex",
    "gym_rewards.builtin.tool_calls": "ToolCall",
    "gym_rewards.reward": "Logging Reward RewardInput Score Selective",
    "gym_rewards.reward_manager": "RewardManager RewardResult",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
