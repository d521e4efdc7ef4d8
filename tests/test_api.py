"""The public API is what the document lists: names, arguments with their defaults, fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import fedforget

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_public_name_is_listed_and_can_be_imported() -> None:
    imported = re.search(r"from fedforget import \((.*?)\)", PAGE, re.DOTALL)
    assert imported is not None
    listed = [name.strip() for name in imported[1].split(",") if name.strip()]
    assert listed == sorted(listed, key=lambda name: (name.startswith("__") or name.islower(), name))
    assert set(listed) == set(fedforget.__all__)
    assert all(getattr(fedforget, name) for name in listed)


def written(signature: inspect.Signature) -> str:
    """A signature as the page writes it."""
    parts, keyword_only = list[str](), False
    for parameter in signature.parameters.values():
        if parameter.name in {"self", "names"}:  # the last is for the built-in datasets
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            parts, keyword_only = [*parts, "*"], True
        default = parameter.default
        if default is inspect.Parameter.empty:
            parts.append(parameter.name)
        else:
            shown = (
                f'"{default}"' if isinstance(default, str) else f"{default:g}" if type(default) is float else default
            )
            parts.append(f"{parameter.name}={shown}")
    return f"({', '.join(parts)})"


def test_the_signature_of_run_is_the_listed_one() -> None:
    assert f"`Run{written(inspect.signature(fedforget.Run))}`" in PAGE


def methods() -> list[str]:
    return [name for name, value in vars(fedforget.Run).items() if inspect.isfunction(value) and name[0] != "_"]


@pytest.mark.parametrize("name", methods())
def test_every_method_of_run_is_listed_with_its_arguments(name: str) -> None:
    assert f"| `{name}{written(inspect.signature(getattr(fedforget.Run, name)))}` |" in PAGE


@pytest.mark.parametrize("name", ["Receipt", "ReceiptCheck", "Status", "Verification", "ForgettingCost"])
def test_every_result_field_is_listed(name: str) -> None:
    entry = re.search(rf"^`{name}`\n: (.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert entry is not None
    fields = {field.name for field in dataclasses.fields(getattr(fedforget, name))}
    fields |= {each for each, value in vars(getattr(fedforget, name)).items() if isinstance(value, property)}
    assert set(re.findall(r"`(\w+)`", entry[1])) == fields


@pytest.mark.parametrize("name", ["LocalOptimizer", "ServerOptimizer"])
def test_the_optimisers_have_the_listed_defaults(name: str) -> None:
    kind = getattr(fedforget, name)
    values = ", ".join(
        f'{field.name}="{field.default}"' if isinstance(field.default, str) else f"{field.name}={field.default}"
        for field in dataclasses.fields(kind)
    )
    assert f"`{name}({values})`" in PAGE


def test_every_public_name_and_method_says_what_it_does() -> None:
    missing = []
    for name in fedforget.__all__:
        value = getattr(fedforget, name)
        if not callable(value):
            continue
        missing += [name] * (not inspect.getdoc(value))
        for each, member in vars(value).items() if inspect.isclass(value) else ():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and not each.startswith("_") and not inspect.getdoc(function):
                missing.append(f"{name}.{each}")
    assert not missing
