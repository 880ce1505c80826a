"""Loading a flow file: the one flow, or an error with file and line."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from understudy.flow.errors import FlowError
from understudy.flow.loading import load

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
import understudy as us

@dataclass
class Setting:
    size: int = 3

flow = us.Flow("good")
source = flow.source("s", us.Push("ts timestamp"), time="ts")

@flow.fragment(source, time="ts")
def kept(rows):
    return rows

flow.sink(kept, us.Console())
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "my_flow.py"
    file.write_text(text)
    return file


def test_the_one_flow_is_found(tmp_path: Path) -> None:
    flow = load(written(tmp_path, GOOD + "\nagain = flow\n"))
    assert flow.name == "good"
    assert list(flow.fragments) == ["kept"]


def test_a_neighbour_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_my_flow.py").write_text("NAME = 'from next door'")
    flow = load(written(tmp_path, "from neighbour_of_my_flow import NAME\n" + GOOD.replace('"s"', "NAME[:4]")
                        .replace("from __future__ import annotations\n", "")))  # fmt: skip
    assert list(flow.sources) == ["from"]


def test_functions_of_the_file_are_not_tied_to_a_module_that_workers_lack(tmp_path: Path) -> None:
    flow = load(written(tmp_path, GOOD))
    function = flow.fragments["kept"].function
    assert function.__module__ not in sys.modules
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(function)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "no flow in it"),
        (
            GOOD + '\nother = us.Flow("other")',
            "2 flows in it, but a run takes one: flow ('good'), other ('other')",
        ),
        (GOOD.replace("flow.sink(kept, us.Console())", ""), "has no sink"),
        ("\n\ndef broken(:\n  pass", "my_flow.py:3: invalid syntax"),
        ("def f():\n    return 1 / 0\n\nf()", "my_flow.py:2: ZeroDivisionError: division by zero"),
        ("import understudy as us\n\nus.Flow('a b')", "my_flow.py:3: flow: 'a b' is not a name"),
        ("import sys\nsys.exit(3)", "my_flow.py:2: SystemExit: 3"),
        ("import no_such_module_anywhere", "my_flow.py:1: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(FlowError) as raised:
        load(written(tmp_path, text))
    assert says in str(raised.value)
    assert str(tmp_path / "my_flow.py") in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match=r"nowhere\.py: there is no such file"):
        load(tmp_path / "nowhere.py")


def test_neither_the_package_nor_a_flow_imports_spark() -> None:
    code = (
        "import sys, understudy; assert 'pyarrow' not in sys.modules; "
        "import understudy.flow.loading; understudy.Flow; sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
