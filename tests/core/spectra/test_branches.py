import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import levers
from tests.cases import factorization, make_quadratic

KEY = jax.random.key(0)


def wells_loss(x):
    return jnp.sum(x**4 / 4 - x**2 / 2)


def network_loss(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["in"])
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean((hidden @ params["out"] - targets) ** 2) + 0.003 * penalty


def make_network(num_hidden=3, num_inputs=3, dtype=float):
    inputs = jax.random.normal(KEY, (64, num_inputs), dtype)
    weights = jnp.linspace(1.0, 0.6, num_inputs).astype(dtype)
    start = {"in": jnp.zeros((num_inputs, num_hidden), dtype), "out": jnp.zeros(num_hidden, dtype)}
    return rr.Problem(network_loss, start, inputs, jnp.sin(3 * inputs) @ weights)


def bent_loss(x, matrix, inside, outside, quartic):
    """Third derivatives that vanish on the eigenspace, but not between it and the rest."""
    third = jnp.sum((inside @ x) ** 2 * (outside @ x))
    return x @ matrix @ x / 2 + third + jnp.sum((quartic @ x) ** 4)


def make_bent(size=12, multiplicity=3, seed=0):
    """A cluster between an eigenvalue below and all others above."""
    random = np.random.default_rng(seed)
    eigenvalues = np.linspace(0.3, 2.0, size)
    eigenvalues[0], eigenvalues[1 : 1 + multiplicity] = -3.0, -1.0
    columns, _ = np.linalg.qr(random.normal(size=(size, size)))
    space = columns[:, 1 : 1 + multiplicity]
    rest = np.delete(columns, range(1, 1 + multiplicity), axis=1)
    matrix = columns * eigenvalues @ columns.T
    inside = random.normal(size=(4, multiplicity)) @ space.T / 2
    outside = random.normal(size=(4, size - multiplicity)) @ rest.T / 4
    quartic = random.normal(size=(6, size)) / 2
    args = map(jnp.asarray, (matrix, inside, outside, quartic))
    return rr.Problem(bent_loss, jnp.zeros(size), *args)


def branches_of(problem, spectrum=None):
    spectrum = (spectrum or rr.DenseSpectrum())(problem, problem.x0, KEY)
    return spectrum, spectrum.branches(problem, problem.x0)


def rotated(spectrum, seed=1):
    """The same spectrum in other bases of its clusters."""
    rows, labels = np.array(spectrum.eigenvectors), np.asarray(spectrum.labels)
    random = np.random.default_rng(seed)
    for label in np.unique(labels):
        count = np.sum(labels == label)
        rotation, _ = np.linalg.qr(random.normal(size=(count, count)))
        rows[labels == label] = rotation @ rows[labels == label]
    return eqx.tree_at(lambda one: one.eigenvectors, spectrum, jnp.asarray(rows))


def summary(branching):
    return {(one.class_number, one.class_size, one.kind) for one in branching.directions}


def assert_same(one, two, atol):
    assert [b.order for b in one] == [b.order for b in two]
    for a, b in zip(one, two, strict=True):
        assert a.class_sizes == b.class_sizes
        for c, d in zip(a.directions, b.directions, strict=True):
            assert (c.kind, c.num_flat, c.class_number) == (d.kind, d.num_flat, d.class_number)
            np.testing.assert_allclose(c.kappa, d.kappa, atol=atol)
            np.testing.assert_allclose(c.direction, d.direction, atol=atol)


@pytest.mark.parametrize("num_wells", [2, 3, 4, 5, 6])
def test_equal_wells(num_wells):
    """Any number of wells together, with any signs: sizes C(n, k) 2^(k-1), kappa = 3 / k."""
    _, (branching,) = branches_of(rr.Problem(wells_loss, jnp.zeros(num_wells)))
    counts = range(num_wells, 0, -1)
    sizes = [int(np.prod([(num_wells - i) / (i + 1) for i in range(k)]) * 2 ** (k - 1) + 0.5)
             for k in counts]  # fmt: skip
    assert branching.order == 4 and branching.class_sizes == tuple(sizes)
    assert len(branching.directions) == (3**num_wells - 1) // 2
    for one in branching.directions:
        k = num_wells - one.class_number
        assert one.kappa == pytest.approx(3 / k) and one.num_flat == 0
        np.testing.assert_allclose(np.sort(np.abs(one.direction))[-k:], k**-0.5, atol=1e-9)
    assert branching.directions[0].kind == "minimum"
    assert branching.directions[-1].kind == "maximum"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_network_units_wake_alone_in_pairs_or_all(dtype):
    problem = make_network(dtype=dtype)
    _, (branching,) = branches_of(problem)
    assert branching.order == 4 and branching.class_sizes == (4, 6, 3)
    for one, count in zip(branching.directions, [3] * 4 + [2] * 6 + [1] * 3, strict=True):
        out = problem.unravel(jnp.asarray(one.direction))["out"]
        assert int(jnp.sum(jnp.abs(out) > 1e-2)) == count
        assert one.direction.dtype == dtype
    if dtype == "float64":
        kappas = sorted({round(one.kappa, 2) for one in branching.directions})
        assert kappas == [4.84, 5.17, 6.16]


