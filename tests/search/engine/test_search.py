import json
import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgerider as rr
from ridgerider._search.engine.rides import Rides
from ridgerider._search.runfile.rules_json import describe, rebuild
from ridgerider._search.same import Classes
from ridgerider._search.tree import Settings, named_order
from ridgerider.problems import surface, wells
from ridgerider.problems.wells import wells_loss, wells_minima
from tests.cases import (
    factorization,
    make_blocks,
    make_cliff,
    make_quadratic,
    same_tree,
    stationary_losses,
)

SIX = {"max_ridges": 1, "max_rides": None}


# --- known answers


def test_all_minima_of_six_wells():
    problem = wells(6)
    result = rr.search(problem, **SIX)
    minima = result.minima()
    assert len(minima) == 64 == len(wells_minima(problem))
    for expected in wells_minima(problem):
        assert any(np.linalg.norm(one.params - expected) <= 1e-6 for one in minima)
    assert min(one.least_eigenvalue for one in minima) == pytest.approx(1.0)  # 2 * least depth
    assert len(result) == 2 + 4 + 8 + 16 + 32 + 64 and result.num_open() == 0


def sorted_blocks(params):
    """Equal for parameters that differ by a permutation of the blocks."""
    order = np.argsort(params["a"])
    return np.concatenate([params["a"][order], params["b"][order]])


def test_permuted_blocks():
    result = rr.search(make_blocks(), max_rides=None, order="best_first", members="one")
    start = result.leg("")
    assert [c.multiplicity for c in start.clusters if c.eigenvalue < 0] == [4, 1]
    assert start.turns == ((0, 0), (1, 0))  # one member of each cluster
    # Up to permutation a minimum is told by how many of the five sit in the right-hand well.
    classes = result.minima(signature=sorted_blocks)
    assert sorted(int(np.sum(one.params["a"] > 0)) for one in classes) == [0, 1, 2, 3, 4, 5]


def relabelled(params, labels):
    """The same loss, with the blocks named differently and stored in another order."""
    from tests.cases import blocks_loss

    return blocks_loss({"a": params["z"][:5][labels], "b": params["z"][5:][labels]})


def test_relabelling_changes_no_set_of_minima():
    plain = rr.search(make_blocks(), max_rides=None).minima(signature=sorted_blocks)
    labels = jnp.array([3, 0, 4, 1, 2])
    problem = rr.Problem(relabelled, {"z": jnp.zeros(10)}, labels)
    found = rr.search(problem, max_rides=None)

    def canonical(params):
        return sorted_blocks({"a": params["z"][:5][labels], "b": params["z"][5:][labels]})

    other = found.minima(signature=canonical)
    one = sorted(sorted_blocks(solution.params).tolist() for solution in plain)
    two = sorted(canonical(solution.params).tolist() for solution in other)
    np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("members", ["one", "all"])
def test_members(members):
    problem, _ = make_quadratic([-2.0, -1.0, -1.0, -1.0, 1.0])
    rider = rr.Rider(finish=None, max_steps=1)
    result = rr.search(problem, rider, members=members, max_depth=1)
    singles = ["0+", "0-", "1+", "1-"]
    others = ["1.1+", "1.1-", "1.2+", "1.2-"] if members == "all" else []
    assert list(map(str, result.fingerprints())) == singles + others
    if members == "all":
        directions = np.stack([result.leg(name).x for name in ("1+", "1.1+", "1.2+")])
        np.testing.assert_allclose(directions @ directions.T, 0.01 * np.eye(3), atol=1e-12)


@pytest.mark.parametrize("rank", [1, 2])
def test_factorization_ends_at_its_known_stationary_points(rank):
    values = (3.0, 2.0, 1.0)
    result = rr.search(factorization(values, rank), max_depth=3, max_rides=60)
    known = stationary_losses(values, rank)
    assert {cluster.multiplicity for cluster in result.leg("").clusters} == {rank}
    for one in result.solutions():
        assert min(abs(one.loss - loss) for loss in known) < 1e-6
        assert one.kind == ("minimum" if abs(one.loss - known[0]) < 1e-6 else "saddle")


