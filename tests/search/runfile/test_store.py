import functools
import os
import shutil
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ridgerider as rr
from ridgerider._search.runfile.store import Store
from ridgerider._search.tree import Fingerprint
from ridgerider.problems import surface, wells
from ridgerider.problems.wells import wells_loss
from ridgerider.report._read import Reader
from tests.cases import make_blocks, same_tree
from tests.search.runfile.made_up_runs import META, make_leg, sign_rows

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

SETTINGS = {"max_ridges": 2, "round_size": 4}
RIDER = rr.Rider(finish=None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    return rr.search(wells(3), out=path, max_rides=30, name="wells", **SETTINGS)


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copy(finished.file, tmp_path / "copy.sqlite")


def test_a_loaded_run_is_the_run(finished):
    loaded = rr.load(finished.file, wells(3))
    assert loaded.kinds() == finished.kinds()
    assert same_tree(finished, loaded) and loaded.fingerprints() == finished.fingerprints()
    assert loaded.name == "wells" and loaded.meta["versions"]["ridgerider"]
    for one, two in zip(finished, loaded, strict=True):
        assert one.trace.keys() == two.trace.keys() and one.clusters == two.clusters
        for name in one.trace:  # NaN: there is no neighbour beyond the ends of the spectrum
            np.testing.assert_array_equal(one.trace[name], two.trace[name])
    assert repr(loaded.minima()) == repr(finished.minima())


def test_without_its_problem_parameters_come_as_one_vector(tmp_path):
    result = rr.search(make_blocks(), out=tmp_path / "run", max_rides=6)
    flat = rr.load(result.file)
    assert flat.solutions()[0].params.shape == (10,)
    with pytest.raises(ValueError, match="to replay, load the run with its `problem`"):
        flat.replay("0+")


def test_the_file_is_whole_by_itself(finished, tmp_path):
    # No -wal file is needed beside it, so that it can be copied.
    alone = shutil.copy(finished.file, tmp_path / "alone.sqlite")
    assert same_tree(finished, rr.load(alone))


def test_resume_with_a_larger_budget_goes_on(tmp_path):
    path = tmp_path / "run.sqlite"
    whole = rr.search(wells(3), max_rides=32, **SETTINGS)
    first = rr.search(wells(3), out=path, max_rides=12, **SETTINGS)
    assert len(first) == 12
    assert same_tree(whole, rr.resume(path, wells(3), max_rides=32))
    assert rr.load(path).meta["budget"]["max_rides"] == 32


@pytest.mark.parametrize("order", ["best_first", "depth_first"])
@pytest.mark.parametrize("first", [1, 6, 11])
def test_a_budget_that_cuts_a_round_short_changes_nothing(tmp_path, order, first):
    path, settings = tmp_path / "run.sqlite", {"order": order, "round_size": 4}
    whole = rr.search(wells(3), RIDER, max_rides=16, **settings)
    assert len(rr.search(wells(3), RIDER, out=path, max_rides=first, **settings)) == first
    assert same_tree(whole, rr.resume(path, wells(3), max_rides=16))


def test_an_unfinished_round_is_finished_first(tmp_path):
    # Cut the file back to where a round of four had stored its first leg only.
    path = tmp_path / "run.sqlite"
    whole = rr.search(wells(3), out=path, max_rides=12, order="best_first", round_size=4)
    keep = [str(fingerprint) for fingerprint in whole.fingerprints()[:5]]
    db = sqlite3.connect(path)
    marks = ",".join("?" * len(keep))
    db.execute(f"DELETE FROM legs WHERE depth > 0 AND fingerprint NOT IN ({marks})", keep)
    for (name,) in db.execute("SELECT fingerprint FROM branches").fetchall():
        if name.rpartition(" ")[0] not in ["", *keep]:
            db.execute("DELETE FROM branches WHERE fingerprint = ?", [name])
    db.execute("UPDATE branches SET round = NULL WHERE round > 2")
    db.commit()
    sign_rows(db)
    db.close()
    assert same_tree(whole, rr.resume(path, wells(3)))


def validation(branch):
    return branch.loss


def test_own_rules_and_orders_are_asked_for_again(tmp_path):
    path = tmp_path / "run.sqlite"

    def never(ride):
        return jnp.array(False)

    rider = rr.Rider(stop=(*rr.Rider().stop, never))
    rr.search(wells(2), rider, out=path, max_rides=2, order=validation)
    with pytest.raises(
        ValueError, match=r"the run used .*never, a custom rule or .*: pass the `rider`"
    ):
        rr.resume(path, wells(2))
    with pytest.raises(
        ValueError,
        match=r"a custom order, tests.search.runfile.test_store:validation: pass it again",
    ):
        rr.resume(path, wells(2), rider)
    with pytest.raises(
        ValueError, match=r"`order` must be the run's own, .*validation, not depth_first"
    ):
        rr.resume(path, wells(2), rider, order="depth_first")
    result = rr.resume(path, wells(2), rider, order=validation, max_rides=3)
    assert len(result) == 3


@pytest.mark.parametrize(
    ("problem", "rider", "message"),
    [
        (wells(2), None, "belongs to another problem: the params"),
        (wells(3).with_start(jnp.full(3, 0.01)), None, "belongs to another problem: the start"),
        (rr.Problem(wells(3).loss, jnp.zeros(3), jnp.ones(3)), None, "another problem: the data"),
        (wells(3), rr.Rider(max_steps=5), "was made with another `rider`"),
    ],
)
def test_resume_refuses_another_problem(copy, problem, rider, message):
    before = copy.read_bytes()
    with pytest.raises(ValueError, match=message):
        rr.resume(copy, problem, rider)
    assert copy.read_bytes() == before


def other_loss(x, depths):
    return 2 * wells_loss(x, depths)


def test_resume_refuses_another_loss(copy):
    with pytest.raises(ValueError, match="another problem: the loss or its Hessian differ"):
        rr.resume(copy, rr.Problem(other_loss, jnp.zeros(3), *wells(3).args))


@dataclass(frozen=True)
class ByTurn:
    modulus: int

    def __call__(self, branch):
        return branch.fingerprint[-1].index % self.modulus


def test_partials_and_orders_with_settings_are_told_apart(tmp_path):
    path = tmp_path / "run.sqlite"
    rider = rr.Rider(finish=rr.Descend(functools.partial(optax.adam, 1e-2)))
    rr.search(wells(2), rider, out=path, max_rides=1, order=ByTurn(5))
    other = rr.Rider(finish=rr.Descend(functools.partial(optax.sgd, 0.5)))
    with pytest.raises(ValueError, match="was made with another `rider`"):
        rr.resume(path, wells(2), other)
    with pytest.raises(ValueError, match=r"`order` must be the run's own"):
        rr.resume(path, wells(2), rider, order=ByTurn(6))
    assert len(rr.resume(path, wells(2), order=ByTurn(5), max_rides=2)) == 2


def test_load_checks_the_problem_and_needs_no_rider(finished, tmp_path):
    with pytest.raises(ValueError, match="belongs to another problem: the params"):
        rr.load(finished.file, wells(2))
    narrow = rr.Problem(wells_loss, jnp.zeros(3, "float32"), jnp.ones(3, "float32"))
    with pytest.raises(ValueError, match=r"float64 there, float32 here: see jax_enable_x64"):
        rr.load(finished.file, narrow)

    def never(ride):
        return jnp.array(False)

    rider = rr.Rider(stop=(*rr.Rider().stop, never))
    rr.search(wells(2), rider, out=tmp_path / "own.sqlite", max_rides=1)
    result = rr.load(tmp_path / "own.sqlite", wells(2))
    assert len(result.solutions()) == 1
    with pytest.raises(ValueError, match="load the run with its `problem` \\(and `rider`\\)"):
        result.replay("0+")


def test_a_search_that_cannot_be_stored_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="`order` must return numbers, strings or tuples of them"):
        rr.search(wells(2), out=tmp_path / "run.sqlite", order=lambda branch: object())
    assert not list(tmp_path.iterdir())
    assert len(rr.search(wells(2), out=tmp_path / "run.sqlite", max_rides=np.int64(1))) == 1


