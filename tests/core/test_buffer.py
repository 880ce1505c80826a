"""The marked buffer against a naive model of the Flux paper's figure 3."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.core.bucket import Bucket
from understudy.core.buffer import Acks, MarkedBuffer
from understudy.core.view import Slot

BOTH = (Slot.PRIM, Slot.SEC)
PROD = "PROD"


class Figure3:
    """Entries as sets of marks, looked through from the start each time."""

    def __init__(self, acks: Acks) -> None:
        self.acks = acks
        self.marks: dict[int, set[object]] = {}
        self.gone: set[int] = set()
        self.sent: dict[Slot, set[int]] = {dest: set() for dest in BOTH}
        self.through: dict[Slot, int] = dict.fromkeys(BOTH, 0)

    def _has(self, number: int, mark: object) -> bool:
        return mark in self.marks[number] or (mark in BOTH and number <= self.through[mark])

    def put(self, number: int) -> None:
        self.marks.setdefault(number, set()).add(PROD)
        self._evict()

    def ack(self, number: int, dest: Slot) -> None:
        if self.acks is Acks.CUMULATIVE:
            self.through[dest] = max(self.through[dest], number)
        elif number not in self.gone:
            self.marks.setdefault(number, set()).add(dest)
        self._evict()

    def _evict(self) -> None:
        for number in list(self.marks):
            if all(self._has(number, mark) for mark in (PROD, *BOTH)):
                del self.marks[number]
                self.gone.add(number)

    def kept(self) -> list[int]:
        return sorted(number for number, marks in self.marks.items() if PROD in marks)

    def peek(self, dest: Slot) -> int | None:
        undelivered = (n for n in self.kept() if n not in self.sent[dest] and not self._has(n, dest))
        return next(undelivered, None)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3)),
        st.tuples(st.just("ack"), st.sampled_from(BOTH), st.integers(1, 25)),
        st.tuples(st.just("send"), st.sampled_from(BOTH)),
        st.tuples(st.just("rewind"), st.sampled_from(BOTH)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(OPERATIONS, st.sampled_from(list(Acks)))
def test_a_buffer_keeps_and_sends_what_figure_3_keeps_and_sends(
    operations: list[tuple[object, ...]], acks: Acks
) -> None:
    buffer, model, produced = MarkedBuffer(BOTH, acks), Figure3(acks), 0
    for operation in operations:
        match operation:
            case ("put", int(step)):
                # Acknowledged one by one, numbers do not skip.
                produced += step if acks is Acks.CUMULATIVE else 1
                buffer.put(Bucket(produced), BOTH)
                model.put(produced)
            case ("ack", Slot() as dest, int(number)):
                # Only what exists or is yet to come can be acknowledged, never a number that was skipped.
                buffer.ack(number, dest, BOTH)
                if acks is Acks.CUMULATIVE or number > produced or number in model.marks:
                    model.ack(number, dest)
            case ("send", Slot() as dest):
                if buffer.peek(dest) is not None:
                    model.sent[dest].add(buffer.peek(dest).number)
                    buffer.advance(dest)
            case ("rewind", Slot() as dest):
                buffer.rewind(dest)
                model.sent[dest].clear()
        buffer.check(BOTH)
        assert [bucket.number for bucket in buffer] == model.kept()
        for dest in BOTH:
            peeked = buffer.peek(dest)
            assert (peeked.number if peeked is not None else None) == model.peek(dest)


def test_a_number_acknowledged_before_it_is_produced_is_dropped_when_put() -> None:
    for acks in Acks:
        buffer = MarkedBuffer((Slot.PRIM,), acks)
        buffer.ack(5, Slot.PRIM, {Slot.PRIM})
        buffer.put(Bucket(5), {Slot.PRIM})
        assert len(buffer) == 0
        assert buffer.peek(Slot.PRIM) is None


def test_what_was_received_is_not_sent_again_but_kept_until_it_is_acknowledged() -> None:
    buffer = MarkedBuffer((Slot.PRIM,))
    buffer.put(Bucket(1), {Slot.PRIM})
    buffer.rewind(Slot.PRIM, after=2)
    buffer.put(Bucket(2), {Slot.PRIM})
    buffer.put(Bucket(3), {Slot.PRIM})
    assert [bucket.number for bucket in buffer] == [1, 2, 3]
    assert buffer.peek(Slot.PRIM) == Bucket(3)