@pytest.mark.parametrize("engine", [rr.DenseSpectrum(), rr.BlockSpectrum(k=12, dense_below=0)])
def test_levers_split_off_one_two_or_three_of_seven(engine):
    problem = levers()
    _, branchings = branches_of(problem, engine)
    assert [one.order for one in branchings] == [1, 1, 1, 3]
    last = branchings[-1]
    assert last.class_sizes == (35, 21, 7)
    kappas = [last.directions[place].kappa for place in (0, 35, 56)]
    np.testing.assert_allclose(kappas, [0.00186, 0.00610, 0.01313], atol=5e-6)
    for one, count in zip(last.directions, [3] * 35 + [2] * 21 + [1] * 7, strict=True):
        apart = np.asarray(problem.unravel(jnp.asarray(one.direction)))[0, :7]
        values = np.unique(apart.round(6), return_counts=True)[1]
        assert sorted(values) == [count, 7 - count]


def test_a_third_derivative_along_every_direction_is_kappa():
    problem = levers()
    _, branchings = branches_of(problem)
    third = jax.jit(jax.jacfwd(problem.hessian))(problem.x0)
    for one in branchings[-1].directions:
        u = one.direction
        assert np.einsum("ijk,i,j,k", third, u, u, u) == pytest.approx(one.kappa, abs=1e-10)
        assert one.kappa > 0


def test_a_continuous_symmetry_is_one_entry():
    """Two equal singular values at rank 2: E is the 2 x 2 matrices X, the form |X X^T|^2."""
    problem = factorization((2.0, 2.0), rank=2)
    spectrum, (branching,) = branches_of(problem)
    assert [(one.kappa, one.num_flat) for one in branching.directions] == [
        (pytest.approx(0.75), 1),  # orthogonal matrices
        (pytest.approx(1.5), 2),  # matrices of rank one
    ]
    again = rotated(spectrum).branches(problem, problem.x0)
    assert_same([branching], again, 1e-6)


def test_a_form_that_is_constant_is_undecided():
    """At rank 2 with different singular values every direction is a ridge."""
    problem = factorization((3.0, 2.0), rank=2)
    spectrum, branchings = branches_of(problem)
    for index, one in enumerate(branchings):
        assert one.order == 0 and len(one.directions) == 2
        rows = np.asarray(spectrum.eigenvectors)[np.asarray(spectrum.labels) == index]
        np.testing.assert_array_equal([d.direction for d in one.directions], rows)
    flat, _ = make_quadratic([-1.0, -1.0, 2.0])
    assert branches_of(flat)[1][0].order == 0


def test_too_large_or_incomplete_clusters_are_undecided():
    (large,) = branches_of(rr.Problem(wells_loss, jnp.zeros(33)))[1]
    assert large.order == 0 and len(large.directions) == 33 and large.cost.gradients == 0
    problem = rr.Problem(wells_loss, jnp.zeros(5))
    (cut,) = branches_of(problem, rr.BlockSpectrum(k=2, dense_below=0))[1]
    assert cut.order == 0
    one = rr.BlockSpectrum(k=2, max_hvps=3, method="gradient")(problem, problem.x0 + 0.01, KEY)
    assert {b.order for b in one.branches(problem, problem.x0 + 0.01)} <= {0}


@pytest.mark.parametrize("make", [make_network, levers, make_bent])
def test_the_basis_makes_no_difference(make):
    problem = make()
    spectrum, branchings = branches_of(problem)
    for seed in range(3):
        assert_same(branchings, rotated(spectrum, seed).branches(problem, problem.x0), 1e-8)


@pytest.mark.parametrize("make", [make_network, levers, make_bent])
def test_matrix_free_is_the_same_list(make):
    problem = make()
    block = rr.BlockSpectrum(k=11, dense_below=0)
    if make is make_bent:
        problem, block = make_bent(size=40), rr.BlockSpectrum(k=6, dense_below=0, tolerance=1e-11)
    _, branchings = branches_of(problem)
    _, others = branches_of(problem, block)
    assert_same(branchings, others[: len(branchings)], 1e-6)
    if make is make_bent:
        assert others[1].cost.hvps > 0


