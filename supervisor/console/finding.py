"""Findings: what `doctor` has looked at, each with what to do about it."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """One thing that was looked at. `remedy` is empty where it is as it should be."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


class Diagnosis(Struct, frozen=True):
    """All that was looked at."""

    ok: bool
    findings: list[Finding]