def damage_text(path):
    path.write_text("not a database, but long enough to be taken for one" * 50)


def damage_truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def damage_pages(path):
    content = bytearray(path.read_bytes())
    content[4096 * 2 : -4096] = os.urandom(len(content) - 4096 * 3)
    path.write_bytes(content)


def damage_version(path):
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()


def damage_kind(path):
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (x)")
    db.close()


def damage_remove(path):
    path.unlink()


def damage_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_text, "cannot be read as a run file: file is not a database"),
        (damage_truncate, "damaged|cannot be read as a run file"),
        (damage_pages, "damaged|cannot be read as a run file"),
        (
            damage_version,
            "is a run file of format 99, but this version of ridgerider reads",
        ),
        (damage_kind, "is not a run file of ridgerider"),
        (damage_remove, "must be a run file, but there is none at"),
        (damage_empty, "is empty: there is nothing to read in it"),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(copy, damage, message):
    damage(copy)
    before = copy.read_bytes() if copy.exists() else None
    with pytest.raises(ValueError, match=message) as error:
        rr.resume(copy, wells(3))
    assert "\n" not in str(error.value)
    assert (copy.read_bytes() if copy.exists() else None) == before
    if damage is not damage_pages:  # found out only when the page is read
        with pytest.raises(ValueError, match=message):
            rr.load(copy)


