"""How much an entropy bonus counts where it is to hold a policy at an entropy: Skywork-OR1, arXiv:2505.22312, section 4."""

from __future__ import annotations


def active_coefficient(coefficient: float, entropy: float, target: float) -> float:
    """Return the weight of the bonus in a round whose completions had this entropy, in nats a token: none above the target."""
    return coefficient if entropy <= target else 0.0


def adapted_coefficient(
    coefficient: float, entropy: float, target: float, delta: float, lowest: float, highest: float
) -> float:
    """Return the coefficient after the round: `delta` more where its entropy was at the target or below, else as much less."""
    return min(max(coefficient + (delta if entropy <= target else -delta), lowest), highest)
