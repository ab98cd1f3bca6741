r"""Appendix D: every statement of the paper's theory as a check on random instances.

    ridgerider reproduce theory

The test function, unless a statement wants its own, is a tilted sum of waves around a quadratic,

    L(x) = x^T A x / 2 + sum_k c_k cos(w_k . x + b_k) - tilt . x,      beta = sum_k |c_k| |w_k|^3,

whose Hessian is beta-Lipschitz in closed form; the tilt makes the origin stationary. Where a
statement fails as it is written, the result says so beside the statement that holds.

As printed, Theorems 1, 2, 4 and 5, the lemma of D.7, exp(-H) in D.1 and the eigengap in D.3 fail.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike
from scipy import stats
from scipy.linalg import expm
from scipy.optimize import LinearConstraint, minimize
from scipy.special import softmax

import ridgerider as rr
from ridgerider.problems.levers import entropy, lever_loss, lever_saddle
from ridgerider.types import Ridge, Spectrum
from ridgerider_experiments.runner import Base, Job, Runner, sized
from ridgerider_experiments.show import markdown

SIZE, NUM_WAVES, LEVERS = 6, 8, 6
KEY = jax.random.key(0)  # of rides that draw nothing
Check = Callable[[np.random.Generator], Any]
# Checks of one random instance, what their margin means, and what is said of the printed statement;
# filled below, in the order of the table.
STATEMENTS: dict[str, tuple[Check, str, str]] = {}


@dataclass(frozen=True)
class Settings(Base):
    instances: int = sized(240, quick=48)  # of each statement


# --- the test function


def waves_loss(x: Array, a: Array, c: Array, w: Array, b: Array, tilt: Array) -> Array:
    return x @ a @ x / 2 + c @ jnp.cos(w @ x + b) - tilt @ x


def make_waves(random: np.random.Generator) -> tuple[rr.Problem, float]:
    """A random instance whose origin is a saddle, and its beta."""
    while True:
        a = random.normal(size=(SIZE, SIZE))
        c, w = random.normal(size=NUM_WAVES), random.normal(size=(NUM_WAVES, SIZE)) / np.sqrt(SIZE)
        b = random.uniform(0, 2 * np.pi, NUM_WAVES)
        data = [jnp.asarray(part) for part in ((a + a.T) / 2, c, w, b, -(c * np.sin(b)) @ w)]
        problem = rr.Problem(waves_loss, jnp.zeros(SIZE), *data)
        if np.linalg.eigvalsh(look(problem, np.zeros(SIZE))[2])[0] < -0.1:
            return problem, float(np.abs(c) @ np.linalg.norm(w, axis=1) ** 3)


@eqx.filter_jit
def _look(problem: rr.Problem, x: Array) -> tuple[Array, Array, Array]:
    return problem.value(x), problem.grad(x), problem.hessian(x)


def look(problem: rr.Problem, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss, gradient and Hessian at x."""
    loss, grad, hessian = jax.device_get(_look(problem, jnp.asarray(x)))
    return float(loss), grad, hessian


def unit(random: np.random.Generator, size: int = SIZE) -> np.ndarray:
    vector = random.normal(size=size)
    return vector / np.linalg.norm(vector)


def gaps(eigenvalues: np.ndarray) -> np.ndarray:
    """The smaller of the two gaps beside each eigenvalue."""
    steps = np.concatenate([[np.inf], np.diff(eigenvalues), [np.inf]])
    return np.minimum(steps[:-1], steps[1:])


def statement(meaning: str, written: str = "") -> Callable[[Check], Check]:
    """Register a check of one random instance.

    It returns its margin, what `meaning` says: 0 is the edge of the statement, and below it the
    instance violates it. Or the margin, and what `written` says of the statement as it is printed:
    whether it fails, or numbers by name. None: the statement does not apply to this instance.
    """

    def register(check: Check) -> Check:
        STATEMENTS[check.__name__] = (check, meaning, written)
        return check

    return register


