"""What happens at the end of a leg: descend to a stationary point and say what kind it is.

A finish is a callable `finish(problem, x, key, spectrum) -> Finish`; `spectrum` is the rider's.
"""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ridgerider._check import check_at_least
from ridgerider._core.cost import Cost
from ridgerider._core.lbfgs import lbfgs
from ridgerider._core.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectrum import Spectrum, tolerance_of


class Finish(eqx.Module):
    """Where a descent ended.

    `is_converged`: the gradient vanishes. `is_saddle`: a clearly negative eigenvalue is left. So a
    minimum, strict or flat, is what converged and is no saddle.

    >>> from ridgerider import DenseSpectrum
    >>> from ridgerider.problems import wells
    >>> end = Descend()(wells(2), jnp.array([0.0, 0.3]), jax.random.key(0), DenseSpectrum())
    >>> bool(end.is_converged), bool(end.is_saddle), end.kind
    (True, True, 'saddle')
    """

    x: Vector
    loss: Scalar
    grad_norm: Scalar
    least_eigenvalue: Scalar
    is_converged: Bool[Array, ""]
    is_saddle: Bool[Array, ""]
    num_steps: Int[Array, ""]
    num_kicks: Int[Array, ""]
    cost: Cost

    @property
    def kind(self) -> Literal["minimum", "saddle", "unconverged"]:
        """What was found, once it is computed."""
        if not self.is_converged:
            return "unconverged"
        return "saddle" if self.is_saddle else "minimum"