def test_leaves_on_a_symmetry_axis_are_reported_as_saddles_and_can_be_kicked_off():
    # Four double wells: after two of them, descent stays in the plane of the other two.
    problem = wells(4)
    result = rr.search(problem, max_depth=2)
    assert result.kinds()["saddle"] == len(result.solutions()) == 8 + 8 * 6 and not result.minima()
    kicked = rr.search(problem, rr.Rider(finish=rr.Descend(max_kicks=4)), max_depth=2)
    assert kicked.kinds()["saddle"] == 0 and len(kicked.minima()) >= 4
    legs = [leg for leg in kicked if leg.fingerprint.depth == 2]
    assert {int(leg.finish.num_kicks) for leg in legs} == {2}


# --- orders and budgets

PROBLEM = wells(3)
RIDER = rr.Rider(finish=None)


def depths(result):
    return [fingerprint.depth for fingerprint in result.fingerprints()]


def test_orders():
    breadth = rr.search(PROBLEM, RIDER, order="breadth_first", max_rides=20)
    assert depths(breadth) == sorted(depths(breadth))
    assert list(map(str, breadth.fingerprints()))[:4] == ["0+", "0-", "1+", "1-"]
    depth = rr.search(PROBLEM, RIDER, order="depth_first", max_rides=3)
    assert list(map(str, depth.fingerprints())) == ["0+", "0+ 0+", "0+ 0+ 0+"]


@pytest.mark.parametrize("order", ["best_first", "steepest_first"])
def test_the_smallest_open_branch_is_always_taken(order):
    result = rr.search(PROBLEM, RIDER, order=order, max_rides=25)
    ridden, key = result.fingerprints(), named_order(order, 0)
    for turn, chosen in enumerate(ridden):
        done = {rr.types.Fingerprint(), *ridden[:turn]}
        branches = [
            result.leg(parent).branch(rr.types.Turn(index, sign, member))
            for parent in done
            for index, member in result.leg(parent).turns
            for sign in (1, -1)
        ]
        smallest = min(key(branch) for branch in branches if branch.fingerprint not in done)
        assert key(result.leg(chosen.parent).branch(chosen[-1])) == smallest


def test_random_order_depends_on_the_seed_alone():
    one, two = (rr.search(PROBLEM, RIDER, order="random", seed=3, max_rides=15) for _ in range(2))
    other = rr.search(PROBLEM, RIDER, order="random", seed=4, max_rides=15)
    assert one.fingerprints() == two.fingerprints() != other.fingerprints()


def test_an_order_of_your_own_sees_the_point():
    def validation(branch):
        return jnp.sum((jnp.asarray(branch.x) - 1) ** 2)

    result = rr.search(PROBLEM, RIDER, order=validation, max_rides=10)
    first = result.fingerprints()
    assert all(turn.sign == 1 for turn in first[6])  # towards (1, 1, 1)
    assert result.meta["settings"]["order"].endswith("validation")


def test_nan_priorities_come_last():
    def steepest_unknown(branch):
        return float("nan") if branch.fingerprint[0].index == 0 else 0.0

    result = rr.search(PROBLEM, RIDER, max_rides=6, max_depth=1, order=steepest_unknown)
    assert list(map(str, result.fingerprints())) == ["1+", "1-", "2+", "2-", "0+", "0-"]


@pytest.mark.parametrize(
    ("budget", "check"),
    [
        ({"max_rides": 7}, lambda result: len(result) == 7),
        ({"max_rides": 0}, lambda result: len(result) == 0),
        ({"max_depth": 1, "max_rides": None}, lambda result: len(result) == 6),
        ({"max_steps": 30}, lambda result: 30 <= sum(leg.num_steps for leg in result) < 40),
        ({"max_hvps": 100}, lambda result: 100 <= result.cost.hvps < 150),
        ({"max_seconds": 0}, lambda result: len(result) == 0),
    ],
)
def test_budgets(budget, check):
    assert check(rr.search(PROBLEM, RIDER, **budget))


