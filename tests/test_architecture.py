"""Dependencies point one way, and the core stays pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import understudy

ROOT = Path(understudy.__file__).parent
#: The packages of ours that each package may import. A package that is not listed may import all of them.
ALLOWED = {
    "flow": {"flow"},
    "core": {"core"},
    "engine": {"engine", "flow", "core.bucket", "core.errors", "core.shape"},
    "history": {"history", "core"},
    "sim": {"sim", "core", "history"},
    "runtime": {"runtime", "engine", "core", "flow", "history"},
}
IMPURE = {
    *("time", "datetime", "random", "secrets", "uuid"),
    *("threading", "multiprocessing", "concurrent", "asyncio", "queue"),
    *("os", "io", "pathlib", "tempfile", "shutil", "socket", "subprocess", "signal", "logging"),
}
#: The rooms of the core, lowest first: each may import itself and those before it.
ROOMS = ["errors bucket", "timers machine", "shape", "view", "edge", "replica", "turning host", "driver"]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_it_may(package: str) -> None:
    assert files(package)
    wrong = []
    for path in files(package):
        for name in imports(path):
            inside = name.removeprefix("understudy.")
            may = any(inside == each or inside.startswith(f"{each}.") for each in ALLOWED[package])
            if name.startswith("understudy.") and not may:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_the_core_imports_no_clock_no_chance_no_thread_and_no_network() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("core")
        for name in imports(path)
        if name.split(".")[0] in IMPURE
    ]
    assert wrong == []


def test_the_rooms_of_the_core_import_only_lower_ones() -> None:
    level = {room: at for at, rooms in enumerate(ROOMS) for room in rooms.split()}
    found = {path.relative_to(ROOT / "core").parts[0].removesuffix(".py") for path in files("core")}
    assert found - {"__init__"} == level.keys(), "every room has its place"
    wrong = []
    for path in files("core"):
        room = path.relative_to(ROOT / "core").parts[0].removesuffix(".py")
        for name in imports(path):
            if name.startswith("understudy.core.") and level[name.split(".")[2]] > level[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_the_core_checks_itself_by_code_that_no_option_strips() -> None:
    """An `assert` may tell a type checker what is known; it must not be the only word on anything else."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in files("core")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and "is not None" not in ast.unparse(node.test)
    ]
    assert wrong == []


def test_only_the_engine_and_the_demonstrations_flow_import_pyspark() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in {"engine", "demo"}
        and any(name.split(".")[0] == "pyspark" for name in imports(path))
    ]
    assert wrong == []
