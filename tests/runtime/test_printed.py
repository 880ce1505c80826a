"""What processes print is bounded while they hold the file open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from understudy.runtime.printed import bound_printed

PRINTED = ("logs/node-1.out.log", "logs/node-1.jvm.log", "zookeeper/server.log")


@pytest.mark.parametrize("name", PRINTED)
def test_a_full_file_is_begun_anew_and_the_former_one_stays(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir()
    with file.open("ab", buffering=0) as held:
        for number in range(100):
            held.write(b"%09d\n" % number)
            bound_printed(tmp_path, bytes_max=200)
            assert sum(each.stat().st_size for each in file.parent.iterdir()) < 2 * 200
    before = file.with_name(f"{file.name}.1")
    assert sorted(file.parent.iterdir()) == [file, before]
    assert (before.read_text() + file.read_text()).splitlines()[-1] == "000000099"
    assert before.read_text().splitlines()[0] == "000000080"


def test_logs_that_bound_themselves_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node-1.log").write_text("x" * 500)
    bound_printed(tmp_path, bytes_max=200)
    assert [each.name for each in (tmp_path / "logs").iterdir()] == ["node-1.log"]


def test_a_full_disk_gets_its_room_back_and_keeps_no_part_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: Path, copy: Path) -> None:
        copy.write_text("x" * 100)
        raise OSError("No space left on device")

    file = tmp_path / PRINTED[0]
    file.parent.mkdir()
    file.write_text("x" * 500)
    monkeypatch.setattr(shutil, "copyfile", full)
    bound_printed(tmp_path, bytes_max=200)
    assert {each.name: each.stat().st_size for each in file.parent.iterdir()} == {file.name: 0}
