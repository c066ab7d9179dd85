"""The public list is what is exposed, importing it is cheap, and no room looks up."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import prm

ROOT = Path(prm.__file__).parent
FLOORS = [
    {"errors"},
    {"data"},
    {"eval", "shaping", "model"},
    {"training", "scoring"},
    {"rl"},
    {"study"},
    {"cli"},
    {"__main__"},
]


def floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        rooms |= {m.split(".")[1] for m in modules if m.startswith("prm.")}
    return rooms


def test_a_room_imports_from_lower_floors_only() -> None:
    files = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]
    assert len(files) > 30
    for path in files:
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for other in imported_rooms(path) - {room}:
            assert floor(other) < floor(room), f"{path} imports prm.{other}"


def test_every_public_name_loads_and_is_listed_once() -> None:
    assert len(prm.__all__) == len(set(prm.__all__)) <= 25
    for name in prm.__all__:
        assert getattr(prm, name).__module__.startswith("prm.")
    exposed = {name for name in dir(prm) if not name.startswith("_")}
    imported = {"annotations", "importlib", "TYPE_CHECKING", "Any"}
    rooms = {path.stem for path in ROOT.iterdir()}
    assert exposed - imported - rooms == set(prm.__all__) - rooms


def test_import_and_light_commands_do_not_load_torch() -> None:
    heavy = "torch transformers lightning sklearn datasets matplotlib"
    for statement in (
        "import prm",
        "from prm import Trace, read_traces, write_traces",
        "from prm.cli import main; main(['--version'])",
        "import prm.data.convert, prm.data.labels, prm.eval.evaluate_steps, prm.rl.generate",
    ):
        code = f"{statement}; import sys; print([m for m in {heavy.split()} if m in sys.modules])"
        loaded = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert loaded.stdout.splitlines()[-1] == "[]", statement


def test_types_are_shipped() -> None:
    assert (ROOT / "py.typed").is_file()
