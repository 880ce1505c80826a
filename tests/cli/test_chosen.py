"""The settings of a run that goes on: as they were unless an option says otherwise, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import understudy as us
from understudy.cli.chosen import chosen_settings
from understudy.cli.parser import parser
from understudy.flow.policy import policy_named
from understudy.runtime.process import begun_file, finished_file
from understudy.runtime.settings import RunSettings

FLOW = us.Flow("copy")


def chosen(folder: Path, former: RunSettings | None, *options: str) -> RunSettings:
    arguments = parser().parse_args(["run", str(folder / "flow.py"), *options])
    return chosen_settings(arguments, FLOW, folder, former)


def run_in(folder: Path, policy: str = "pair", **more: object) -> RunSettings:
    """A run that has begun, with nothing as it usually is."""
    begun_file(folder).touch()
    parameters = {"replicas": 3} if policy in ("pair", "flux") else {}
    usual = RunSettings(
        run="run",
        flow="copy",
        flow_path=str(folder / "flow.py"),
        folder=str(folder),
        zookeeper="127.0.0.1:99",
        policy=policy_named(policy, silence_ms=3_000, **parameters),
        nodes=5,
        standby=2,
        gateway_port=4_711,
        heap_mb=777,
        history=False,
        snapshot_every_ms=2_500,
        store=str(folder / "store"),
        snapshots_kept=3,
        generation=4,
    )
    return replace(usual, **more)  # type: ignore[arg-type]


# --- a new run ----------------------------------------------------------------------------------------------


def test_a_new_run_is_as_its_options_say(tmp_path: Path) -> None:
    plain = chosen(tmp_path, None)
    assert (plain.run, plain.flow, plain.folder) == (tmp_path.name, "copy", str(tmp_path))
    assert (plain.policy, plain.nodes, plain.standby) == (policy_named("pair"), 2, 1)
    assert (plain.snapshot_every_ms, plain.store, plain.generation, plain.saves) == (10_000, "", 1, True)
    options = ["--snapshot-every", "0.5", "--store", "s3://bucket/path", "--heap", "800", "--port", "99"]
    other = chosen(tmp_path, None, *options, "--no-history", "--policy", "flux", "--partitions", "7")
    assert (other.snapshot_every_ms, other.store, other.heap_mb) == (500, "s3://bucket/path", 800)
    assert (other.gateway_port, other.history, other.partition_count) == (99, False, 7)


def test_a_store_that_is_a_folder_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert chosen(tmp_path, None, "--store", "here").store == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "cluster", "--store", "there"], "policy 'cluster' is a baseline and saves no state"),
        (["--policy", "cluster", "--snapshot-every", "5"], "Leave --snapshot-every and --store out"),
        (["--snapshot-every", "0", "--store", "there"], "With --snapshot-every 0 nothing is saved"),
    ],
)
def test_a_store_for_nothing_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    with pytest.raises(us.UserError, match=said):
        chosen(tmp_path, None, *options)


def test_a_baseline_may_be_told_to_save_nothing(tmp_path: Path) -> None:
    assert not chosen(tmp_path, None, "--policy", "cluster", "--snapshot-every", "0").saves


# --- a run that goes on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [[], ["--policy", "pair"]], ids=["without", "with the policy that it has"]
)
def test_a_run_that_goes_on_is_as_it_was(tmp_path: Path, options: list[str]) -> None:
    former = run_in(tmp_path)
    assert chosen(tmp_path, former, *options) == replace(former, crowd=None, own_zookeeper=False)


def test_a_zookeeper_of_its_own_is_started_anew(tmp_path: Path) -> None:
    former = run_in(tmp_path, own_zookeeper=True)
    again = chosen(tmp_path, former)
    assert (again.zookeeper, again.own_zookeeper) == ("", False)


def test_options_change_what_the_state_does_not_depend_on(tmp_path: Path) -> None:
    options = ["--nodes", "6", "--standby", "0", "--heap", "900", "--port", "0", "--silence-ms", "900"]
    more = ["--zookeeper", "10.0.0.1:5", "--snapshot-every", "7", "--no-history"]
    again = chosen(tmp_path, run_in(tmp_path, history=True), *options, *more)
    assert (again.nodes, again.standby, again.heap_mb, again.gateway_port) == (6, 0, 900, 0)
    assert (again.policy, again.zookeeper) == (policy_named("pair", replicas=3, silence_ms=900), "10.0.0.1:5")
    assert (again.snapshot_every_ms, again.history) == (7_000, False)


def test_other_replicas_bring_their_own_number_of_nodes(tmp_path: Path) -> None:
    again = chosen(tmp_path, run_in(tmp_path), "--replicas", "2")
    assert (again.policy, again.nodes) == (policy_named("pair", silence_ms=3_000), 2)
    none = chosen(tmp_path, run_in(tmp_path), "--policy", "none")
    assert (none.policy, none.nodes, none.standby) == (policy_named("none", silence_ms=3_000), 1, 0)


def test_the_flow_may_be_in_another_file_by_now(tmp_path: Path) -> None:
    former = run_in(tmp_path, flow_path="/elsewhere/flow.py")
    assert chosen(tmp_path, former).flow_path == str(tmp_path / "flow.py")


@pytest.mark.parametrize("options", [[], ["--nodes", "9"], ["--partitions", "5"]])
def test_partitions_stay_as_many_as_the_state_is_cut_into(tmp_path: Path, options: list[str]) -> None:
    """They were as many as nodes, so another number of nodes would change them."""
    assert chosen(tmp_path, run_in(tmp_path, "flux"), *options).partition_count == 5


@pytest.mark.parametrize("store", ["", "store"])
def test_the_store_may_be_named_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.chdir(tmp_path)
    former = run_in(tmp_path, store=str(tmp_path / store) if store else "")
    assert chosen(tmp_path, former, "--store", store or "saved").store_url == former.store_url


KEYS = "access_key=AKIA&secret_key={}&region=eu-west-1"


@pytest.mark.parametrize("form", [f"s3://bucket/path?{KEYS}", "s3://AKIA:{}@bucket/path/"])
def test_a_store_may_be_named_again_with_other_keys_which_the_run_takes_over(
    tmp_path: Path, form: str
) -> None:
    former = run_in(tmp_path, store=f"s3://bucket/path?{KEYS.format('OLDSECRET')}")
    assert chosen(tmp_path, former, "--store", form.format("NEW")).store == form.format("NEW")
    assert chosen(tmp_path, former).store == former.store


@pytest.mark.parametrize("store", ["s3://bucket/elsewhere", "s3://other/path", "gs://bucket/path", "path"])
def test_another_store_is_refused_and_keys_are_not_repeated(tmp_path: Path, store: str) -> None:
    former = run_in(tmp_path, store=f"s3://bucket/path?{KEYS.format('OLDSECRET')}")
    with pytest.raises(us.UserError, match=r"is saved in s3://bucket/path\. Leave --store out") as refused:
        chosen(tmp_path, former, "--store", store)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("pair", ["--policy", "flux"], "Its state is not cut as policy 'flux' cuts it"),
        ("flux", ["--policy", "pair"], "holds a run with policy 'flux'"),
        ("flux", ["--policy", "cluster"], "Leave --policy out, or start a new run"),
        ("flux", ["--partitions", "4"], "is cut into 5 partitions. Leave --partitions out"),
        ("pair", ["--partitions", "4"], "policy 'pair' does not split fragments"),
        ("pair", ["--store", "elsewhere"], "Leave --store out: a run goes on where its state is"),
        (
            "pair",
            ["--snapshot-every", "0"],
            "goes on from its saved state, so it has to save its state as well",
        ),
        ("pair", ["--nodes", "2"], "policy 'pair' needs 3 nodes, not 2"),
    ],
)
def test_what_the_state_could_not_take_is_refused(
    tmp_path: Path, policy: str, options: list[str], said: str
) -> None:
    with pytest.raises(us.UserError) as refused:
        chosen(tmp_path, run_in(tmp_path, policy), *options)
    assert said in str(refused.value)


def test_another_flow_does_not_go_on_with_it(tmp_path: Path) -> None:
    with pytest.raises(
        us.UserError, match=r"holds a run of flow 'sessions', not of 'copy'\. Name that flow's"
    ):
        chosen(tmp_path, run_in(tmp_path, flow="sessions"))


def test_a_finished_run_and_one_that_saved_nothing_do_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(us.UserError, match="holds a run that saved no state"):
        chosen(tmp_path, run_in(tmp_path, snapshot_every_ms=0))
    finished_file(tmp_path).touch()
    with pytest.raises(us.UserError, match="holds a run that is finished"):
        chosen(tmp_path, run_in(tmp_path))


def test_a_run_whose_start_failed_may_begin_with_any_options(tmp_path: Path) -> None:
    former = run_in(tmp_path, snapshot_every_ms=0)
    begun_file(tmp_path).unlink()
    again = chosen(tmp_path, former, "--policy", "flux", "--partitions", "3", "--snapshot-every", "5")
    assert (again.policy.name, again.partition_count, again.saves, again.generation) == ("flux", 3, True, 4)
    assert chosen(tmp_path, former, "--policy", "flux").partition_count == 4
    assert not chosen(tmp_path, former).saves
