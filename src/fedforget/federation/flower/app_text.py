"""The app without code that a command submits to Flower: it names the components, which are in ``fedforget.flower``.

Flower loads components by name, in processes of its own, so they are named here and not imported.
"""

from __future__ import annotations

_COMPONENTS = "fedforget.flower.relays"
_TEXT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "{description}"
license = "MIT"
dependencies = ["{dependency}>=1.41"]

[tool.flwr.app]
publisher = "fedforget"

[tool.flwr.app.components]
serverapp = "{components}:{serverapp}"
clientapp = "{components}:built_in"

[tool.flwr.app.config]
socket = ""
"""


def app_text(name: str, description: str, *, dependency: str, serverapp: str) -> str:
    """Return the ``pyproject.toml`` of the app."""
    return _TEXT.format(
        name=name, description=description, dependency=dependency, serverapp=serverapp, components=_COMPONENTS
    )