def judge(name: str, random: np.random.Generator, instances: int) -> dict[str, Any]:
    """A statement on random instances: violations, the least margin, and further counts.

    Of what a check says besides, truths are counted and of numbers the largest is taken.
    """
    check, meaning, written = STATEMENTS[name]
    found: list[Any] = []
    while len(found) < instances:
        if (one := check(random)) is not None:
            found.append(one if isinstance(one, tuple) else (one, {}))
    margins, others = zip(*found, strict=True)
    more = [of if isinstance(of, dict) else {"violations_as_written": of} for of in others]
    results = {**verdict(margins), "margin_means": meaning}
    for part in more[0]:
        values = [one[part] for one in more]
        results[part] = (
            int(sum(values)) if isinstance(values[0], bool | np.bool_) else float(max(values))
        )
    return results | ({"as_written": written.format(**results)} if written else {})


def verdict(margins: Sequence[float]) -> dict[str, Any]:
    violations = sum(not margin >= 0 for margin in margins)
    found = {"instances": len(margins), "violations": int(violations)}
    return {**found, "margin": float(min(margins))}


# --- the statements


@statement("1e-3 - largest error of a component / length of the displacement")
def gradient_descent_turns(random: np.random.Generator) -> float:
    """D.1: near a saddle, gradient descent turns towards the most negative eigenvector.

    Component i of the displacement is multiplied by 1 - alpha lambda_i at each step.
    """
    problem, _ = make_waves(random)
    eigenvalues, columns = np.linalg.eigh(look(problem, np.zeros(SIZE))[2])
    alpha = 0.5 / np.abs(eigenvalues).max()
    start = 1e-9 * unit(random) @ columns.T
    # While |x| stays below 1e-6 the Hessian is that of the saddle to about 1e-6.
    num_steps = int(np.log(1e3) / np.log(1 - alpha * eigenvalues[0]))
    end = np.asarray(_descend(problem, *map(jnp.asarray, (start, alpha, num_steps))))
    before, after = start @ columns, end @ columns
    factors = (1 - alpha * eigenvalues) ** num_steps
    # Components that fall behind end below rounding and second-order terms, about 1e-6 of |x|: so
    # errors are compared with the whole displacement.
    return 1e-3 - np.abs(after - factors * before).max() / np.linalg.norm(after)


@eqx.filter_jit
def _descend(problem: rr.Problem, x: Array, alpha: Array, num_steps: Array) -> Array:
    return jax.lax.fori_loop(0, num_steps, lambda _, x: x - alpha * problem.grad(x), x)


@statement(
    "1e-9 - largest error / largest entry",
    "exp(-H) as printed is wrong on {violations_as_written} of {instances} instances",
)
def gradient_flow(random: np.random.Generator) -> tuple[float, bool]:
    """D.1, in the limit of small steps: component i grows as exp(-alpha lambda_i t).

    As printed exp(-H) = -Q exp(Lambda) Q^-1, which has the wrong sign twice.
    """
    hessian = random.normal(size=(SIZE, SIZE))
    eigenvalues, columns = np.linalg.eigh(hessian + hessian.T)
    exact = expm(-(hessian + hessian.T))
    flow, printed = (
        np.abs((columns * growth) @ columns.T - exact).max() / np.abs(exact).max()
        for growth in (np.exp(-eigenvalues), -np.exp(eigenvalues))
    )
    return 1e-9 - flow, bool(printed > 1e-9)


@statement("1 - |change| / bound")
def eigenvalues_lipschitz(random: np.random.Generator) -> float:
    """D.2, Proposition 1: |lambda_i(x') - lambda_i(x)| <= beta |x' - x|."""
    problem, beta = make_waves(random)
    x, step = random.normal(size=SIZE), 10 ** random.uniform(-4, 0) * unit(random)
    one, two = (np.linalg.eigvalsh(look(problem, at)[2]) for at in (x, x + step))
    return 1 - np.abs(two - one).max() / (beta * np.linalg.norm(step))


