"""Comparing expressions with math-verify. Imported in a process of its own with a time limit: `gym_rewards.worker_process`."""

from __future__ import annotations

from math_verify import parse, verify


def verified(expected: str, found: str) -> bool:
    """Return whether two LaTeX expressions mean the same; the library's own time limits are off."""
    one, other = (parse(f"${text.strip('$')}$", parsing_timeout=None) for text in (expected, found))
    return bool(verify(one, other, timeout_seconds=None))
