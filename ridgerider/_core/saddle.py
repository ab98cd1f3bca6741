r"""The saddle to set out from.

The maximally invariant saddle of the paper is found by minimising

    |grad L(x)| + weight * regularizer(x)

with the regularizer a negative entropy, say. The norm is not squared: it is an exact penalty, so a
small enough weight leaves the minimiser exactly on grad L = 0. What is left of the gradient is
removed by Newton steps, x <- x - pinv(H) grad, the shortest step that makes the linearised gradient
vanish.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from ridgerider._check import check_at_least, check_callable, check_count, check_positive
from ridgerider._core.cost import Cost
from ridgerider._core.problem import Problem, Scalar, Vector
from ridgerider._core.spectrum import Cluster, DenseSpectrum, Spectrum, tolerance_of

Regularizer = Callable[[PyTree], Scalar]


@dataclass(frozen=True)
class Saddle:
    """A stationary point and what surrounds it.

    `morse_index` counts the negative eigenvalues. `is_strict` reads true if the gradient vanishes
    and at least one eigenvalue is clearly negative; then every ridge leads downhill both ways.

    >>> from ridgerider.problems import wells
    >>> saddle = find_saddle(wells(3))
    >>> saddle.morse_index, [cluster.multiplicity for cluster in saddle.clusters]
    (3, [1, 1, 1])
    """

    params: PyTree
    loss: float
    grad_norm: float
    morse_index: int
    clusters: tuple[Cluster, ...]
    is_stationary: bool
    is_strict: bool
    cost: Cost


def find_saddle(
    problem: Problem,
    regularizer: Regularizer | None = None,
    *,
    weight: float = 1e-2,
    learning_rate: float = 0.05,
    max_steps: int = 2000,
    max_polish: int = 50,
    noise: float = 0.0,
    seed: int = 0,
) -> Saddle:
    """Find a stationary point near `problem.start`.

    **Arguments**

    - `regularizer(params)`: made small on the way, weighted by `weight`; e.g. minus the entropy of
      a policy. Without one the point with the smallest gradient nearby is taken.
    - `learning_rate`, `max_steps`: of Adam, with cosine decay, on the objective above.
    - `max_polish`: at most this many Newton steps on the gradient alone (one dense Hessian each); 0
      leaves them out.
    - `noise`, `seed`: standard deviation of a random displacement of the start, for independent
      runs.

    >>> import jax.numpy as jnp
    >>> problem = Problem(lambda x: jnp.cos(x[0]) + x[1] ** 2, jnp.array([0.4, -0.3]))
    >>> saddle = find_saddle(problem)
    >>> saddle.morse_index, saddle.is_strict, bool(jnp.abs(saddle.params).max() < 1e-6)
    (1, True, True)
    """
    check_count("max_steps", max_steps, 0)
    check_count("max_polish", max_polish, 0)
    check_count("seed", seed, 0, 2**63 - 1)
    for name, value in {"noise": noise, "weight": weight}.items():
        check_at_least(name, value)
    check_positive("learning_rate", learning_rate)
    if regularizer is not None:
        check_callable("regularizer", regularizer, "regularizer(params)")
    key, dtype = jax.random.key(seed), problem.dtype
    x = problem.x0 + noise * jax.random.normal(key, (problem.size,), dtype)
    scale = jnp.asarray(weight, dtype)
    x, cost = _approach(
        problem, regularizer, scale, jnp.asarray(learning_rate, dtype), max_steps, x
    )
    x, polish_cost = _polish(problem, x, max_polish)
    loss, grad, spectrum = jax.device_get(_look(problem, x, key))
    grad_norm = float(np.linalg.norm(grad))
    # As in `Descend`: what a small displacement makes of a zero gradient.
    size = float(spectrum.scale) * max(1.0, float(jnp.linalg.norm(x)))
    is_stationary = bool(grad_norm <= tolerance_of(None, dtype) * size)
    morse_index = int(np.sum(spectrum.is_downhill))
    return Saddle(
        params=problem.unravel(x),
        loss=float(loss),
        grad_norm=grad_norm,
        morse_index=morse_index,
        clusters=spectrum.clusters(),
        is_stationary=is_stationary,
        is_strict=is_stationary and morse_index > 0,
        cost=jax.device_get(cost + polish_cost + spectrum.cost + Cost(values=1, gradients=1)),
    )


@eqx.filter_jit
def _look(problem: Problem, x: Vector, key: PRNGKeyArray) -> tuple[Scalar, Vector, Spectrum]:
    return problem.value(x), problem.grad(x), DenseSpectrum()(problem, x, key)


@eqx.filter_jit
def _approach(
    problem: Problem,
    regularizer: Regularizer | None,
    weight: Scalar,
    learning_rate: Scalar,
    max_steps: int,
    x: Vector,
) -> tuple[Vector, Cost]:
    def objective(x: Vector) -> Scalar:
        grad = problem.grad(x)
        # The small constant only keeps the norm differentiable at 0.
        norm = jnp.sqrt(grad @ grad + jnp.finfo(x.dtype).eps ** 2)
        return norm if regularizer is None else norm + weight * regularizer(problem.unravel(x))

    optimizer = optax.adam(optax.cosine_decay_schedule(1.0, max(max_steps, 1)))

    def step(_: int, carry: tuple) -> tuple:
        x, state = carry
        grad = jax.grad(objective)(x)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grad, state, x)
        return x + learning_rate * updates.astype(x.dtype), state

    x, _ = jax.lax.fori_loop(0, max_steps, step, (x, optimizer.init(x)))
    return x, Cost(gradients=max_steps, hvps=max_steps)


@eqx.filter_jit
def _polish(problem: Problem, x: Vector, max_steps: int) -> tuple[Vector, Cost]:
    floor = jnp.finfo(x.dtype).eps

    def newton(x: Vector, grad: Vector) -> Vector:
        # Null directions (a loss that does not change along them) carry no gradient: leave them
        # alone.
        eigenvalues, columns = jnp.linalg.eigh(problem.hessian(x))
        cut = tolerance_of(None, x.dtype) * jnp.max(jnp.abs(eigenvalues))
        inverse = jnp.where(jnp.abs(eigenvalues) > cut, 1 / eigenvalues, 0)
        return x - columns @ (inverse * (columns.T @ grad))

    def go_on(carry: tuple) -> Bool[Array, ""]:
        _, grad, improved, num_steps = carry
        return improved & (jnp.linalg.norm(grad) > floor) & (num_steps < max_steps)

    def step(carry: tuple) -> tuple:
        x, grad, _, num_steps = carry
        new = newton(x, grad)
        new_grad = problem.grad(new)
        improved = jnp.linalg.norm(new_grad) < jnp.linalg.norm(grad)
        return (
            jnp.where(improved, new, x),
            jnp.where(improved, new_grad, grad),
            improved,
            num_steps + 1,
        )

    start = (x, problem.grad(x), jnp.array(True), jnp.array(0))
    x, _, _, num_steps = jax.lax.while_loop(go_on, step, start)
    cost = Cost(
        gradients=num_steps + 1,
        hvps=num_steps * problem.size,
        hessians=num_steps,
        eigendecompositions=num_steps,
    )
    return x, cost