class Descend(eqx.Module):
    """Descend until the gradient vanishes, and report the least eigenvalue there.

    Descent along a symmetry axis stays on it and ends at a saddle. `max_kicks` > 0 kicks it off: a
    move of `kick_size` along the most negative eigenvector, to the lower side, and on.

    **Arguments**

    - `optimizer`: None, for an L-BFGS that compiles fast, or a function that builds an optimizer of
      optax, e.g. `optax.lbfgs` or `jax.tree_util.Partial(optax.sgd, 0.5)`. It sees the loss divided
      by the largest |eigenvalue| at the start: a learning rate of 1 is then a step of 1 /
      curvature, which stays in the valley at hand whatever the scale of the loss.
    - `max_steps`: per descent.
    - `tolerance`: converged once |grad| <= tolerance * max(1, |x|) * max |eigenvalue|, with the
      eigenvalues at the start of the descent: what a displacement by `tolerance` makes of a zero
      gradient, whatever the scale of the loss. Default: eps^(1/2).

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2, jnp.array([0.3, 0.2]))
    >>> end = Descend()(problem, problem.x0, jax.random.key(0), DenseSpectrum())
    >>> [round(float(entry), 3) for entry in end.x], round(float(end.least_eigenvalue), 2)
    ([1.0, 0.0], 2.0)
    """

    optimizer: Callable[[], optax.GradientTransformation] | None = None
    max_steps: int = 2000
    tolerance: Number | None = None
    max_kicks: int = 0
    kick_size: Number = 0.1

    def __check_init__(self) -> None:
        if self.optimizer is not None and not callable(self.optimizer):
            raise ValueError(
                "`optimizer` must be None or a function that builds an optimizer, such as "
                f"optax.lbfgs, not {self.optimizer!r}."
            )
        for name in ("max_steps", "max_kicks", "tolerance", "kick_size"):
            check_at_least(name, getattr(self, name))

    @eqx.filter_jit
    def __call__(
        self,
        problem: Problem,
        x: Vector,
        key: PRNGKeyArray,
        spectrum: Callable[[Problem, Vector, PRNGKeyArray], Spectrum],
    ) -> Finish:
        # A round looks where it starts, descends, and looks where it ended. These are two passes of
        # one loop, so that the spectrum is compiled once.
        def look(carry: tuple[Finish, Vector, Int[Array, ""]]) -> tuple:
            before, x, num_looks = carry
            is_start = num_looks % 2 == 0
            around = spectrum(problem, x, key)
            looked = eqx.tree_at(
                lambda f: (f.least_eigenvalue, f.is_saddle),
                before,
                (around.eigenvalues[0], around.is_downhill[0]),
            )
            descended = self._descended(problem, before, x, around.scale, is_start)
            end = jax.tree.map(lambda *ends: jnp.where(is_start, *ends), descended, looked)
            end = eqx.tree_at(lambda f: f.cost, end, end.cost + around.cost)
            return *self._kicked(problem, end, around, ~is_start), num_looks + 1

        def go_on(carry: tuple[Finish, Vector, Int[Array, ""]]) -> Bool[Array, ""]:
            end, _, num_looks = carry
            return num_looks < 2 * (end.num_kicks + 1)

        return jax.lax.while_loop(go_on, look, (_nowhere(x), x, jnp.array(0)))[0]

    def _kicked(
        self, problem: Problem, end: Finish, around: Spectrum, is_end: Bool[Array, ""]
    ) -> tuple[Finish, Vector]:
        """Where to go on: off the saddle that a descent ended at, if a kick is left."""
        if self.max_kicks == 0:
            return end, end.x
        is_due = is_end & end.is_saddle & (end.num_kicks < self.max_kicks)

        def kick() -> Vector:
            up, down = (end.x + sign * self.kick_size * around.eigenvectors[0] for sign in (1, -1))
            return jnp.where(problem.value(up) < problem.value(down), up, down)

        one = is_due.astype(int)
        counts = end.num_kicks + one, end.cost + Cost(values=2 * one)
        end = eqx.tree_at(lambda f: (f.num_kicks, f.cost), end, counts)
        return end, jax.lax.cond(is_due, kick, lambda: end.x)

    def _descended(
        self, problem: Problem, before: Finish, x: Vector, scale: Scalar, is_wanted: Bool[Array, ""]
    ) -> Finish:
        """The end of a descent from `x`, not yet looked at."""
        unit = jnp.where(scale > 0, scale, 1)

        def value(x: Vector) -> Scalar:
            return problem.value(x) / unit

        def is_flat(x: Vector, grad: Vector) -> Bool[Array, ""]:
            return self._is_flat(x, grad * unit, scale)

        if self.optimizer is None:
            descent = lbfgs(value, x, is_flat, self.max_steps, is_wanted)
            x, loss, grad, num_steps = descent.x, descent.loss, descent.grad, descent.num_steps
            cost = Cost(values=descent.num_gradients, gradients=descent.num_gradients)
        else:
            x, loss, grad, num_steps, cost = self._optimized(value, x, is_flat, is_wanted)
        return Finish(
            x=x,
            loss=loss * unit,
            grad_norm=jnp.linalg.norm(grad * unit),
            least_eigenvalue=before.least_eigenvalue,
            is_converged=is_flat(x, grad),
            is_saddle=before.is_saddle,
            num_steps=before.num_steps + num_steps,
            num_kicks=before.num_kicks,
            cost=before.cost + cost,
        )

    def _is_flat(self, x: Vector, grad: Vector, scale: Scalar) -> Bool[Array, ""]:
        tolerance = tolerance_of(self.tolerance, x.dtype)
        bound = tolerance * scale * jnp.maximum(jnp.linalg.norm(x), 1)
        return (jnp.linalg.norm(grad) <= bound) & jnp.isfinite(bound)  # at infinity all is flat

    def _optimized(
        self,
        value: Callable[[Vector], Scalar],
        x: Vector,
        is_flat: Callable[[Vector, Vector], Bool[Array, ""]],
        is_wanted: Bool[Array, ""],
    ) -> tuple[Vector, Scalar, Vector, Int[Array, ""], Cost]:
        """Descend with the optimizer, if it is wanted."""
        assert self.optimizer is not None
        optimizer = optax.with_extra_args_support(self.optimizer())
        value_and_grad = jax.value_and_grad(value)

        def go_on(carry: tuple) -> Bool[Array, ""]:
            x, loss, grad, _, num_steps, _ = carry
            is_finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(grad))
            return ~is_flat(x, grad) & is_finite & (num_steps < self.max_steps)

        def step(carry: tuple) -> tuple:
            x, loss, grad, state, num_steps, cost = carry
            with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
                updates, state = optimizer.update(
                    grad, state, x, value=loss, grad=grad, value_fn=value
                )
            x = optax.apply_updates(x, updates)
            loss, grad = value_and_grad(x)
            tries = jnp.asarray(optax.tree.get(state, "num_linesearch_steps", 0))
            cost = cost + Cost(values=1 + tries, gradients=1 + tries)
            return x, loss, grad, state, num_steps + 1, cost

        def descend() -> tuple:
            cost = Cost(values=1, gradients=1)
            first = (x, *value_and_grad(x), optimizer.init(x), jnp.array(0), cost)
            end, loss, grad, _, num_steps, cost = jax.lax.while_loop(go_on, step, first)
            return end, loss, grad, num_steps, cost

        def stay() -> tuple:
            cost = jax.tree.map(jnp.asarray, Cost())
            return x, jnp.zeros((), x.dtype), jnp.zeros_like(x), jnp.array(0), cost

        return jax.lax.cond(is_wanted, descend, stay)


def _nowhere(x: Vector) -> Finish:
    zero, no, none = jnp.zeros((), x.dtype), jnp.array(False), jnp.array(0)
    return Finish(x, zero, zero, zero, no, no, none, none, Cost())
