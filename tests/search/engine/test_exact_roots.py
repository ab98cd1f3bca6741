"""Random functions of one to three variables whose stationary points are known exactly.

A line is a polynomial, or a trigonometric one, whose derivative is a product of single and repeated
roots: minima, maxima, inflections, flat minima. A function is a sum of lines of coordinates that
are turned, stretched and bent, which moves its stationary points and changes the kind of none. Some
have bounds, at random or exactly at a root.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr

NUM_POWERS, NUM_WAVES = 12, 4
MULTIPLICITIES = [1, 1, 1, 2, 2, 3, 4]
KEY = jax.random.key(0)


def height(y, numbers):
    """A line: its powers, then its cosines and sines."""
    k = np.arange(1.0, NUM_WAVES + 1)
    cosines, sines = numbers[NUM_POWERS:-NUM_WAVES], numbers[-NUM_WAVES:]
    return jnp.polyval(numbers[:NUM_POWERS], y) + cosines @ jnp.cos(k * y) + sines @ jnp.sin(k * y)


@dataclass(frozen=True)
class Line:
    """The numbers of a line, and the roots of its derivative with their multiplicities."""

    numbers: np.ndarray
    roots: np.ndarray
    counts: np.ndarray
    is_wave: bool

    def slopes(self, index):
        """The signs of the derivative before and behind a root."""
        others = np.arange(len(self.roots)) != index
        away = self.roots[index] - self.roots[others]  # less than a period
        behind = np.prod(np.sign(away) ** self.counts[others])
        return behind * (-1) ** self.counts[index], behind

    def kind(self, index):
        return {(-1, 1): "minimum", (1, -1): "maximum"}.get(self.slopes(index), "inflection")

    def nearest(self, y):
        """The root next to `y`, and how far it is."""
        away = y - self.roots
        if self.is_wave:
            away -= 2 * np.pi * np.round(away / (2 * np.pi))
        index = int(np.argmin(abs(away)))
        return index, abs(away[index])

    def kind_at(self, y, low, high, noise, size):
        """What is at `y` along this line, by a gradient that is known to within `noise`.

        Points are placed relative to the `size` of the parameters; outside of JAX, where the noise
        is larger, as far as values can tell them from the exact one.
        """
        index, distance = self.nearest(y)
        exact = size * max(1e-6, noise**0.55, 20 * noise ** (1 / self.counts[index]))
        short = exact if distance <= exact else 1e-9
        at_low, at_high = y <= low + short, y >= high - short
        slope = float(jax.grad(height)(y, self.numbers))
        is_held = (y <= low + 1e-9 and slope > 1e-6) or (y >= high - 1e-9 and slope < -1e-6)
        if is_held:
            return "minimum"
        if distance > exact:
            is_held = (at_low and slope > 0) or (at_high and slope < 0)
            return "minimum" if is_held else "no stationary point"
        before, behind = self.slopes(index)
        if at_low or at_high:
            return "minimum" if (behind > 0 if at_low else before < 0) else "inflection"
        return self.kind(index)


def random_polynomial(random):
    counts = np.array([2])
    while counts.sum() % 2 == 0 or counts.sum() > 9:
        counts = random.choice(MULTIPLICITIES, random.integers(1, 5))
    roots = np.zeros(len(counts))
    while len(counts) > 1 and np.diff(np.sort(roots)).min() < 0.4:
        roots = random.uniform(-2, 2, len(counts))
    slope = np.poly(np.repeat(roots, counts)) * 10 ** random.uniform(-1, 1)
    powers = np.polyint(slope, k=random.normal())
    numbers = np.zeros(NUM_POWERS + 2 * NUM_WAVES)
    numbers[NUM_POWERS - len(powers) : NUM_POWERS] = powers
    return Line(numbers, roots, counts, is_wave=False)


def random_wave(random):
    """Of the period 2 pi: the first root is where the mean of the derivative vanishes."""
    t = 2 * np.pi * np.arange(32) / 32
    counts, roots = np.array([1]), np.zeros(1)
    while counts.sum() % 2 or counts.sum() > 2 * NUM_WAVES or np.diff(np.sort(roots)).min() < 0.4:
        counts = np.array([1, *random.choice(MULTIPLICITIES, random.integers(1, 4))])
        roots = random.uniform(-np.pi, np.pi, len(counts))
        rest = np.prod(np.sin((t[:, None] - roots[1:]) / 2) ** counts[1:], axis=1)
        roots[0] = 2 * np.arctan(np.mean(rest * np.sin(t / 2)) / np.mean(rest * np.cos(t / 2)))
    slopes = np.fft.rfft(rest * np.sin((t - roots[0]) / 2) * 2.0 ** counts.sum()) / 32
    k = np.arange(1.0, NUM_WAVES + 1)
    numbers = np.zeros(NUM_POWERS + 2 * NUM_WAVES)
    numbers[NUM_POWERS:] = np.concatenate(
        [2 * slopes[1 : NUM_WAVES + 1].imag / k, 2 * slopes[1 : NUM_WAVES + 1].real / k]
    )
    return Line(numbers, roots, counts, is_wave=True)


def loss(x, numbers, matrix, bend):
    y = matrix @ x
    y = y + jnp.concatenate([jnp.zeros(1), bend * y[:-1] ** 2])
    return sum(height(y[i], numbers[i]) for i in range(len(y)))


@dataclass(frozen=True)
class Function:
    lines: list
    matrix: np.ndarray
    bend: float
    low: np.ndarray
    high: np.ndarray

    def point(self, y):
        """Where the lines are at `y`."""
        y = np.array(y)
        for i in range(1, len(y)):
            y[i] -= self.bend * y[i - 1] ** 2
        return np.linalg.solve(self.matrix, y)

    def problem(self, y):
        numbers = np.stack([line.numbers for line in self.lines])
        return rr.Problem(
            loss, *map(jnp.asarray, (self.point(y), numbers, self.matrix, np.asarray(self.bend)))
        )

    def kind_at(self, x, noise=1e-13):
        """What is there, exactly: the lines decide."""
        y = self.matrix @ np.asarray(x)
        y = y + np.concatenate([[0], self.bend * y[:-1] ** 2])
        size = max(1.0, float(np.linalg.norm(x)))
        kinds = [
            line.kind_at(*one, noise, size)
            for line, one in zip(self.lines, zip(y, self.low, self.high, strict=True), strict=True)
        ]
        for name, whole in (
            ("no stationary point",) * 2,
            ("maximum", "saddle"),
            ("inflection",) * 2,
        ):
            if name in kinds:
                return whole
        return "minimum"


def random_function(seed):
    random, size = np.random.default_rng(seed), 1 + seed % 3
    make = [random_polynomial, random_wave]
    lines = [make[random.integers(2)](random) for _ in range(size)]
    low, high = np.full(size, -np.inf), np.full(size, np.inf)
    if seed % 4 == 3:
        matrix, bend = np.diag(random.uniform(0.5, 2, size)), 0.0
        for i, line in enumerate(lines):
            low[i], high[i] = random.uniform(-2.5, -1.5), random.uniform(1.5, 2.5)
            if random.random() < 0.3:
                low[i] = line.roots.min()
            if random.random() < 0.3 and line.roots.max() > low[i]:
                high[i] = line.roots.max()
        return Function(lines, matrix, bend, low, high)
    turned = np.linalg.qr(random.normal(size=(size, size)))[0]
    bend = random.choice([0.0, random.uniform(-0.5, 0.5)])
    return Function(lines, turned * random.uniform(0.5, 2, size), bend, low, high)


def listed(seed, most):
    """The function, and whatever is listed of it: by whom, its kind, its place."""
    function, random = random_function(seed), np.random.default_rng([seed, 1])
    low, high = np.maximum(function.low, -2.5), np.minimum(function.high, 2.5)
    starts = [function.problem(random.uniform(low, high)) for _ in range(3)]
    has_bounds = bool(np.isfinite(function.low).all())
    found = [] if has_bounds else listed_without_bounds(function, starts, most)
    both = jax.jit(jax.value_and_grad(starts[0].value))
    minima = rr.minimize_all(
        lambda x: tuple(map(np.asarray, both(x))),
        starts[0].x0,
        jac=True,
        bounds=np.transpose([function.point(function.low), function.point(function.high)])
        if has_bounds
        else None,
        max_calls=50 * most,
    )
    return function, found + [("minimize_all", "minimum", one.x) for one in minima if one.success]


def listed_without_bounds(function, starts, most):
    found = []
    for problem in starts:
        end = jax.device_get(rr.Descend()(problem, problem.x0, KEY, None))
        found.append(("Descend", end.kind, end.x))
    tops = [
        line.roots[(line.counts == 1) & [line.kind(i) == "maximum" for i in range(len(line.roots))]]
        for line in function.lines
    ]
    if all(len(one) for one in tops):
        result = rr.search(function.problem([one[0] for one in tops]), max_rides=most // 3)
        found += [("search", one.kind, one.params) for one in result.minima()]
    try:
        landscape = rr.explore(starts[0], max_rides=most)
    except ValueError as error:  # below the start there is an inflection
        assert "`start` must lie above a minimum" in str(error)
        return found
    points = (*landscape.minima(), *landscape.saddles(None))
    return found + [("explore", one.kind, one.params) for one in points]


@pytest.mark.parametrize(
    ("seeds", "most"),
    [((*range(1, 31, 3), 5094), 6), pytest.param(range(500), 12, marks=pytest.mark.long)],
)
def test_no_false_minimum_and_no_false_saddle(seeds, most):
    count, wrong = 0, []
    for seed in seeds:
        function, found = listed(seed, most)
        for who, kind, x in found:
            # Outside of JAX curvature is a difference of gradients, and flat points are less exact.
            is_kind = function.kind_at(x, 1e-9 if who == "minimize_all" else 1e-13)
            if kind in ("minimum", "saddle"):
                count += 1
                if is_kind != kind:
                    wrong.append((seed, who, kind, is_kind, np.asarray(x)))
                    print(wrong[-1], flush=True)
    print(f"{count} minima and saddles of {len(seeds)} functions, {len(wrong)} wrong")
    assert count > len(seeds) and not wrong


def test_the_roots_are_those_of_the_functions():
    slope = jax.jit(jax.grad(height))
    for seed in range(30):
        for line in random_function(seed).lines:
            for index, root in enumerate(line.roots):
                assert abs(float(slope(root, line.numbers))) < 1e-10
                signs = [np.sign(float(slope(root + step, line.numbers))) for step in (-0.05, 0.05)]
                assert tuple(signs) == line.slopes(index)


@pytest.mark.parametrize("bounds", [None, [(-2, 2)] * 2])
def test_a_level_curve_is_not_a_saddle(bounds):
    # Along the ring the curvature of differences may be negative by what these are off.
    minima = rr.minimize_all(lambda x: (x @ x - 1) ** 2, [0.5, 0.2], bounds=bounds, max_calls=1500)
    assert len(minima) == 1 and abs(np.linalg.norm(minima[0].x) - 1) < 1e-6
    assert all(one.loss > 0.5 for one in minima.landscape.saddles(None))  # the maximum at zero


def test_a_soft_saddle_is_one():
    def loss(x):
        return 50 * (x[1] - 0.3 * x[0] ** 2) ** 2 + 0.01 * (x[0] ** 2 - 1) ** 2

    minima = rr.minimize_all(loss, [0.5, 0.2], bounds=[(-2, 2)] * 2, max_calls=3000)
    (saddle,) = minima.landscape.saddles()
    assert abs(saddle.loss - 0.01) < 1e-8 and abs(np.asarray(saddle.params)).max() < 1e-4


def test_an_inflection_is_no_minimum_where_values_are_rounded():
    def loss(x):
        rounding = 1e-14 * np.cos(1e15 * x[1])  # of terms that cancel
        slope = np.array([2 * x[0], x[1] ** 4 + x[1] ** 5])
        return x[0] ** 2 + x[1] ** 5 / 5 + x[1] ** 6 / 6 + rounding, slope

    for start in (0.3, 0.45, 0.6, 0.8):
        minima = rr.minimize_all(loss, [0.3, start], jac=True, max_calls=200)
        assert all(abs(one.x[1] + 1) < 1e-3 for one in minima if one.success)