@statement("1 - |change| / bound")
def eigenvector_bound(random: np.random.Generator) -> float | None:
    """D.2, Lemma 2: |e_i(x) -+ e_i(x')| <= sqrt(4 beta |x - x'| / gap) if |x - x'| <= gap / 4 beta.

    With beta |x - x'| replaced by |H(x) - H(x')|, which is never larger, the bound is at its
    sharpest.
    """
    problem, _ = make_waves(random)
    x, i, direction = random.normal(size=SIZE), random.integers(SIZE), unit(random)
    hessian = look(problem, x)[2]
    eigenvalues, columns = np.linalg.eigh(hessian)
    gap = gaps(eigenvalues)[i]
    slope = np.linalg.norm(look(problem, x + 1e-3 * direction)[2] - hessian, 2) / 1e-3
    other_hessian = look(problem, x + random.uniform(0, 1) * gap / (4 * slope) * direction)[2]
    change = np.linalg.norm(other_hessian - hessian, 2)
    if change > gap / 4:
        return None
    other = np.linalg.eigh(other_hessian)[1][:, i]
    moved = min(np.linalg.norm(columns[:, i] - other), np.linalg.norm(columns[:, i] + other))
    return 1 - moved / np.sqrt(4 * change / gap)


@statement("fitted order - 0.9")
def canonical_path(random: np.random.Generator) -> float:
    """D.2: rides of smaller and smaller steps converge to one path, of order 1 in the step.

    Its limit is the canonical path of the eigenvector, whose sign never turns. The path is ridden
    for a quarter of gap / beta, on which the eigenvalue stays isolated.
    """
    problem, beta = make_waves(random)
    x, i = random.normal(size=SIZE), int(random.integers(SIZE))
    eigenvalues, columns = np.linalg.eigh(look(problem, x)[2])
    length, ends = gaps(eigenvalues)[i] / (4 * beta), []
    counts = 2 ** np.array([2, 3, 4, 5, 10])
    for count in counts:
        ends.append(ridden(problem, x, columns[:, i], length / count, int(count)).x)
    errors = np.linalg.norm(np.array(ends[:-1]) - ends[-1], axis=1)
    return -np.polyfit(np.log(counts[:-1]), np.log(errors), 1)[0] - 0.9


def ridden(problem: rr.Problem, x: ArrayLike, direction: ArrayLike, size: float, n: int) -> Any:
    """A ride of n steps, with its path, whatever the curvature."""
    rider = rr.Rider(step=rr.FixedStep(jnp.asarray(size)), stop=(), max_steps=n, keep_path=True)
    ridge = Ridge(jnp.asarray(direction), jnp.asarray(0.0), jnp.asarray(0), jnp.asarray(1))
    return jax.device_get(_ride(rider, problem, jnp.asarray(x), ridge, KEY))


@statement(
    "descent / promised descent - 1",
    "violated on {violations_as_written} of {instances} flat ridges: the loss rises by up to "
    "{rise_as_written:.2g}",
)
def two_step_descent(random: np.random.Generator) -> tuple[float, dict[str, Any]] | None:
    """D.4, Theorem 1: two steps of size alpha descend by gamma alpha |grad|.

    The statement needs the ridge to be negative, and its last line needs the cubic terms to be
    smaller than the quadratic ones, which alpha <= gap gamma^2 / (16 beta) does not give. With
    alpha <= |lambda| / beta besides, it holds: the terms beyond first order add up to at most
    alpha^2 (1.875 lambda + (1/2 + 5/6) alpha beta) <= 0.

    Each instance is a sum of waves and a flat ridge, on which the paper's bound alone fails: f =
    -g t - e t^2 / 2 + t^3 / 6 beside a curvature of 1. The ridge does not turn, beta and gamma are
    1 and the gap is 1 + e.
    """
    problem, beta = make_waves(random)
    x, i = random.normal(size=SIZE), random.integers(SIZE)
    loss, grad, hessian = look(problem, x)
    eigenvalues, columns = np.linalg.eigh(hessian)
    gamma = abs(grad @ columns[:, i]) / np.linalg.norm(grad)
    if eigenvalues[i] >= 0 or gamma < 0.05:
        return None
    alpha = min(gaps(eigenvalues)[i] * gamma**2 / 16, -eigenvalues[i]) / beta
    downhill = -columns[:, i] * np.sign(grad @ columns[:, i])
    fall = loss - float(ridden(problem, x, downhill, alpha, 2).loss)

    def margin(slope: float, curvature: float, alpha: float) -> tuple[float, float]:
        t = 2 * alpha
        fall = slope * t + curvature * t**2 / 2 - t**3 / 6
        return fall / (slope * alpha) - 1, fall

    slope, curvature = 10 ** random.uniform(-9, 0, 2)
    flat, _ = margin(slope, curvature, min((1 + curvature) / 16, curvature))
    small = 10 ** random.uniform(-9, -3)
    printed, printed_fall = margin(small, small, (1 + small) / 16)
    more = {"violations_as_written": bool(printed < 0), "rise_as_written": -printed_fall}
    return min(fall / (gamma * alpha * np.linalg.norm(grad)) - 1, flat), more


