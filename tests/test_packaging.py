"""The wheel works by itself: installed away from the checkout, it imports, and its command runs.

The checkout cannot help: the new environment sees the dependencies of this one through a path file, which makes modules
there importable but does not follow the path files in it, the link to an editable install among them.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that knows nothing of the checkout, and return what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    env["NO_COLOR"] = "1"
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, so that both have to be complete."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the build failed:\n{done.stdout}\n{done.stderr}"
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; dependencies come from the environment of the tests."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=True)
    pip = (str(home / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    run(*pip, "--no-index", "--no-deps", wheel, cwd=home)
    # Only now: had pip seen the other environment, it would have found fedforget there and left the wheel alone.
    (site,) = home.glob("lib/python*/site-packages")
    others = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("\n".join(others) + "\n")
    return home


def test_the_wheel_ships_the_licence_and_the_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "fedforget/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    strangers = [n for n in names if not n.startswith("fedforget/") and ".dist-info/" not in n]
    assert strangers == []


def test_the_wheel_ships_every_module(wheel: Path) -> None:
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert shipped == {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}


def test_the_package_is_imported_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "bin" / "python", "-c", "import fedforget; print(fedforget.__file__)", cwd=tmp_path)
    assert Path(where).resolve().is_relative_to(installed.resolve())


def test_the_metadata_and_the_package_agree_on_the_version(installed: Path, tmp_path: Path) -> None:
    code = "import importlib.metadata as m, fedforget as f; print(m.version('fedforget'), f.__version__)"
    told, said = run(installed / "bin" / "python", "-c", code, cwd=tmp_path).split()
    assert told == said


def test_the_command_runs(installed: Path, wheel: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "fedforget"
    assert wheel.name.split("-")[1] in run(command, "--version", cwd=tmp_path)
    assert "demo" in run(command, "--help", cwd=tmp_path)
