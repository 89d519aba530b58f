"""Which model reads which schema. The models are imported when a name is asked for."""

from __future__ import annotations

from importlib import import_module

from specpilot_cli.artifacts.base import Envelope

_MODELS: dict[str, tuple[str, str]] = {
    "profile": ("profile", "ProfileArtifact"),
    "ceiling": ("ceiling", "CeilingArtifact"),
    "break-even": ("break_even", "BreakEvenArtifact"),
    "figures": ("figures", "FiguresArtifact"),
    "pair-run": ("pair_run", "PairRunArtifact"),
    "forcing": ("forcing", "ForcingArtifact"),
    "seal": ("seal", "SealArtifact"),
    "apply": ("apply", "ApplyArtifact"),
    "selftest": ("selftest", "SelftestArtifact"),
    "replay": ("replay", "ReplayArtifact"),
    "lattice": ("replay_lattice", "LatticeArtifact"),
    "round": ("round", "RoundArtifact"),
    "w12-audit": ("w12_audit", "W12AuditArtifact"),
    "w12-verify": ("w12_verify", "W12VerifyArtifact"),
}

NAMES = tuple(_MODELS)


def model(name: str) -> type[Envelope]:
    """Artifact class of `name` (such as `pair-run`).

    Raises:
        KeyError: there is no such schema.
    """
    module, cls = _MODELS[name]
    found: type[Envelope] = getattr(import_module(f"specpilot_cli.artifacts.{module}"), cls)
    return found
