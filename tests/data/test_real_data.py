"""The real files, where FEDFORGET_DATA names a directory that has them: the published numbers, and the time to open."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedforget.data.check import check
from fedforget.data.ownership import Partition
from fedforget.data.places import VARIABLE, read_below
from fedforget.data.registry import DATASETS, NATURAL, VIRTUAL
from fedforget.data.source import Source
from fedforget.experiments.table2 import table2
from tests.helpers import numbered_seed

BASE = os.environ.get(VARIABLE)
SEED = numbered_seed(0)


def read(name: str) -> Source:
    source = read_below(DATASETS[name], Path(BASE)) if BASE else None
    if source is None:
        pytest.skip(f"{name} is not in a directory that {VARIABLE} names")
    return source


@pytest.mark.parametrize("name", DATASETS)
def test_real_data_have_the_known_checksums(name: str) -> None:
    read(name)
    assert check(name, Path(str(BASE))).checksum_ok


def test_shakespeare_by_leafs_rule_has_the_papers_numbers() -> None:
    source = read("shakespeare")
    owners = Partition.of(DATASETS["shakespeare"], None, None, None, SEED).owners(DATASETS["shakespeare"], source)
    assert (len(owners), source.train_count, source.test_count) == (660, 3_678_451, 356_921)
    assert source.groups is not None
    assert min(group.test.stop - group.train.start for group in source.groups.values()) == 802


def test_femnist_has_146_writers_and_3556_virtual_clients() -> None:
    source, dataset = read("femnist"), DATASETS["femnist"]
    if source.groups is None or len(source.groups) != 155:
        pytest.skip("this is another part of FEMNIST than the 155 writers")
    natural = Partition.of(dataset, NATURAL, None, None, SEED).owners(dataset, source)
    virtual = Partition.of(dataset, VIRTUAL, None, None, SEED).owners(dataset, source)
    assert (len(natural), len(virtual)) == (146, 3_556)
    assert sum(map(len, virtual.values())) == pytest.approx(811_586, rel=0.001)


@pytest.mark.parametrize("name", ["femnist", "shakespeare"])
def test_natural_datasets_open_within_five_seconds(name: str) -> None:
    read(name)
    began = time.monotonic()
    Partition.of(DATASETS[name], None, None, None, SEED).owners(DATASETS[name], read(name))
    assert time.monotonic() - began < 5


def test_table_2_is_realised_on_the_whole_datasets() -> None:
    for name in ("mnist", "fashion-mnist", "shakespeare"):
        read(name)
    for row in table2(Path(str(BASE))):
        if row.preset in ("mnist", "fashion-mnist", "femnist", "shakespeare"):
            assert row.printed is not None
            assert row.ours is not None
            assert row.ours.clients == row.printed.clients
            assert row.ours.rho_c == pytest.approx(row.printed.rho_c)
            assert row.ours.rho_s == pytest.approx(row.printed.rho_s, rel=0.001)
