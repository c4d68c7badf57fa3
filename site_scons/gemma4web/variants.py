"""The 2×2 matrix {plain, mtp} × {wall, profile}: the one table from which every variant, stem and factory is made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Decoding(StrEnum):
    PLAIN = "plain"
    MTP = "mtp"


class Timing(StrEnum):
    WALL = "wall"
    PROFILE = "profile"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One WASM module: two identities, ``<stem>.js`` and ``<stem>.wasm``, and the factory that the JS exports."""

    decoding: Decoding
    timing: Timing
    factory: str
    stem: str

    @property
    def name(self) -> str:
        return f"{self.decoding}-{self.timing}"

    @property
    def method(self) -> str:
        """The program method that this variant runs; its loader rejects every other."""
        return "k2_round" if self.decoding is Decoding.MTP else "text_decoder"

    @property
    def defines(self) -> tuple[str, ...]:
        """Preprocessor definitions that make this variant."""
        return (f"GEMMA4_MTP={int(self.decoding is Decoding.MTP)}",
                f"GEMMA4_PROFILE={int(self.timing is Timing.PROFILE)}")


VARIANTS: Final[tuple[Variant, ...]] = (
    Variant(decoding=Decoding.PLAIN, timing=Timing.WALL, factory="createGemma4", stem="gemma4"),
    Variant(decoding=Decoding.PLAIN, timing=Timing.PROFILE, factory="createGemma4Profile", stem="gemma4_profile"),
    Variant(decoding=Decoding.MTP, timing=Timing.WALL, factory="createGemma4Mtp", stem="gemma4_mtp"),
    Variant(decoding=Decoding.MTP, timing=Timing.PROFILE, factory="createGemma4MtpProfile", stem="gemma4_mtp_profile"),
)
