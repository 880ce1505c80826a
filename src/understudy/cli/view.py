"""What a person sees while a run goes on: a live view in a terminal, lines of text elsewhere.

Everything in the live view has a place and a width of its own, so that nothing moves when a number gets
another digit. It fits 80 columns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from understudy.cli.picture import Figures, NodeLine, plural

#: Without news, a plain view prints the figures this often.
_LINE_EVERY_S = 5.0
#: Before there is a view, it says this often that it waits.
_STARTING_EVERY_S = 10.0
_COLOURS = {
    "ACTIVE": "green",
    "DEAD": "red",
    "STDBY": "yellow",
    "STDBY (ready)": "cyan",
    "draining": "yellow",
}
_Columns = tuple[tuple[str, int, JustifyMethod], ...]
_COLUMNS: _Columns = (
    ("node", 12, "left"),
    ("place", 9, "left"),
    ("state", 14, "left"),
    ("sends", 5, "left"),
    ("last buckets", 16, "right"),
    ("waiting", 7, "right"),
    ("rows in", 11, "right"),
)
#: Many copies need room; who sends is another one for each partition.
_PARTITIONED_COLUMNS: _Columns = (
    ("node", 12, "left"),
    ("copies", 27, "left"),
    ("state", 14, "left"),
    ("last buckets", 16, "right"),
    ("waiting", 7, "right"),
)


class RunView(Protocol):
    """Shows a run. `say` is for news, `show` for the current state."""

    def say(self, text: str) -> None: ...

    def show(self, epoch: int, nodes: Sequence[NodeLine], figures: Figures) -> None: ...

    def __enter__(self) -> RunView: ...

    def __exit__(self, *_: object) -> None: ...


def view_for(title: str, *, plain: bool) -> RunView:
    console = Console()
    return PlainView() if plain or not console.is_terminal else LiveView(title, console)


class LiveView:
    """A table that is drawn again in place, with news above it."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._live = Live(console=console, auto_refresh=False)
        self._began_s = time.monotonic()
        self._drawn: list[RenderableType] = []

    def say(self, text: str) -> None:
        # As it is: no bracket is markup, and a path that wraps can still be copied in one piece.
        self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, epoch: int, nodes: Sequence[NodeLine], figures: Figures) -> None:
        title = f"{self._title}   epoch {epoch}   {time.monotonic() - self._began_s:.0f} s"
        self._drawn = [
            _line(""),
            _line(title, "bold"),
            _table(nodes),
            *map(_line, _figure_lines(figures)),
        ]
        self._live.update(Group(*self._drawn, _line("Ctrl-C ends the run.", "dim")), refresh=True)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        # The last state of the run stays on the screen.
        self._live.update(Group(*self._drawn), refresh=True)
        self._live.__exit__(None, None, None)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _table(nodes: Sequence[NodeLine]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="underline")
    columns = _PARTITIONED_COLUMNS if any(line.holds_copies for line in nodes) else _COLUMNS
    for column, width, justify in columns:
        table.add_column(column, width=width, justify=justify, no_wrap=True, overflow="ellipsis")
    for line in nodes:
        cells: dict[str, str | Text] = {
            "node": line.node,
            "place": line.place,
            "copies": line.place,
            "state": Text(line.state, style=_COLOURS.get(line.state, _COLOURS.get(line.state[-5:], ""))),
            "sends": "yes" if line.sends else "",
            "last buckets": ""
            if line.group_ms is None
            else f"{line.group_buckets} in {line.group_ms:5.0f} ms",
            "waiting": "" if line.queued_buckets is None else str(line.queued_buckets),
            "rows in": "" if line.rows_in is None else str(line.rows_in),
        }
        table.add_row(*(cells[column] for column, _, _ in columns))
    return table


def _figure_lines(figures: Figures) -> list[str]:
    last = "-" if figures.last_output_s is None else f"{figures.last_output_s:.1f} s ago"
    return [
        f"in  {_rows(figures.rows_in or 0, figures.rows_in_per_s)}    latency     {figures.latency:>10}",
        f"out {_rows(figures.rows_out, figures.rows_out_per_s)}    last output {last:>10}",
        f"buffered {plural(figures.buffered_buckets, 'bucket')}, {figures.buffered_mb}; "
        f"late {plural(figures.late, 'row')}{figures.remarks}",
        *([f"state {figures.stored}"] if figures.stored else []),
    ]


def _rows(rows: int, rows_per_s: float | None) -> str:
    rate = "-" if rows_per_s is None else f"{rows_per_s:.0f} rows/s"
    return f"{rate:>14}  {rows:>12} rows"


class PlainView:
    """A line when a node's state changes, and one with figures now and then."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._last_s = 0.0

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def show(self, epoch: int, nodes: Sequence[NodeLine], figures: Figures) -> None:
        states = {
            line.node: f"{line.state}{_placed(line)}{', sends' if line.sends else ''}" for line in nodes
        }
        for node, state in states.items():
            if self._states.get(node) != state:
                self.say(f"{node}: {state}  (epoch {epoch})")
        self._states = states
        if not epoch and time.monotonic() - self._last_s >= _STARTING_EVERY_S:
            if self._last_s:
                self.say("... still waiting for the first view, which gives the nodes their places")
            self._last_s = time.monotonic()
        if epoch and time.monotonic() - self._last_s >= _LINE_EVERY_S:
            self._last_s = time.monotonic()
            self.say(figures.sentence)

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def _placed(line: NodeLine) -> str:
    if line.place == "-":
        return ""
    return f" with {line.place}" if line.holds_copies else f" as {line.place}"
