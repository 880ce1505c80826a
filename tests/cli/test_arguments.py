"""The arguments of `understudy`, and the messages for wrong ones."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from understudy.cli.main import main
from understudy.cli.parser import parser
from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.settings import RunSettings

COMMANDS = [
    "setup",
    "run",
    "stop",
    "upgrade",
    "demo",
    "status",
    "kill",
    "move",
    "drain",
    "check",
    "simulate",
    "explain",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    examples = [line.strip() for line in text.split("example:")[1].strip().splitlines()]
    assert examples
    for example in examples:
        program, *arguments = example.split()
        assert program == "understudy"
        assert parser().parse_args(arguments).command == command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "FLOW.py"),
        (["run", "f.py", "--policy", "prayer"], "prayer"),
        (["run", "f.py", "--nodes", "0"], "must be at least 1, not 0"),
        (["run", "f.py", "--nodes", "two"], "'two' is not a whole number"),
        (["run", "f.py", "--replicas", "1"], "must be from 2 to 9, not 1"),
        (["run", "f.py", "--heap", "448"], "must be at least 480"),
        (["run", "f.py", "--silence-ms", "100"], "must be at least 500"),
        (["run", "f.py", "--port", "70000"], "must be from 0 to 65535"),
        (["run", "f.py", "--zookeeper", "localhost"], "'localhost' is not HOST:PORT"),
        (["run", "f.py", "--seconds", "-1"], "must be a number above 0"),
        (["run", "f.py", "--snapshot-every", "0.01"], "must be 0, or a number of seconds from 0.1 on"),
        (["run", "f.py", "--snapshot-every", "soon"], "must be 0, or a number of seconds from 0.1 on"),
        (["kill", "node-1", "--signal", "HUG"], "HUG"),
        (["run", "f.py", "--partitions", "0"], "must be at least 1"),
        (["move", "sessions/0"], "NODE"),
        (["move", "sessions", "node-1"], "'sessions' is not a partition; write sessions/0"),
        (["move", "/0", "node-1"], "is not a partition"),
        (["move", "sessions/0:THIRD", "node-1"], "is not a partition"),
        (["move", "sessions/0:", "node-1"], "is not a partition"),
        (["move", "sessions:1", "node-1"], "is not a partition"),
        (["drain"], "NODE"),
        (["upgrade"], "FLOW.py"),
        (["upgrade", "f.py", "--trial", "soon"], "must be 0, or a number of seconds from 0.1 on"),
        (["simulate", "--policy", "magic"], "invalid choice: 'magic'"),
        (["check"], "HISTORY"),
        (["simulate", "--seeds", "0"], "must be at least 1"),
    ],
)
def test_wrong_arguments_end_with_2_and_name_what_is_wrong(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["drain", "node-1", "--undo", "a-run"],
        ["drain", "--undo", "node-1", "a-run"],
        ["drain", "node-1", "a-run", "--undo"],
        ["kill", "sender", "--signal", "STOP", "a-run"],
        ["move", "sessions/0", "node-1", "--no-wait", "a-run"],
    ],
)
def test_options_may_stand_anywhere(arguments: list[str]) -> None:
    assert parser().parse_args(arguments).folder == "a-run"


def test_what_a_command_does_not_know_is_reported_with_its_own_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["drain", "node-1", "a-run", "another"])
    said = capsys.readouterr().err
    assert "usage: understudy drain" in said
    assert "unrecognized arguments: another" in said


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"understudy {version('understudy')}\n"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sessions/0", (Partition("sessions"), None)),
        ("sessions+stats/0:2", (Partition("sessions+stats"), 2)),
        ("sessions/1:PRIM", (Partition("sessions", 1), 0)),
        ("sessions/1:SEC", (Partition("sessions", 1), 1)),
    ],
)
def test_a_copy_is_named_by_its_replica(text: str, meant: tuple[Partition, int | None]) -> None:
    assert parser().parse_args(["move", text, "node-1"]).partition == meant


def test_help_needs_neither_arrow_nor_spark() -> None:
    code = (
        "import sys; from understudy.cli.parser import parser; parser(); "
        "sys.exit(any(name in sys.modules for name in ('pyarrow', 'pyspark', 'kazoo')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FLOW_WITHOUT_SINK = """
