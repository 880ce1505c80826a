"""How the command ends, as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.settings import RunSettings

#: A command whose libraries abort when the process ends in order, as Flight does with a thread inside it.
PROGRAM = """
import atexit, ctypes, sys
from understudy.cli import main as module

def execute(_arguments):
    atexit.register(lambda: print("tidied up"))
    c = ctypes.CDLL(None)
    c.__cxa_atexit(c.abort, None, None)
    print("done", end=", ")
    return 3

module.import_module = lambda _name: type("Command", (), {"execute": staticmethod(execute)})
sys.argv = ["understudy", "status"]
sys.exit(module.command())
"""

#: A command that logs onto a full disk.
LOGGING = """
import logging, sys
from understudy.cli.folders import log_into
from understudy.runtime.settings import RunSettings

log_into(RunSettings("run", "flow.py", sys.argv[1], "127.0.0.1:1"))
logging.warning("lost")
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_libraries_that_end_badly_do_not_change_the_exit_code() -> None:
    ended = run("-c", PROGRAM)
    assert (ended.returncode, ended.stdout) == (3, "done, tidied up\n")


def test_a_gateway_that_never_answers_is_reported_with_the_exit_code_for_it(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        RunSettings("run", "flow.py", str(tmp_path), "127.0.0.1:1", gateway_port=port).save()
        lock = lock_of_run(tmp_path)
        lock.take()
        ended = run("-m", "understudy.cli.main", "status", str(tmp_path))
        lock.release()
    assert ended.returncode == 3
    assert "nothing was heard within 5 s" in ended.stderr


def test_wrong_arguments_keep_their_exit_code() -> None:
    assert run("-m", "understudy.cli.main", "status", "--magic").returncode == 2


def test_a_line_that_a_full_disk_does_not_take_prints_no_stack_trace(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "understudy.log").symlink_to("/dev/full")
    ended = run("-c", LOGGING, str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")


TALKING = """
import logging, sys
from pathlib import Path
from understudy.cli import folders
from understudy.runtime.settings import RunSettings
folders.LOG_BYTES_MAX = 1_000
folders.log_into(RunSettings("run", "flow.py", sys.argv[1], "127.0.0.1:1"))
for _ in range(200):
    logging.warning("a line")
"""


def test_the_log_of_the_process_that_starts_the_others_is_bounded(tmp_path: Path) -> None:
    assert run("-c", TALKING, str(tmp_path)).returncode == 0
    sizes = [file.stat().st_size for file in (tmp_path / "logs").iterdir()]
    assert len(sizes) == 3
    assert max(sizes) <= 1_000
