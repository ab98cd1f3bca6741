from itertools import permutations

import numpy as np
import pytest

from ridgerider._core.spectra.forms import (
    _Form,
    _once,
    _places,
    classes_of,
    critical_points,
    symmetrized,
)

TOLERANCE = 6e-6
# Kofidis and Regalia (2002), example 1, and Kolda and Mayo (2011), example 3.6, with the
# eigenvalues that Kolda and Mayo list (for odd orders up to sign).
QUARTIC = {
    "1111": 0.2883, "1112": -0.0031, "1113": 0.1973, "1122": -0.2485, "1123": -0.2939,
    "1133": 0.3847, "1222": 0.2972, "1223": 0.1862, "1233": 0.0919, "1333": -0.3619,
    "2222": 0.1241, "2223": -0.3420, "2233": 0.2127, "2333": 0.2727, "3333": -0.3054,
}  # fmt: skip
CUBIC = {
    "111": -0.1281, "112": 0.0516, "113": -0.0954, "122": -0.1958, "123": -0.1790,
    "133": -0.2676, "222": 0.3251, "223": 0.2513, "233": 0.1773, "333": 0.0338,
}  # fmt: skip
PUBLISHED = [
    (QUARTIC, [-1.0954, -0.5629, -0.0451, 0.1735, 0.2433, 0.2628, 0.2682, 0.3633, 0.5105, 0.8169,
               0.8893]),
    (CUBIC, [0.0006, 0.0018, 0.0033, 0.0180, 0.2294, 0.4306, 0.8730]),
]  # fmt: skip


def filled(entries):
    order = len(next(iter(entries)))
    tensor = np.zeros((3,) * order)
    for name, value in entries.items():
        for places in permutations(name):
            tensor[tuple(int(place) - 1 for place in places)] = value
    return tensor


def random_tensor(order, size, seed):
    return symmetrized(np.random.default_rng(seed).normal(size=(size,) * order))


def applied(tensor, u):
    while tensor.ndim > 1:
        tensor = tensor @ u
    return tensor


def wells(size):
    tensor = np.zeros((size,) * 4)
    tensor[(np.arange(size),) * 4] = 1
    return tensor


def reference(tensor, num_starts):
    """Many more random starts, without mirrors and without counting."""
    form = _Form(tensor / np.abs(tensor).max(), TOLERANCE)
    starts = np.random.default_rng(0).normal(size=(num_starts, len(tensor)))
    ends = form.newton(starts / np.linalg.norm(starts, axis=1, keepdims=True), form.flat)
    return _once(ends[np.linalg.norm(form.at(ends).grads, axis=1) <= 1e-10])


def bound(order, size):
    """As many complex solutions a tensor has in general (Cartwright and Sturmfels 2013)."""
    return ((order - 1) ** size - 1) // (order - 2)


@pytest.mark.parametrize(("entries", "kappas"), PUBLISHED)
def test_published_examples(entries, kappas):
    tensor = filled(entries)
    found = critical_points(tensor, TOLERANCE, 8192)
    signed = found.kappas if tensor.ndim == 4 else np.abs(found.kappas)
    np.testing.assert_allclose(np.sort(signed), kappas, atol=6e-5)
    assert found.num_missed == 0


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_points_are_critical(order, size):
    tensor = random_tensor(order, size, seed=size)
    found = critical_points(tensor, TOLERANCE, 2048)
    for u, kappa in zip(found.points, found.kappas, strict=True):
        np.testing.assert_allclose(applied(tensor, u), kappa * u, atol=1e-9)
        assert u @ u == pytest.approx(1)
    assert 1 <= len(found.points) <= bound(order, size)


def missing(order, size, seed, num_starts):
    tensor = random_tensor(order, size, seed)
    found = critical_points(tensor, TOLERANCE, 8192)
    return bool(np.any(_places(found.points, reference(tensor, num_starts)) < 0))


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_random_tensors_are_solved_completely(order, size):
    assert not any(missing(order, size, seed, 2000) for seed in range(3))