import understudy as us
flow = us.Flow("idle")
flow.source("packets", us.Push("ts timestamp"), time="ts")
"""


@pytest.mark.parametrize("command", ["run", "explain"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        ("x = 1\n", "no flow in it"),
        ("def broken(:\n", "flow.py:1"),
        ("x = 1\nraise ValueError('on line two')\n", "flow.py:2: ValueError: on line two"),
        ("from pyspark.sql import functions as F\nF.col('a')\n", "do this inside the fragment"),
        (FLOW_WITHOUT_SINK, "has no sink"),
    ],
)
def test_a_bad_flow_file_is_reported_in_one_message_and_nothing_is_started(
    command: str,
    content: str | None,
    said: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (here / "flow.py").write_text(content)
    assert main([command, "flow.py"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not (here / "runs").exists()


GOOD_FLOW = """
import understudy as us
flow = us.Flow("copy")
source = flow.source("packets", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(source, time="ts")
def copy(packets):
    return packets

flow.sink(copy, us.JsonLines("out"))
"""


@pytest.fixture
def good_flow(here: Path) -> Path:
    file = here / "flow.py"
    file.write_text(GOOD_FLOW)
    return file


def test_a_folder_is_no_flow_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(here)]) == 2
    assert "this is a folder. Name the Python file" in capsys.readouterr().err


def test_a_run_folder_that_cannot_be_made_is_named_before_anything_starts(
    good_flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(good_flow), "--folder", "/proc/nowhere", "--plain"]) == 2
    assert "/proc/nowhere cannot be made" in capsys.readouterr().err


def test_explain_prints_the_flow(good_flow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(good_flow)]) == 0
    assert "fragment copy  <- packets" in capsys.readouterr().out


def test_a_pair_on_one_node_is_refused(good_flow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(good_flow), "--nodes", "1"]) == 2
    assert "policy 'pair' needs 2 nodes, not 1" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "flux", "--nodes", "1"], "policy 'flux' needs 2 nodes, not 1"),
        (["--policy", "pair", "--replicas", "3", "--nodes", "2"], "policy 'pair' needs 3 nodes, not 2"),
        (["--policy", "none", "--replicas", "2"], "policy 'none' always runs everything once"),
        (["--policy", "cluster", "--replicas", "3"], "Leave --replicas out, or choose --policy flux or pair"),
        (["--policy", "cluster", "--nodes", "3"], "needs a multiple of 2 nodes"),
        (["--policy", "cluster", "--standby", "1"], "replaces no node"),
        (["--policy", "pair", "--partitions", "2"], "policy 'pair' does not split fragments"),
    ],
)
def test_nodes_and_partitions_that_do_not_fit_the_policy_are_refused(
    arguments: list[str], said: str, good_flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(good_flow), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_run_does_not_begin_on_the_output_of_an_earlier_one(
    good_flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    Path("out", f"{7:020d}_{9:020d}.jsonl").write_text("{}\n")
    assert main(["run", str(good_flow)]) == 2
    assert "holds the output of an earlier run" in capsys.readouterr().err


def test_a_run_does_not_begin_without_the_files_that_it_reads(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lost.py").write_text(
        "import understudy as us\n"
        "flow = us.Flow('lost')\n"
        "rows = flow.source('rows', us.Files('nowhere', 'ts timestamp'), time='ts')\n"
        "@flow.fragment(rows, time='ts')\n"
        "def same(rows): return rows\n"
        "flow.sink(same, us.Console())\n"
    )
    assert main(["run", "lost.py"]) == 2
    assert f"source 'rows': there is no file or folder {here / 'nowhere'}." in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["stop"], ["kill", "node-1"], ["move", "sessions/0", "node-1"], ["drain", "node-1"]],
)
def test_without_any_run_a_command_that_needs_one_says_so(
    arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "There is no run under ./runs" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["kill", "node-1"], ["status"], ["stop"], ["drain", "node-1"]])
def test_a_copy_of_a_runs_folder_does_not_lead_to_the_original(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunSettings("run", "flow.py", str(tmp_path / "run"), "127.0.0.1:1").save()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert main([*command, str(tmp_path / "copy")]) == 2
    assert f"copy is a copy: the run's own folder is {tmp_path / 'run'}" in capsys.readouterr().err


def test_ctrl_c_in_a_command_gives_130(monkeypatch: pytest.MonkeyPatch, good_flow: Path) -> None:
    def interrupted(_path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.cli.explain.load", interrupted)
    assert main(["explain", str(good_flow)]) == 130


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--folder", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be made: Not a directory" in capsys.readouterr().err


def test_simulate_takes_replicas_where_the_policy_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--replicas", "3", "--seeds", "2"]) == 0
    assert "no failing" in capsys.readouterr().out
    assert main(["simulate", "--policy", "none", "--replicas", "3", "--seeds", "2"]) == 2
    assert "has no parameter 'replicas'" in capsys.readouterr().err


def test_simulate_sums_up_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--policy", "pair", "--seeds", "5", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "policy pair: 5 seeds" in out
    assert "no failing" in out
    assert "catch-ups" in out
    assert " restores" in out


def test_simulate_explores_a_flow_that_saves_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    explore = ["simulate", "--policy", "none", "--explore", "1", "--kills", "0"]
    assert main([*explore, "--saves", "1", "--power-failures", "1"]) == 0
    assert "1 saves and 1 power failures at any point" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--power-failures", "1"], "Without --saves nothing is left"),
        (["--policy", "cluster", "--saves", "1"], "saves no state"),
    ],
)
def test_simulate_loses_no_power_where_nothing_is_saved(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--explore", "1", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_failure_of_java_is_reported_without_its_stack(
    good_flow: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_path: str) -> None:
        raise EnvironmentFailed("node-1 failed: Insufficient driver memory\n\tat org.apache.spark.SparkEnv")

    monkeypatch.setattr("understudy.cli.explain.load", failing)
    assert main(["explain", str(good_flow)]) == 3
    assert capsys.readouterr().err == "understudy explain: node-1 failed: Insufficient driver memory\n"


def test_a_taken_port_is_reported_before_anything_starts(
    good_flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["run", str(good_flow), "--port", str(port)]) == 3
    err = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in err
    assert "choose another one" in err
    assert not Path("runs").exists()


def test_a_zookeeper_that_does_not_answer_is_reported_before_anything_starts(
    good_flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["run", str(good_flow), "--zookeeper", address]) == 3
    assert f"ZooKeeper does not answer at {address}" in capsys.readouterr().err
    assert not Path("runs").exists()
