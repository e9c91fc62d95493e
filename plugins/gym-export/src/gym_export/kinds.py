"""What an exporter declares so that its artifacts are certified: loaded again in a fresh process, and compared."""

from __future__ import annotations

from typing import ClassVar

from gym_core import Artifact, Exporter


class CertifiedExporter(Exporter):
    """Base of every exporter that is certified: what it writes is loaded in a fresh process and compared with the source.

    It names a `gym_export.format.Format`; `build()` returns a `gym_export.certified.Certified`. Nothing appears under its final
    name before it agreed; `certificate.json` beside it says how well.
    """

    target: ClassVar[str] = "gym_export.certified:Certified"
    artifacts: ClassVar[tuple[str, ...]] = ("model", "adapter", "delta")
    format: ClassVar[str] = ""
    """`module:class` of a `gym_export.format.Format`, called with this configuration."""
    allow_unverified: bool = False
    """Whether to write where the runtime that the artifact is for is not installed; the certificate then says `unverified`."""

    def named(self, name: str) -> Artifact:
        """Return the model of a family, or of an id on the Hub. Raises what `gym_data.location.artifact_at` raises."""
        from gym_data.location import artifact_at

        return artifact_at(name)
