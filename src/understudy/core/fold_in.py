"""When a newcomer may be folded in: the rule that every end of a connection shares (Flux paper, figures
5-(6), 5-(8)).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from understudy.core.view import Slot, Status


def spoken_for(
    status: Mapping[Slot, Status], version: Mapping[Slot, int | None], attached: Container[Slot]
) -> Slot | None:
    """The standby whose checkpoint it and the active copy have both named, in whatever order.

    If the active copy is dead, the newcomer's word is enough: nobody can say more.
    """
    for slot, state in status.items():
        said = version[slot]
        if state is not Status.STDBY or said is None or slot not in attached:
            continue
        if status.get(slot.other, Status.DEAD) is Status.DEAD or version[slot.other] == said:
            return slot
    return None
