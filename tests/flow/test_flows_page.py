"""docs/flows.md: its flow loads, and it names every option that there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import understudy as us
from understudy.flow.flow import Flow

PAGE = (Path(__file__).parents[2] / "docs" / "flows.md").read_text()


def test_the_flow_of_the_page_is_valid() -> None:
    flow_file = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    names: dict[str, object] = {"__name__": "flow_file"}
    exec(flow_file, names)
    flow = names["flow"]
    assert isinstance(flow, Flow)
    flow.validate()
    assert list(flow.sinks) == ["views", "priced"]


def test_the_page_names_every_option_of_a_source_and_every_kind() -> None:
    options = set(inspect.signature(Flow.source).parameters) - {"self", "name", "kind"}
    for kind in (us.Push, us.Files, us.Generator, us.Parquet, us.JsonLines, us.Console, us.Callback):
        assert f"us.{kind.__name__}" in PAGE
        options |= set(inspect.signature(kind).parameters)
    missing = {each for each in options if not re.search(rf"\b{each}\b", PAGE)}
    assert not missing