_ride = eqx.filter_jit(rr.Rider.ride)


@statement(
    "1e-9 - error of a gradient; eigengap / (Delta / lambda)^2 - 1",
    "the eigengap is below Delta / 2 on {violations_as_written} of {instances} instances; the "
    "second form of the gradient by lambda lacks a factor 1 / |e|",
)
def residual_gradients(random: np.random.Generator) -> tuple[float, bool]:
    """D.3: the gradients of |H e / lambda - e|^2 / |e|^2 and the eigengap of its operator.

    The printed gradient by e is right, and so is the first form of that by lambda; its second form
    lacks a factor 1 / |e|. The operator 4 H / lambda - 2 H^2 / lambda^2 has its largest eigenvalue
    at e_i if lambda is nearest to lambda_i. If it is within a quarter of the gap Delta, the next
    eigenvalue is lower by Delta^2 / lambda^2, not by Delta / 2 as printed.
    """
    hessian = random.normal(size=(SIZE, SIZE))
    hessian = hessian + hessian.T
    eigenvalues = np.linalg.eigvalsh(hessian)
    i = int(random.integers(SIZE))
    gap = gaps(eigenvalues)[i]
    guess = eigenvalues[i] + random.uniform(-0.25, 0.25) * gap
    e = random.normal(size=SIZE)
    by_e, by_guess = map(np.asarray, _residual_gradients(e, guess, hessian))
    unit_e = e / np.linalg.norm(e)
    once, twice = (unit_e @ power @ unit_e for power in (hessian, hessian @ hessian))
    square = 2 / guess**2 * (hessian @ hessian @ unit_e - twice * unit_e)
    printed_by_e = (square - 4 / guess * (hessian @ unit_e - once * unit_e)) / np.linalg.norm(e)
    printed_by_guess = -2 / guess**3 * twice + 2 / guess**2 * once
    errors = [
        np.abs(printed_by_e - by_e).max() / np.abs(by_e).max(),
        abs(printed_by_guess - by_guess) / (2 / abs(guess) ** 3 * twice),
    ]
    values = 4 * eigenvalues / guess - 2 * (eigenvalues / guess) ** 2
    spare = values[i] - np.delete(values, i).max()
    margin = min(1e-9 - max(errors), spare / (gap / guess) ** 2 - 1 + 1e-9)
    return margin, bool(spare < gap / 2)


@jax.jit
def _residual_gradients(e: Array, guess: Array, hessian: Array) -> tuple[Array, Array]:
    def residual(e: Array, guess: Array) -> Array:
        return jnp.sum((hessian @ e / guess - e) ** 2) / jnp.sum(e**2)

    return jax.grad(residual, argnums=(0, 1))(e, guess)