def test_costs_add_up():
    result = rr.search(PROBLEM, max_rides=10)
    costs = [leg.cost for leg in (result.leg(""), *result)]
    assert len(costs) == 11 and sum(cost.hvps for cost in costs) == result.cost.hvps
    leg = result.leg("0+")
    # The start, each step (none was halved), the end, both ends of the descent, and a Newton step.
    assert leg.cost.hessians >= leg.num_steps + 4 and leg.cost.hvps == 3 * leg.cost.hessians


def test_progress_is_told_after_every_leg():
    seen = []
    rr.search(
        PROBLEM, max_rides=54, progress=lambda done: seen.append((done.num_rides, done.num_minima))
    )
    assert [rides for rides, _ in seen] == list(range(1, 55)) and seen[-1][1] == 8


def test_a_nan_ends_its_leg_and_not_the_search():
    result = rr.search(make_cliff(), rr.Rider(step=rr.FixedStep(0.2)), max_rides=12)
    ended = {str(leg.fingerprint): leg for leg in result}
    assert ended["0+"].ended_by == ("not_finite",) and ended["0+"].turns == ()
    assert ended["0+"].finish is None and np.isfinite(ended["0+"].x).all()
    assert ended["1+"].ended_by == ("curvature_gone",) and ended["1+ 0-"].num_steps > 0


# --- how it is computed changes nothing


class ShuffledExecutor(ThreadPoolExecutor):
    """Hands results back in an order of its own."""

    def __init__(self, seed):
        super().__init__(1)
        self.random, self.waiting = np.random.default_rng(seed), []
        self.lock = threading.Lock()

    def submit(self, work, *args):
        self.waiting.append((future := Future(), work, args))
        threading.Timer(0.3, self.work_on_any).start()  # by then all of a round have been sent
        return future

    def work_on_any(self):
        with self.lock:
            future, work, args = self.waiting.pop(self.random.integers(len(self.waiting)))
        try:
            future.set_result(work(*args))
        except BaseException as error:  # or whoever waits for it waits for ever
            future.set_exception(error)


@pytest.mark.parametrize("order", ["breadth_first", "best_first"])
def test_arrival_changes_nothing(order):
    settings = {"order": order, "round_size": 16, "max_rides": 48, "max_ridges": 2}
    problem = wells(4)
    plain = rr.search(problem, **settings)
    for seed in range(3):
        arrived = rr.search(problem, executor=ShuffledExecutor(seed), **settings)
        assert same_tree(plain, arrived)
        assert arrived.fingerprints() == plain.fingerprints()
    with ThreadPoolExecutor(2) as executor:
        assert same_tree(plain, rr.search(problem, executor=executor, **settings))


@pytest.mark.parametrize("size", [3, 8, 40])
def test_classes_are_those_of_all_comparisons(size):
    """Against every point compared with every class, also at the edge of the tolerance."""
    random, points, kept = np.random.default_rng(size), [], []
    classes, fetching = Classes(), Classes(fetch=points.__getitem__)
    for x in random.choice([-1.0, 1.0], size=(60, size)) * random.choice([0.01, 1, 300], (60, 1)):
        for far in (0, 1e-5, 0.5e-3, 0.999e-3, 1.001e-3, 2e-3):
            step = random.normal(size=size)
            step *= far * max(1, np.linalg.norm(x)) / np.linalg.norm(step)
            points.append(x + step)
            reach = 1e-3 * max(1, np.linalg.norm(x)) / 2
            numbers = [
                number
                for number, (known, its_reach) in enumerate(kept)
                if np.linalg.norm(x + step - known) <= reach + its_reach
            ]
            kept += [] if numbers else [(x + step, reach)]
            expected = [*numbers, len(kept) - 1][0]
            assert classes.add(len(points) - 1, x + step, reach) == expected
            assert fetching.add(len(points) - 1, x + step, reach) == expected
    assert len(classes) == len(kept) and not fetching.points
    assert 60 < len(classes) < len(points)


