"""What a person sees while a run goes on: a live view in a terminal, lines of text elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from understudy.cli.picture import Figures, NodeLine

#: Without news, a plain view says this often how things are.
_LINE_EVERY_S = 5.0
_COLOURS = {"ACTIVE": "green", "DEAD": "red", "STDBY": "yellow", "STDBY (ready)": "cyan"}


class View(Protocol):
    """Shows a run. `say` is for news, `show` for how things are now."""

    def say(self, text: str) -> None: ...

    def show(self, epoch: int, nodes: Sequence[NodeLine], figures: Figures) -> None: ...

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...


def view_for(title: str, *, plain: bool) -> View:
    console = Console()
    return PlainView() if plain or not console.is_terminal else LiveView(title, console)


class LiveView:
    """A table that is drawn again in place, with news above it."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._live = Live(console=console, auto_refresh=False)
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        self._live.console.print(text)

    def show(self, epoch: int, nodes: Sequence[NodeLine], figures: Figures) -> None:
        self._live.update(self._drawn(epoch, nodes, figures), refresh=True)

    def _drawn(self, epoch: int, nodes: Sequence[NodeLine], figures: Figures) -> Group:
        table = Table(
            title=f"{self._title}   epoch {epoch}   {time.monotonic() - self._began_s:.0f} s", expand=False
        )
        for column in ("node", "place", "state", "sends", "last group", "waiting", "rows in"):
            table.add_column(column)
        for line in nodes:
            table.add_row(
                line.node,
                line.place,
                Text(line.state, style=_COLOURS.get(line.state, "")),
                "yes" if line.sends else "",
                line.group,
                "" if line.queued_buckets is None else str(line.queued_buckets),
                "" if line.rows_in is None else str(line.rows_in),
            )
        return Group(table, Text(figures.sentence), Text("Ctrl-C ends the run.", style="dim"))

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.__exit__(None, None, None)


class PlainView:
    """A line when a node's state changes, and one with figures now and then."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._last_s = 0.0

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def show(self, epoch: int, nodes: Sequence[NodeLine], figures: Figures) -> None:
        states = {
            line.node: f"{line.state}{f' as {line.place}' if line.place != '-' else ''}"
            f"{', sends' if line.sends else ''}"
            for line in nodes
        }
        for node, state in states.items():
            if self._states.get(node) != state:
                self.say(f"{node}: {state}  (epoch {epoch})")
        self._states = states
        if epoch and time.monotonic() - self._last_s >= _LINE_EVERY_S:
            self._last_s = time.monotonic()
            self.say(figures.sentence)

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: Any) -> None:
        pass