def test_existing_files_are_not_overwritten(copy):
    before = copy.read_bytes()
    with pytest.raises(ValueError, match=r"`out` must be a new file, but .* exists; resume it"):
        rr.search(wells(3), out=copy)
    assert copy.read_bytes() == before


def test_nothing_is_left_behind_when_there_is_nothing_to_search(tmp_path):
    with pytest.raises(ValueError, match="negative curvature"):
        rr.search(rr.Problem(lambda x: x @ x, jnp.zeros(2)), out=tmp_path / "run.sqlite")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"`out` must be in a directory that exists"):
        rr.search(wells(3), out=tmp_path / "no" / "run.sqlite")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_file_that_cannot_be_made():
    with pytest.raises(OSError, match=r"`out` cannot be written at /proc/run.sqlite"):
        rr.search(wells(3), out="/proc/run.sqlite")


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ValueError, match=r"`out` must be in a directory that can be written"):
        rr.search(wells(3), out=tmp_path / "run.sqlite")


@pytest.mark.skipif(resource is None, reason="needs limits of the operating system")
def test_a_full_disk_stops_with_a_sentence_and_a_file_that_opens(tmp_path):
    path, before = tmp_path / "run.sqlite", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up(done):
        if done.num_rides == 3:
            wal = path.with_name(f"{path.name}-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (wal, before[1]))

    try:
        with pytest.raises(OSError, match=r"run.sqlite cannot be written: .*stored before is safe"):
            rr.search(wells(3), RIDER, out=path, max_rides=8, progress=fill_up, **SETTINGS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(rr.load(path)) == 3
    whole = rr.search(wells(3), RIDER, max_rides=8, **SETTINGS)
    assert same_tree(whole, rr.resume(path, wells(3)))


def test_a_run_file_that_is_read_only(copy, monkeypatch):
    before = copy.read_bytes()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anything
    with pytest.raises(ValueError, match=r"`path` must be a run file that can be written"):
        rr.resume(copy, wells(3))
    assert len(rr.load(copy)) == 30 and copy.read_bytes() == before


def test_a_kill_while_a_run_file_is_made_leaves_none(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    monkeypatch.setattr(
        "ridgerider._search.runfile.store.move", kill
    )  # the last moment before it has its name
    with pytest.raises(Killed):
        rr.search(wells(3), RIDER, out=tmp_path / "run.sqlite")
    assert not list(tmp_path.iterdir())


def test_a_branch_is_loaded_with_its_arrays(finished):
    for narrow in (False, True):
        leg = finished.leg("0+")
        if narrow:
            leg = replace(leg, x=leg.x.astype("float32"), directions=leg.directions.astype("f4"))
        store = Store.create(None, {}, finished.leg(""), [])
        store.settle(leg, [])
        for index, member in leg.turns:
            for sign in (1, -1):
                branch = leg.branch(rr.types.Turn(index, sign, member))
                loaded = store.load(replace(branch, x=None, direction=None))
                assert np.array_equal(loaded.x, branch.x) and loaded.x.dtype == leg.x.dtype
                assert np.array_equal(loaded.direction, branch.direction)


def test_a_leg_is_stored_once(finished):
    store = Store.create(None, {}, finished.leg(""), [])
    store.add(finished.leg("0+"))
    assert not store.leg(Fingerprint.parse("0+")).is_settled
    store.settle(finished.leg("0+"), [])
    assert store.num_legs() == 1


def test_a_run_can_be_read_while_it_grows(tmp_path):
    path, seen = tmp_path / "run.sqlite", []
    rr.search(
        wells(3),
        out=path,
        max_rides=5,
        progress=lambda done: seen.append(len(rr.load(path))),
    )
    assert seen == [1, 2, 3, 4, 5]


def test_a_leg_that_is_settled_later_is_read_once(tmp_path):
    store = Store.create(tmp_path / "run.sqlite", {"name": "made up", **META}, make_leg(""), [])
    reader = Reader(store.path)
    for name in ("0-", "1+", "0+"):
        store.add(make_leg(name))
        reader.read()
    for name in ("0-", "1+", "0+"):
        store.settle(make_leg(name), [])
        reader.read()
    assert [leg["fingerprint"] for leg in reader.legs] == ["", "0-", "1+", "0+"]


# --- replay and export


def test_replay_rides_the_same_path(finished):
    fingerprint = finished.fingerprints()[-1]
    legs = finished.replay(fingerprint)
    assert [leg.fingerprint.depth for leg in legs] == list(range(1, fingerprint.depth + 1))
    for leg in legs:
        stored = finished.leg(leg.fingerprint)
        assert np.array_equal(leg.x, stored.x) and leg.loss == stored.loss
        assert np.array_equal(leg.trace["path"][-1], leg.x)


def test_replay_reaches_what_was_not_ridden(finished):
    # The run took two ridges at each point; the third is there all the same.
    assert "2+" not in map(str, finished.fingerprints())
    assert finished.replay("2+")[0].ended_by == ("curvature_gone",)
    with pytest.raises(
        ValueError, match=r"turns into 7\+ at the start, but there are only 3 ridges"
    ):
        finished.replay("7+")
    with pytest.raises(ValueError, match=r"`fingerprint` must be a leg of this run, but '2\+'"):
        finished.leg("2+")


def test_export(tmp_path):
    result = rr.search(make_blocks(), max_rides=6)
    solutions = result.solutions()
    with np.load(result.export(tmp_path / "all.npz")) as archive:
        assert archive["fingerprint"].tolist() == [str(one.fingerprint) for one in solutions]
        assert archive["params['a']"].shape == (len(solutions), 5)
        np.testing.assert_array_equal(archive["params['a']"][2], solutions[2].params["a"])
    with pytest.raises(ValueError, match=r"`path` must end in .csv, .json or .npz"):
        result.export(tmp_path / "all.txt")
    with pytest.raises(ValueError, match="nothing to export"):
        rr.search(surface(), rr.Rider(finish=None), max_rides=1).export(tmp_path / "all.npz")


def test_classes_keep_their_links():
    result = rr.search(wells(2), max_rides=None)
    classes = result.classes()
    assert len(classes) == 4
    for group in classes:
        assert {one.equivalent_to for one in group} == {group[0].fingerprint}
        assert {one.multiplicity for one in group} == {len(group)}
        assert group[0].fingerprint.depth == min(one.fingerprint.depth for one in group)
    by_output = result.minima(signature=lambda params: jnp.abs(params))
    assert len(by_output) == 1 and by_output[0].multiplicity == sum(map(len, classes))
    with pytest.raises(ValueError, match="`tolerance` must be at least 0"):
        result.minima(-1.0)