@given(*[st.lists(st.tuples(st.integers(0, 300), st.sampled_from([1, -1]), st.integers(0, 2)))] * 2)
def test_fingerprints_sort_turn_by_turn(one, two):
    prints = [rr.types.Fingerprint(rr.types.Turn(*turn) for turn in turns) for turns in (one, two)]
    keys = [[(turn.index, turn.member, -turn.sign) for turn in each] for each in prints]
    assert (prints[0].sort_key() < prints[1].sort_key()) == (keys[0] < keys[1])


def test_keys_depend_on_where_a_branch_is():
    from ridgerider._search.engine.rides import branch_key

    names = ["", "0+", "0-", "1+", "1.1+", "0+ 0+", "0+ 1+", "1+ 0+"]
    keys = [branch_key(0, rr.types.Fingerprint.parse(name)) for name in names]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == len(names)


def test_a_second_search_compiles_nothing_new():
    traces = []

    def counted(x, depths):
        traces.append(x)
        return wells_loss(x, depths)

    def run(depths, size):
        problem = rr.Problem(counted, jnp.zeros(3), jnp.array(depths))
        before = len(traces)  # after the one evaluation of shapes that every new problem needs
        rr.search(problem, rr.Rider(step=rr.FixedStep(jnp.array(size))), max_depth=1)
        return len(traces) - before

    probe = 2  # the traces that `check_deterministic` compares; they are not compiled
    assert run([0.9, 0.5, 0.2], 0.05) > probe + 1
    assert run([0.8, 0.4, 0.3], 0.04) == probe


PARTIAL = jax.tree_util.Partial(optax.adam, 1e-2)


@pytest.mark.parametrize(
    "value",
    [
        wells(3),
        rr.Rider(),
        rr.Rider(update=rr.Keep(), step=rr.FixedStep(), finish=rr.Descend(PARTIAL, max_kicks=2)),
        Settings(seed=3),
        rr.types.Fingerprint.parse("0+ 3.1-"),
    ],
)
def test_values_survive_a_pickle(value):
    copy = pickle.loads(pickle.dumps(value))
    assert eqx.tree_equal(copy, value) if isinstance(value, eqx.Module) else copy == value


def test_legs_survive_a_pickle():
    result = rr.search(surface(), max_rides=1)
    branch = result.leg("").branch(rr.types.Turn(1, 1))
    settings = result.meta["settings"]
    args = (Rides(rr.Rider()), surface(), Settings(**settings), [branch])
    (leg,) = Rides.move(*pickle.loads(pickle.dumps(args)))
    (same,) = Rides.move(*args)
    assert np.array_equal(pickle.loads(pickle.dumps(leg)).x, same.x)


# --- bad input


