"""The paper's Table 2 beside the values of our presets on the present data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedforget.algorithm.plan import Plan
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.federations import DataChoice, StoredFederation, chosen
from fedforget.errors import DataMissing
from fedforget.experiments.presets import PRESETS, Preset


@dataclass(frozen=True, slots=True)
class Numbers:
    """Samples, M, N and the realised ρ of a plan. ρ_S is b·K·T/(N·M) at the mean N, and that of each client at its own:
    their mean, and the worst. All are the same where all clients have one size."""

    samples: int
    clients: int  # M
    mean_size: float  # N
    smallest: float
    largest: float
    rho_c: float
    rho_s: float
    mean_rho_s: float
    worst_rho_s: float
    which: str  # printed, whole or subset
    checksum: str | None = None  # of the data


@dataclass(frozen=True, slots=True)
class Row:
    """A preset: the values that Table 2 prints (None: not a row of it), and those of the data (None: missing)."""

    preset: str
    clients_per_round: int  # K
    rounds: int  # R
    local_steps: int  # E
    batch_size: int  # b
    printed: Numbers | None
    ours: Numbers | None


def table2(data_dir: Path | None = None, *, seed: int = 0) -> list[Row]:
    """Return one row per preset. The seed decides which samples a client has, and with sizes that differ, how many."""
    return [
        Row(
            preset.name, preset.clients_per_round, preset.rounds, preset.local_steps, preset.batch_size,
            _printed(preset), _ours(preset, data_dir, seed),
        )
        for preset in PRESETS.values()
    ]  # fmt: skip


def _printed(preset: Preset) -> Numbers | None:
    """Table 2's own: N = samples / M. CIFAR's 60,000 include the test images."""
    if preset.samples is None or preset.printed_clients is None:
        return None
    clients, size = preset.printed_clients, preset.samples / preset.printed_clients
    rho_s = preset.batch_size * preset.clients_per_round * preset.local_steps * preset.rounds / preset.samples
    rho_c = preset.clients_per_round * preset.rounds / clients
    return Numbers(preset.samples, clients, size, size, size, rho_c, rho_s, rho_s, rho_s, "printed")


def _ours(preset: Preset, data_dir: Path | None, seed: int) -> Numbers | None:
    choice = DataChoice(preset.data, preset.clients, preset.partition, data_dir=data_dir)
    try:
        federation = chosen(choice, SeedSource(seed).partition(), online=False)
    except DataMissing:
        return None
    sizes = np.array(federation.sizes())
    plan = Plan(preset.clients_per_round, preset.batch_size, preset.local_steps, preset.rounds)
    shares = np.minimum(preset.batch_size, sizes) / sizes
    return Numbers(
        samples=int(sizes.sum()), clients=len(sizes), mean_size=float(sizes.mean()), smallest=float(sizes.min()),
        largest=float(sizes.max()), rho_c=plan.realised_rho_c(len(sizes)),
        rho_s=preset.batch_size * preset.clients_per_round * plan.steps / int(sizes.sum()),
        mean_rho_s=float(shares.mean()) * preset.clients_per_round * plan.steps / len(sizes),
        worst_rho_s=plan.realised_rho_s(sizes.tolist()),
        which=federation.source.which if isinstance(federation, StoredFederation) else "whole",
        checksum=federation.source.checksum() if isinstance(federation, StoredFederation) else None,
    )  # fmt: skip