@statement(
    "promised factor - measured factor of tan(angle)",
    "violated on {violations_as_written} of {instances} instances with the learning rate "
    "min(1/4, gaps)",
)
def residual_descent(random: np.random.Generator) -> tuple[float, bool] | None:
    """D.3, Theorem 2: gradient descent on |H e / lambda - e|^2 converges to the eigenvector.

    In the eigenbasis a step multiplies component j, against component i, by 1 - 2 alpha d_j / D
    with d_j = (lambda_j / lambda - 1)^2 - (lambda_i / lambda - 1)^2 and 1 <= D <= 1 + 2 alpha max
    d. So it needs alpha < 1 / max d, which the paper's min(1/4, gaps) is not; with alpha = 1 / (2
    max d) the tangent of the angle falls by 1 - min d / (2 max d) at least, at every step.
    """
    problem, beta = make_waves(random)
    x = random.normal(size=SIZE)
    eigenvalues, columns = np.linalg.eigh(look(problem, x)[2])
    i = int(random.integers(SIZE))
    written = min(0.25, gaps(eigenvalues)[i])
    hessian = look(problem, x + written / (4 * beta) * unit(random))[2]
    before = columns[:, i]
    nearby, frame = np.linalg.eigh(hessian)
    start, guess = frame.T @ before, before @ hessian @ before
    distance = (nearby / guess - 1) ** 2
    d = np.delete(distance, i) - distance[i]
    if d.min() <= 0:  # the guess is nearer to another eigenvalue: outside the theorem
        return None
    tangents = _filter(start, nearby, guess, 0.5 / d.max(), 30, i)
    factors = tangents[1:] / np.maximum(tangents[:-1], 1e-300)
    margin = 1 - d.min() / (2 * d.max()) - factors.max() + 1e-9
    claim = 1 - (1 - written / 4) ** np.arange(201)
    cosines = 1 / np.sqrt(1 + _filter(start, nearby, guess, written, 200, i) ** 2)
    return margin, bool((cosines < claim - 1e-9).any())


def _filter(
    e: np.ndarray, eigenvalues: np.ndarray, guess: float, alpha: float, num_steps: int, i: int
) -> np.ndarray:
    """tan(angle to eigenvector i) along descent on the residual, in the eigenbasis, lambda held."""
    ratio, tangents = eigenvalues / guess, []
    for _ in range(num_steps + 1):
        tangents.append(np.linalg.norm(np.delete(e, i)) / max(abs(e[i]), 1e-300))
        gradient = 2 * (ratio**2 - e @ (ratio**2 * e)) * e - 4 * (ratio - e @ (ratio * e)) * e
        e = e - alpha * gradient
        e = e / np.linalg.norm(e)
    return np.asarray(tangents)


@statement("fitted order - 1.9")
def gradient_along_ride(random: np.random.Generator) -> float:
    """D.5: from a saddle, grad L after T steps is alpha sum_t lambda e + O(alpha^2)."""
    problem, _ = make_waves(random)
    direction, errors = _spectrum(problem).eigenvectors[0], []
    alphas = 2.0 ** -np.arange(8, 13)
    for alpha in alphas:
        ride = ridden(problem, problem.x0, direction, alpha, 6)
        steps = np.diff(ride.trace.path, axis=0)
        predicted = (ride.trace.eigenvalue[:-1, None] * steps).sum(axis=0)
        errors.append(np.linalg.norm(look(problem, ride.x)[1] - predicted))
    return np.polyfit(np.log(alphas), np.log(errors), 1)[0] - 1.9


@statement("least fall of a step / (alpha^2 |lambda| / 2)")
def overlap_lowers_loss(random: np.random.Generator) -> float:
    """Main text: from a saddle, negative curvature and positive overlaps make the loss fall.

    Along a ride of small steps with lambda < 0 and all directions within 90 degrees of each other,
    at every step. Rides on which the condition ends are judged until then.
    """
    problem, beta = make_waves(random)
    spectrum = _spectrum(problem)
    is_negative = np.asarray(spectrum.eigenvalues) < -0.05
    ridge = spectrum.ridge(int(random.integers(is_negative.sum())))
    alpha = 0.05 * abs(float(ridge.eigenvalue)) / beta
    trace = ridden(problem, problem.x0, ridge.direction, alpha, 60).trace
    directions = np.diff(trace.path, axis=0) / alpha
    is_met = (trace.eigenvalue[:-1] < 0) & (
        np.tril(directions @ directions.T, -1) + np.triu(np.ones(2 * (len(directions),))) > 0
    ).all(axis=1)
    num_met = len(is_met) if is_met.all() else int(np.argmin(is_met))
    # What a step lowers the loss by, in units of alpha^2 |lambda| / 2, its first-order size.
    falls = -np.diff(trace.loss)[:num_met] / (alpha**2 * abs(trace.eigenvalue[0]) / 2)
    return falls.min()