@pytest.mark.long
@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_99_in_100_random_tensors_are_solved_completely(order, size):
    assert sum(missing(order, size, seed, 8000) for seed in range(100)) <= 1


def test_in_the_plane_nothing_is_missed():
    """Against a fine grid of angles."""
    angles = np.linspace(0, np.pi, 20001)
    for order in (3, 4):
        for seed in range(20):
            tensor = random_tensor(order, 2, seed)
            values = tensor
            points = np.stack([np.cos(angles), np.sin(angles)])
            across = np.stack([-np.sin(angles), np.cos(angles)])
            values = np.einsum("i...,ip->p...", tensor, points)
            while values.ndim > 2:
                values = np.einsum("pi...,ip->p...", values, points)
            slopes = np.einsum("pi,ip->p", values, across)
            found = critical_points(tensor, TOLERANCE, 2048)
            assert len(found.points) == np.sum(slopes[:-1] * slopes[1:] < 0)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_mirrors_complete_the_list(size):
    """Equal entries on any support, with any signs: few starts meet them all."""
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))
    tensor = wells(size)
    for _ in range(4):
        tensor = np.tensordot(tensor, rotation, (0, 0))
    found = critical_points(tensor, TOLERANCE, 8192)
    assert len(found.points) == (3**size - 1) // 2
    supports = np.sum(np.abs(found.points @ rotation.T) > 1e-6, axis=1)
    np.testing.assert_allclose(found.kappas, 1 / supports, atol=1e-9)


def test_a_false_mirror_is_refused():
    """A small term breaks the symmetry of the wells: nothing but true points is listed."""
    tensor = wells(3) + 1e-2 * random_tensor(4, 3, 0)
    found = critical_points(tensor, TOLERANCE, 8192)
    assert len(found.points) == 13 and len(np.unique(found.kappas.round(6))) == 13
    for u, kappa in zip(found.points, found.kappas, strict=True):
        np.testing.assert_allclose(applied(tensor, u), kappa * u, atol=1e-9)


def test_a_manifold_is_one_entry():
    """(x^2 + y^2)^2 + 3 z^4: a circle, the axis, and a circle of circles between them."""
    flat = np.diag([1.0, 1.0, 0.0])
    tensor = symmetrized(np.einsum("ij,kl->ijkl", flat, flat))
    tensor[2, 2, 2, 2] = 3
    found = critical_points(tensor, TOLERANCE, 1024)
    order = np.argsort(found.kappas)
    np.testing.assert_allclose(found.kappas[order], [0.75, 1, 3], atol=1e-9)
    assert found.num_flat[order].tolist() == [1, 1, 0]
    # Of the circle, the point nearest to the first axis stands for all.
    np.testing.assert_allclose(np.abs(found.points[order[1]]), [1, 0, 0], atol=1e-7)


def test_a_degenerate_point_can_be_isolated():
    """In the plane x^4 + 6 x^2 y^2 + y^4 - c y^4: flat at the axis for one c only."""
    tensor = np.zeros((2,) * 4)
    tensor[0, 0, 0, 0] = 1
    for places in set(permutations((0, 0, 1, 1))):
        tensor[places] = 1 / 3  # x^4 + 2 x^2 y^2: constant to second order along x
    found = critical_points(tensor, TOLERANCE, 2048)
    first = np.argmax(np.abs(found.points[:, 0]))
    assert found.kappas[first] == pytest.approx(1)
    assert np.abs(found.slopes[first]).max() < 1e-4 and found.num_flat[first] == 0


def test_classes_do_not_split_at_the_edge_of_a_bin():
    keys = np.array([[0.5 + 1e-9, 2.0], [0.5 - 1e-9, 1.0], [0.5, 2.0], [0.1, 9.0]])
    assert classes_of(keys, 1e-6).tolist() == [2, 1, 2, 0]
