"""The entry point of the processes that a run is made of: `python -m understudy.runtime.main gateway|node
…`. Before a run goes on with other code, `fit` tells whether its state can take that.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.candidate import settings_of
from understudy.runtime.process import Ending, leave_at_once, leave_failure, run_process
from understudy.runtime.settings import RunSettings


def main() -> None:
    parser = argparse.ArgumentParser(prog="understudy.runtime", description=__doc__)
    parser.add_argument("kind", choices=("gateway", "node", "fit"))
    parser.add_argument("folder", help="the run's folder, which holds run.json")
    parser.add_argument("name", nargs="?", default="gateway")
    parser.add_argument("--incarnation", type=int, default=1)
    parser.add_argument("--version", type=int, help="of the flow; the one that the run goes on with")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input closes")
    arguments = parser.parse_args()
    try:
        settings = settings_of(arguments.folder, arguments.version)
    except (EnvironmentFailed, UserError) as problem:
        # There is nothing yet that says where its log is.
        leave_failure(Path(arguments.folder), arguments.name, str(problem))
        sys.exit(problem.exit_code)
    if arguments.kind == "fit":
        code = run_process(
            "fit", settings, lambda _: _fit(settings, arguments.name), with_parent=arguments.with_parent
        )
    elif arguments.kind == "gateway":
        code = run_process(
            "gateway", settings, lambda e: _gateway(settings, e), with_parent=arguments.with_parent
        )
    else:
        code = run_process(
            arguments.name,
            settings,
            lambda e: _node(settings, arguments.name, arguments.incarnation, e),
            with_parent=arguments.with_parent,
        )
    leave_at_once(code)


def _gateway(settings: RunSettings, ending: Ending) -> None:
    from understudy.runtime.gateway.process import Gateway  # noqa: PLC0415 - a node does without it

    Gateway(settings, ending).run()


def _fit(settings: RunSettings, asked: str) -> None:
    from understudy.runtime.fit import answer  # noqa: PLC0415 - needs Spark

    answer(settings, asked)


def _node(settings: RunSettings, name: str, incarnation: int, ending: Ending) -> None:
    # A gateway does without Spark.
    from understudy.runtime.node.process import Node  # noqa: PLC0415

    made: list[Node] = []
    done = threading.Event()

    def make() -> None:
        try:
            made.append(Node(settings, name, incarnation, ending))
        except BaseException as problem:
            ending.fail(problem)
        finally:
            done.set()

    # Beside the main thread, which must hear at once that it is to end; Java then ends with this process.
    threading.Thread(target=make, name="starting", daemon=True).start()
    while not done.wait(0.05):
        if ending.asked:
            return
    if made:
        made[0].run()


if __name__ == "__main__":
    main()