def walls(x):
    return jnp.where(x[0] > 5, x[0], jnp.nan)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: rr.search(PROBLEM, order="sideways"),
            r"`order` must be one of breadth_first.*'sideways'",
        ),
        (
            lambda: rr.search(PROBLEM, members="some"),  # type: ignore[arg-type]
            r"`members` must be 'branches', 'all' or 'one', not 'some'",
        ),
        (lambda: rr.search(PROBLEM, max_rides="5"), r"`max_rides` must be a number"),  # type: ignore[arg-type]
        (lambda: rr.search(PROBLEM, max_rides=-1), r"`max_rides` must be a number of at least 0"),
        (
            lambda: rr.search(PROBLEM, max_seconds=-0.5),
            r"`max_seconds` must be a number of at least 0",
        ),
        (
            lambda: rr.search(PROBLEM, max_depth=0),
            r"`max_depth` must be a whole number of at least 1",
        ),
        (lambda: rr.search(PROBLEM, max_ridges=0), r"`max_ridges` must be a whole number"),
        (lambda: rr.search(PROBLEM, round_size=0), r"`round_size` must be a whole number"),
        (lambda: rr.search(PROBLEM, seed=-1), r"`seed` must be a whole number of at least 0"),
        (
            lambda: rr.search(rr.Problem(lambda x: x @ x, jnp.zeros(2))),
            r"`start` must have negative curvature.*least eigenvalue is 2; find_saddle",
        ),
        (lambda: rr.search(rr.Problem(walls, jnp.zeros(1))), r"the loss at `start` must be finite"),
        (
            lambda: rr.types.Fingerprint.parse("0+ x"),
            r"a turn of `fingerprint` must look like 0\+.*, 2\^\+ or \*17, not 'x'",
        ),
    ],
)
def test_bad_input_is_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Enough(Exception):
    pass


def test_a_round_that_was_interrupted_is_resumed_whole(tmp_path):
    """The budget is looked at before a round, and so it is after an interruption within one."""
    path, rider = tmp_path / "run.sqlite", rr.Rider(finish=None)
    budget = {"round_size": 6, "max_rides": None, "max_steps": 5}
    whole = rr.search(wells(3), rider, **budget)

    def stop(done):
        raise Enough

    with pytest.raises(Enough):
        rr.search(wells(3), rider, **budget, out=path, progress=stop)
    assert len(rr.load(path)) == 1
    assert same_tree(rr.resume(path, wells(3)), whole) and len(whole) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda search: search(wells_loss), "`problem` must be a Problem or a string, not"),
        (lambda search: search(wells(2), 200), "`rider` must be a Rider, not 200"),
        (lambda search: search(wells(2), rr.Rider), "`rider` must be a Rider, not the class Rider"),
        (lambda search: search(wells(2), order=5), "`order` must be a string or callable .* 5"),
    ],
)
def test_likely_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make(rr.search)


def test_a_run_is_loaded_with_a_problem():
    with pytest.raises(ValueError, match="`problem` must be a Problem, not 'surface'"):
        rr.load("run.sqlite", "surface")


def test_a_rule_that_moved_is_no_reason_not_to_open_a_run():
    known = describe(rr.Rider())
    moved = json.loads(json.dumps(known).replace("ridgerider:Backtracking", "ridgerider:Stride"))
    renamed = json.loads(json.dumps(known).replace('"delta_break"', '"delta_brake"'))
    for data in (moved, renamed):
        with pytest.raises(ValueError, match="pass the `rider` again"):
            rebuild(data)


# --- compilation


def test_a_first_search_compiles_six_programs(caplog):
    problem = rr.Problem(lambda x: jnp.sum((x**2 - 1) ** 2) + x[0] ** 2, jnp.zeros(2))
    rr.search(wells(2), max_rides=1)  # what is compiled once and for all
    with jax.log_compiles(), caplog.at_level("WARNING"):
        assert len(rr.search(problem, max_depth=1)) == 4
    compiled = [re.search(r"^Compiling jit\((\w+)", record.message) for record in caplog.records]
    assert [name[1] for name in compiled if name] == [
        "_value_and_grad",
        "_hvps",
        "value_at",
        "spectrum_on_batch",
        "ride_one",
        "hessian",
    ]


def test_keep_compiled(tmp_path):
    code = """
import ridgerider as rr
from ridgerider.problems import wells

print(rr.keep_compiled())
rr.search(wells(1), rr.Rider(finish=None), max_rides=1)
"""
    hidden = {name: text for name, text in os.environ.items() if not name.startswith("JAX_")}
    environment = {**hidden, "XDG_CACHE_HOME": str(tmp_path)}
    out = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert Path(out.strip()) == tmp_path / "ridgerider" / "compiled"
    assert list(Path(out.strip()).iterdir())