@statement("spare distinct eigenvalues, multiplicity, trivial eigenvectors")
def repeated_eigenvalues(random: np.random.Generator) -> float:
    """D.6, Theorem 3: N equivalent sets of m parameters leave at most d - m (N - 2) eigenvalues.

    Every eigenvalue with a non-trivial eigenvector has multiplicity N - 1 at least, and at most d -
    m (N - 1) eigenvectors are trivial: those that all swaps of two sets leave in place.
    """
    num, size, rest = (int(random.choice(of)) for of in ((3, 4, 5), (1, 2), (0, 2)))
    problem = make_symmetric(random, num, size, rest)
    spectrum, d = jax.device_get(_spectrum(problem)), problem.size
    blocks = spectrum.eigenvectors[:, : num * size].reshape(-1, num, size)
    trivial = np.abs(blocks - blocks[:, :1]).max(axis=(1, 2)) < 1e-6
    sizes = np.array([cluster.multiplicity for cluster in spectrum.clusters()])
    is_trivial = np.array([trivial[spectrum.labels == k].all() for k in range(len(sizes))])
    lacking = sizes[~is_trivial] - (num - 1)
    spare = d - size * (num - 1) - sizes[is_trivial].sum()
    return float(min([d - size * (num - 2) - len(sizes), spare, *lacking]))


def symmetric_loss(params: dict[str, Array], mix: Array, scale: Array, pool: Array) -> Array:
    """A sum over the rows of `blocks` plus a function of pooled features: permutations keep it."""
    blocks, rest = params["blocks"], params["rest"]
    inputs = jnp.concatenate([blocks, jnp.broadcast_to(rest, (len(blocks), len(rest)))], axis=1)
    pooled = jnp.sum(jnp.tanh(blocks @ pool), axis=0)
    return (
        jnp.sum(jnp.sin(inputs @ mix) @ scale)
        + jnp.sum(jnp.cos(pooled))
        + jnp.sum(pooled) ** 2
        + jnp.sum(rest**3)
    )


def make_symmetric(random: np.random.Generator, num: int, size: int, rest: int) -> rr.Problem:
    """A random invariant loss at a random point that the permutations leave in place."""
    data = [random.normal(size=shape) for shape in ((size + rest, 5), (5,), (size, 3))]
    start = {
        "blocks": np.tile(random.normal(size=size), (num, 1)),
        "rest": random.normal(size=rest),
    }
    return rr.Problem(symmetric_loss, start, *map(jnp.asarray, data))


@eqx.filter_jit
def _spectrum(problem: rr.Problem) -> Spectrum:
    return rr.DenseSpectrum()(problem, problem.x0, jax.random.key(0))


@statement("1e-3 - largest difference of probability between tied actions")
def most_entropy_at_value(random: np.random.Generator) -> float:
    """D.7, Theorem 4: of policies of one return, that of most entropy is invariant under ties."""
    rewards = np.zeros(6)
    while np.ptp(rewards) == 0:  # else every policy has the same return: nothing to constrain
        rewards = random.integers(0, 3, size=6).astype(float)
    value = rewards.min() + random.uniform(0.1, 0.9) * np.ptp(rewards)
    sums = LinearConstraint(np.stack([rewards, np.ones(6)]), *2 * ([value, 1],))
    start, inside = random.dirichlet(np.ones(6)), [(1e-9, 1)] * 6
    found = minimize(
        lambda p: p @ np.log(p), start, method="SLSQP", bounds=inside, constraints=sums, tol=1e-12
    ).x
    return 1e-3 - max(np.ptp(found[rewards == reward]) for reward in rewards)


