"""Maps without a matrix: modes by products, climbs in a small space."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.points.climb import Plan, move_from
from ridgerider._core.points.domain import Domain
from ridgerider._core.points.morse_index import _lowest, look_around
from ridgerider._core.problem.calls import Calls
from ridgerider.problems import (
    himmelblau,
    is_one_cluster,
    lennard_jones,
    mueller_brown,
    six_hump_camel,
)
from ridgerider_experiments.bench.large_maps import ring
from ridgerider_experiments.clusters import wrong_indices
from tests.search.engine.test_explore import table_of

BY_PRODUCTS = rr.Climb(engine="hvp")


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "make",
    [
        himmelblau,
        pytest.param(six_hump_camel, marks=LONG),
        pytest.param(mueller_brown, marks=LONG),
    ],
)
def test_products_alone_make_the_same_map(make):
    dense, free = rr.explore(make()), rr.explore(make(), BY_PRODUCTS)
    for one, two in ((dense.minima(), free.minima()), (dense.saddles(), free.saddles())):
        np.testing.assert_allclose([p.loss for p in two], [p.loss for p in one], atol=1e-8)


def test_atoms_by_products_alone():
    # Six atoms have two minima, the published ones.
    landscape = rr.explore(
        lennard_jones(6), BY_PRODUCTS, symmetry=rr.symmetry.point_set(), valid=is_one_cluster
    )
    losses = [one.loss for one in landscape.minima()]
    np.testing.assert_allclose(losses, [-12.712062, -12.302928], atol=1e-6)
    assert len(landscape.saddles()) >= 2
    assert wrong_indices(landscape) == 0


def test_a_large_problem_is_climbed_without_a_matrix():
    problem = ring(400)
    landscape = rr.explore(problem, max_rides=12, max_modes=4)
    assert len(landscape.minima()) > 1 and len(landscape.saddles()) > 1
    assert wrong_indices(landscape) == 0
    # Outwards there is no saddle, and nothing is looked at: ten products a step, and no Hessian.
    legs = [landscape.leg(name) for name in landscape.fingerprints()]
    outwards = [leg for leg in legs if "max_steps" in leg.ended_by]
    assert outwards and all(leg.cost.hvps == 10 * leg.num_steps for leg in outwards)
    assert landscape.cost.hessians == 0


def test_large_problems_in_single_precision():
    with jax.enable_x64(False):
        landscape = rr.explore(ring(400), max_rides=6, max_modes=2)
        assert landscape.problem.dtype == np.float32
        assert len(landscape.saddles()) > 0
        assert wrong_indices(landscape, 1e-4) == 0


def test_no_program_holds_a_matrix():
    problem = ring(2000)
    looking = jax.make_jaxpr(lambda x: _lowest(problem, None, 16, x)[0])(problem.x0)
    assert max(sizes_in(looking)) < problem.size**2 / 4
    move = move_along(problem, rr.Climb(max_steps=1))
    assert move.hessian is None


def move_along(problem, climb):
    x = np.asarray(problem.x0)
    plan, domain = Plan.of(climb, problem), Domain(problem)
    return move_from(Calls(problem), plan, domain, x, np.ones_like(x), None, True)


def look(problem):
    return look_around(Calls(problem), Domain(problem), 16, np.asarray(problem.x0))


def sizes_in(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda one: hasattr(one, "eqns")):
            if hasattr(inner, "eqns"):
                yield from sizes_in(inner)


def test_an_index_that_was_not_counted_is_not_listed():
    # All 320 ways lead down, and 16 modes are looked for.
    hill = rr.Problem(lambda x: jnp.sum((x**2 - 0.01) ** 2), jnp.zeros(320))
    seen = look(hill)
    assert not seen.finish.is_converged and seen.is_down[0]
    landscape = rr.explore(hill, max_rides=0)
    (lowest,) = landscape.minima()
    assert lowest.loss < 1e-12


SIZE = 320
SPECTRA = {
    "five equal": [-1.0] * 5,
    "hardly any": [-1e-4],
    "fifteen": -np.linspace(1, 50, 15),
    "as many as are looked for": -np.linspace(1, 50, 16),
    "one more": -np.linspace(1, 50, 17),
    "forty equal": [-1e-3] * 40,
    "one beside a hundred that are level": [-1e-3] + [0.0] * 100,
    "a hundred that are level": [0.0] * 100,
    "none": [],
}


@pytest.mark.parametrize("name", SPECTRA)
def test_an_index_is_right_or_not_known(name):
    low = np.asarray(SPECTRA[name])
    spectrum = np.concatenate([low, np.linspace(1, 100, SIZE - len(low))])
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(SIZE, SIZE)))
    matrix = jnp.asarray((basis * spectrum) @ basis.T)
    problem = rr.Problem(bowl, jnp.zeros(SIZE), matrix)
    seen = look(problem)
    wanted = int(np.sum(low < 0))
    assert bool(seen.finish.is_converged) == (wanted < 16)
    if wanted < 16:
        assert int(seen.morse_index) == wanted


def bowl(x, matrix):
    return x @ matrix @ x / 2 + jnp.sum(x**4) / 4


@pytest.mark.parametrize("engine", ["dense", "hvp"])
def test_points_with_many_level_directions_are_listed(engine):
    valley = rr.Problem(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2, jnp.full(320, 0.5))
    landscape = rr.explore(valley, rr.Climb(engine=engine), max_rides=0)
    (one,) = landscape.minima()
    assert one.loss < 1e-12 and one.morse_index == 0


def test_a_map_without_a_matrix_is_resumed_to_the_same(tmp_path):
    whole = rr.explore(himmelblau(), BY_PRODUCTS, round_size=5)
    rr.explore(himmelblau(), BY_PRODUCTS, round_size=5, max_rides=7, out=tmp_path / "a.sqlite")
    again = rr.resume(tmp_path / "a.sqlite", himmelblau(), max_rides=None)
    assert table_of(again) == table_of(whole)


def test_bad_input():
    with pytest.raises(ValueError, match="`engine` must be 'auto', 'dense' or 'hvp', not 'steam'"):
        rr.Climb(engine="steam")
