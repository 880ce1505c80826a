"""The streams of a flow: what every fragment can read.

A source declares its columns. Those of a fragment's output are known once Spark has analysed the fragment
over its inputs' columns, so fragments are analysed in the order in which rows pass them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from understudy.engine.query import Input
from understudy.flow.flow import Flow
from understudy.flow.model import Fragment

#: Analyses a fragment over its inputs and returns the columns of its output.
Analyse = Callable[[Fragment, Mapping[str, Input]], pa.Schema]


def streams_of(flow: Flow, analyse: Analyse) -> dict[str, Input]:
    """Every source and fragment by name, as an input of those that read it. Analyses each fragment once."""
    known = {name: Input(source.arrow_schema, source.time) for name, source in flow.sources.items()}
    for name, fragment in flow.fragments.items():
        columns = analyse(fragment, {given: known[given] for given in fragment.inputs})
        known[name] = Input(columns, fragment.time)
    return known