@statement(
    "entropy of the invariant policy - that of the uneven one, two states",
    "violated on {violations_as_written} of {instances} instances with three states",
)
def most_entropy_with_states(random: np.random.Generator) -> tuple[float, bool]:
    """D.7, Theorem 4 with several states: for N equal subtrees, N = 2, the invariant policy wins.

    At the root one of N equal states is chosen, in each of which an action pays 1 or 0. Of return b
    the invariant policy has the entropy log N + N h(b). If N > 2 and b is close to 1, a policy that
    goes to one state and is uniform in the others has more: the sum counts states that are hardly
    ever visited. So the theorem as printed, for any episodic problem, fails.
    """
    value = 1 - 10 ** random.uniform(-4, -0.5)
    two, three = (
        np.log(count) + count * stats.entropy([value, 1 - value]) - _uneven_entropy(count, value)
        for count in (2, 3)
    )
    return two, three < 0


def _uneven_entropy(count: int, value: float) -> float:
    """The most entropy of a policy that prefers one state and is uniform in all others."""
    inside = np.linspace(value, 1, 1001)[1:-1]
    share = (value - 0.5) / (inside - 0.5)
    others = np.repeat(((1 - share) / (count - 1))[None], count - 1, axis=0)
    root = stats.entropy(np.concatenate([share[None], others]))
    leaf = stats.entropy(np.stack([inside, 1 - inside]))
    return float(np.max(root + leaf) + (count - 1) * np.log(2))


@statement(
    "1e-12 max |r| - largest difference from the derivative",
    "violated on {violations_as_written} of {instances} instances: the left side lacks r_j",
)
def softmax_gradient(random: np.random.Generator) -> tuple[float, bool]:
    """D.7, Lemma: the gradient of the return of a softmax policy is p_i (r_i - mean r).

    As printed the return lacks its rewards: sum_j p_j is 1 and its gradient 0.
    """
    size = int(random.integers(2, 9))
    logits, rewards = 2 * random.normal(size=(2, size))
    p = softmax(logits)
    lemma = p * (rewards - p @ rewards)
    found, bare = (
        np.abs(np.asarray(_softmax_gradient(logits, of)) - lemma).max()
        for of in (rewards, np.ones(size))
    )
    return 1e-12 * np.abs(rewards).max() - found, bool(bare > 1e-12)


@jax.jit
def _softmax_gradient(logits: Array, rewards: Array) -> Array:
    return jax.grad(lambda logits: jax.nn.softmax(logits) @ rewards)(logits)


@statement(
    "1e-6 - distance of the policy from the invariant saddle",
    "the bare minimiser breaks a symmetry on {violations_as_written} of {instances} lists of "
    "payoffs of both signs and on {violations_positive} of {instances} of positive ones; on a "
    "level set |grad J| = b of rewards (1, 1, 0) invariant policies reach b = "
    "{invariant_level:.3f}, others {other_level:.3f}; with two equal states below a root "
    "{invariant_level_with_states:.3f}, others {other_level_with_states:.3f}",
)
def invariant_saddle(random: np.random.Generator) -> tuple[float, dict[str, Any]]:
    """D.7, Theorem 5: the saddle of most entropy is invariant under symmetries.

    On the lever game tied payoffs are the symmetries. What the method rides from, the saddle that
    `find_saddle` settles on, is the known invariant one: p = q proportional to 1 / payoff. The bare
    minimiser of |grad J| - weight * entropy need not be invariant. It is searched for from random
    starts over all policies, and over those that treat tied levers alike; where the first finds
    less, no invariant policy is the minimiser: two players then lean to different ones of the tied
    levers. As printed the theorem speaks of a level set |grad J| = b, which need hold no invariant
    policy at all.
    """
    payoffs = random.choice([0.5, 0.75, 1.0], size=LEVERS)
    problem = rr.Problem(lever_loss, jnp.zeros((2, LEVERS)), jnp.asarray(payoffs))
    seed = int(random.integers(2**31))
    saddle = rr.find_saddle(problem, _negative_entropy, noise=0.3, seed=seed)
    policies = [jax.nn.softmax(logits) for logits in (saddle.params, lever_saddle(payoffs))]
    sizes = np.array([0.1, 0.5, 1.0])
    more = {
        "violations_as_written": _gain_by_breaking(random, np.concatenate([-sizes, sizes])) > 1e-5,
        "violations_positive": _gain_by_breaking(random, sizes) > 1e-5,
        **_level_sets(),
    }
    return 1e-6 - float(jnp.abs(policies[0] - policies[1]).max()), more