@pytest.mark.parametrize("seed", range(3))
def test_fourth_order_against_dense_derivatives(seed):
    """M(u) u = kappa u with full tensors and all eigenpairs."""
    problem = make_bent(seed=seed)
    spectrum, (_, branching) = branches_of(problem)
    third = np.asarray(jax.jit(jax.jacfwd(problem.hessian))(problem.x0))
    fourth = np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(problem.hessian)))(problem.x0))
    rows, values = np.asarray(spectrum.eigenvectors), np.asarray(spectrum.eigenvalues)
    is_inside = np.asarray(spectrum.labels) == 1
    inside, rest = rows[is_inside], rows[~is_inside]
    inverse = rest.T / (branching.eigenvalue - values[~is_inside]) @ rest
    assert branching.order == 4 and np.abs(inverse @ (third @ inside[0] @ inside[0])).max() > 0.01
    for one in branching.directions:
        u = one.direction
        along = third @ u
        bend = inverse @ along @ u
        matrix = fourth @ u @ u / 2 + third @ bend / 2 + along @ inverse @ along
        np.testing.assert_allclose(inside @ matrix @ u, one.kappa * inside @ u, atol=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_rides_keep_the_maxima(seed):
    """In small steps a ride stays on the direction, and its curvature grows as kappa says.

    Where the form has a maximum, a small turn shrinks along the ride; elsewhere it may grow.
    """
    problem = make_bent(size=6, multiplicity=2, seed=seed)
    spectrum, (_, branching) = branches_of(problem)
    rider = rr.Rider(step=rr.FixedStep(2e-5), max_steps=200)
    member, one = len(branching.directions) - 1, branching.directions[-1]
    assert one.kind == "maximum" and one.kappa > 0
    ride = rider.ride(problem, problem.x0, branching.ridge(member), KEY)
    length = float(jnp.linalg.norm(spectrum.eigenvectors[1:3] @ ride.x))
    assert length == pytest.approx(0.004, rel=1e-3)
    assert float(ride.x @ one.direction) / length == pytest.approx(1, abs=1e-6)
    growth = (float(ride.trace.eigenvalue[-1]) - branching.eigenvalue) / length**2
    assert growth == pytest.approx(one.kappa, rel=0.01)


def test_simple_eigenvalues_are_their_eigenvectors():
    problem, _ = make_quadratic([-2.0, -1.0, 3.0])
    spectrum, branchings = branches_of(problem)
    for index, one in enumerate(branchings):
        assert one.order == 1 and one.class_sizes == (1,)
        ridge, same = one.ridge(0, sign=-1), spectrum.ridge(index, sign=-1)
        np.testing.assert_array_equal(ridge.direction, same.direction)
        assert float(ridge.eigenvalue) == pytest.approx(float(same.eigenvalue))
        assert int(ridge.multiplicity) == 1 and int(ridge.index) == index


def test_cost_is_counted():
    problem = rr.Problem(wells_loss, jnp.zeros(4))
    _, (branching,) = branches_of(problem)
    assert branching.cost.gradients == 4 * 10 + 8 * 20 and branching.cost.hvps == 0


def test_a_wrong_member_is_refused():
    problem = rr.Problem(wells_loss, jnp.zeros(2))
    _, (branching,) = branches_of(problem)
    with pytest.raises(ValueError, match="member"):
        branching.ridge(4)


@pytest.mark.long
def test_eight_units_of_a_network_of_ten_thousand_parameters():
    """All 3,280 directions, and at most 5,000 gradients (a Hessian-vector product is two)."""
    problem = make_network(num_hidden=8, num_inputs=1249)
    assert problem.size == 10_000
    _, branchings = branches_of(problem, rr.BlockSpectrum(k=9, max_hvps=4000))
    branching = branchings[0]
    assert branching.multiplicity == 8 and branching.order == 4
    assert branching.cost.gradients + 2 * branching.cost.hvps <= 5000
    assert len(branching.directions) == 3280 and len(branching.class_sizes) == 8


def test_directions_that_part_further_out_are_of_two_classes():
    # The fourth derivative cannot tell the two axes apart, the sixth can.
    problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2) + 0.01 * x[0] ** 6, jnp.zeros(2))
    spectrum = rr.DenseSpectrum()(problem, problem.x0, jax.random.key(0))
    (branching,) = spectrum.branches(problem, problem.x0)
    assert sorted(branching.class_sizes) == [1, 1, 2]
