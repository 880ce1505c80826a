"""Dependencies point one way, and the core stays pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import understudy

ROOT = Path(understudy.__file__).parent
#: What each package may import of ours. Whoever is not listed may import anything.
ALLOWED = {
    "flow": {"flow"},
    "core": {"core"},
    "engine": {"engine", "flow", "core.bucket", "core.errors", "core.shape"},
    "history": {"history", "core"},
    "sim": {"sim", "core", "history"},
    "runtime": {"runtime", "engine", "core", "flow", "history"},
}
IMPURE = {"time", "random", "threading", "socket", "asyncio", "os", "subprocess", "secrets", "datetime"}


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


def test_only_the_engine_and_the_demonstrations_flow_import_pyspark() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in {"engine", "demo"}
        and any(name.split(".")[0] == "pyspark" for name in imports(path))
    ]
    assert wrong == []
