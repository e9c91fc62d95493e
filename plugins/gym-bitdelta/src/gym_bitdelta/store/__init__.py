"""Variants on disk: an artifact for each of thousands of users, with lineage and evidence. Nothing here needs torch."""

from __future__ import annotations

from gym_bitdelta.store.record import NOT_EVALUATED, Evidence, Variant
from gym_bitdelta.store.user_id import check_user_id
from gym_bitdelta.store.variant_store import Opened, VariantStore

__all__ = ["NOT_EVALUATED", "Evidence", "Opened", "Variant", "VariantStore", "check_user_id"]
