"""Findings: what `doctor` has looked at, each with what to do about it."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """One thing that was looked at. Where it is `ok`, a `remedy` says what would be better; else what helps."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


class Diagnosis(Struct, frozen=True):
    """All that was looked at."""

    ok: bool
    findings: list[Finding]