def _negative_entropy(params: Array) -> Array:
    return -entropy(params)


def _gain_by_breaking(random: np.random.Generator, values: np.ndarray) -> float:
    """How much lower the objective is over all policies than over the invariant ones.

    Six levers with a tie. Both minimisations have the same sixteen starts, averaged over ties where
    policies are to be invariant.
    """
    payoffs = random.choice(values, size=LEVERS)
    while len(np.unique(payoffs)) in (1, LEVERS):
        payoffs = random.choice(values, size=LEVERS)
    tied = (payoffs[:, None] == payoffs[None]).astype(float)
    tied /= tied.sum(axis=1, keepdims=True)
    starts = 2 * random.normal(size=(16, 2, LEVERS))
    weight, numbers = jnp.asarray(10 ** random.uniform(-2, -1)), jnp.asarray(payoffs)
    invariant = _least(jnp.asarray(starts @ tied), jnp.asarray(tied), numbers, weight)
    return float(invariant - _least(jnp.asarray(starts), jnp.eye(LEVERS), numbers, weight))


@jax.jit
def _least(starts: Array, tied: Array, payoffs: Array, weight: Array) -> Array:
    """The least value that Adam finds, with a norm rounded at its tip less and less."""

    def value(logits: Array, rounding: Array) -> Array:
        logits = logits @ tied
        grad = jax.grad(lever_loss)(logits, payoffs)
        return jnp.sqrt(jnp.sum(grad**2) + rounding**2) - weight * entropy(logits)

    def descend(logits: Array) -> Array:
        optimizer = optax.adam(optax.cosine_decay_schedule(0.1, 1500))

        def step(carry: tuple, index: Array) -> tuple:
            logits, state = carry
            slope = jax.grad(value)(logits, 1e-2 * 1e-4 ** (index / 1500))
            with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
                move, state = optimizer.update(slope, state)
            return (logits + move, state), None

        start = (logits, optimizer.init(logits))
        end = jax.lax.scan(step, start, jnp.arange(1500.0))[0][0]
        return value(end, jnp.zeros(()))

    return jnp.min(jax.vmap(descend)(starts))


@cache
def _level_sets() -> dict[str, float]:
    """The largest |grad J| of invariant policies, and of others.

    A bandit with rewards (1, 1, 0), the others on the edge where one of the tied actions is left
    out; and two equal states below a root, in which an action pays 1 or 0, the others going to one
    of the states only. There the gradient by the logits of a state is the state's probability times
    p (1 - p) (1, -1), and the root's vanishes.
    """
    third, rewards = np.linspace(0, 1, 2001), np.array([1.0, 1.0, 0.0])

    def most(share: float) -> float:
        """With this share of what pays going to the first action."""
        p = np.stack([share * (1 - third), (1 - share) * (1 - third), third], axis=1)
        return float(np.linalg.norm(p * (rewards - (p @ rewards)[:, None]), axis=1).max())

    slope = float(np.sqrt(2) * np.max(third * (1 - third)))
    with_states = {"invariant_level_with_states": slope / np.sqrt(2)}
    levels = {"invariant_level": most(0.5), "other_level": most(1.0)}
    return {**levels, **with_states, "other_level_with_states": slope}


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    jobs = [settings.job(name=name, number=k) for k, name in enumerate(STATEMENTS)]
    return dict(zip(STATEMENTS, runner(work, jobs), strict=True))


def work(job: Job) -> dict[str, Any]:
    random = np.random.default_rng([job["seed"], job["number"]])
    return judge(job["name"], random, job["instances"])


def table(results: dict[str, Any]) -> str:
    rows = []
    for name, one in ((name, results[name]) for name in STATEMENTS):
        statement = (STATEMENTS[name][0].__doc__ or name).splitlines()[0]
        margin = f"{one['margin']:.3g} ({one['margin_means']})"
        written = one.get("as_written", f"the same, {one['violations']} violations")
        row = (statement, str(one["instances"]), str(one["violations"]), margin, written)
        rows.append([cell.replace("|", "\\|") for cell in row])
    return markdown(["statement", "instances", "violations", "margin", "as written"], rows)
