"""The limit on the KL divergence of a quantized model from the original (`quantization.max_kl`)."""

from __future__ import annotations

from gym_core import GymError


def check_kl(found: float, most: float | None, what: str, where: str, better: str) -> None:
    """Raise GymError where a divergence is above the largest one, or is no number.

    Args:
        found: nats per token.
        most: that of `quantization.max_kl`; None: any will do.
        what: of which it is.
        where: what was quantized.
        better: what makes it less.

    """
    if most is not None and not found <= most:
        raise GymError(
            f"the KL divergence of {what} is {found:.4g} nats per token, above {most:g}",
            where=where,
            key="quantization.max_kl",
            fix=better,
        )
