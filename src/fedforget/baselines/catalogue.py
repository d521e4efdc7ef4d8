"""The methods that the experiments compare, by name."""

from __future__ import annotations

from collections.abc import Mapping

from fedforget.baselines.fats import Fats
from fedforget.baselines.frs import Frs
from fedforget.baselines.method import Method

METHODS: Mapping[str, type[Method]] = {Fats.name: Fats, Frs.name: Frs}
