"""The examples in the docstrings of algorithm and planner hold, and every formula of the planner has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import fedforget.algorithm
import fedforget.data
import fedforget.planner

MODULES = [
    f"{room.__name__}.{module.name}"
    for room in (fedforget.algorithm, fedforget.data, fedforget.planner)
    for module in pkgutil.iter_modules(room.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", ["costs", "geometric", "storage", "windows", "search"])
def test_every_formula_has_an_example(name: str) -> None:
    module = importlib.import_module(f"fedforget.planner.{name}")
    functions = [
        found
        for title, found in inspect.getmembers(module, inspect.isfunction)
        if found.__module__ == module.__name__ and not title.startswith("_")
    ]
    assert functions
    assert [function.__name__ for function in functions if ">>>" not in (function.__doc__ or "")] == []
