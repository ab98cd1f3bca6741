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
from ridgerider._core.problem import Cost, Number, Problem, Scalar, Vector
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
    """Descend with an optax optimizer until the gradient vanishes; report the least eigenvalue.

    Descent along a symmetry axis stays on it and ends at a saddle. `max_kicks` > 0 kicks it off: a
    move of `kick_size` along the most negative eigenvector, to the lower side, and on.

    **Arguments**

    - `optimizer`: a function that builds one, e.g. `optax.lbfgs` or
      `jax.tree_util.Partial(optax.sgd, 0.5)`. It sees the loss divided by the largest |eigenvalue|
      at the start: a learning rate of 1 is then a step of 1 / curvature, which stays in the valley
      at hand whatever the scale of the loss.
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

    optimizer: Callable[[], optax.GradientTransformation] = optax.lbfgs
    max_steps: int = 2000
    tolerance: Number | None = None
    max_kicks: int = 0
    kick_size: Number = 0.1

    def __check_init__(self) -> None:
        if not callable(self.optimizer):
            raise ValueError(
                "`optimizer` must be a function that builds an optimizer, such as optax.lbfgs, "
                f"not {self.optimizer!r}."
            )
        for name in ("max_steps", "max_kicks", "tolerance", "kick_size"):
            check_at_least(name, getattr(self, name))

    def __call__(
        self,
        problem: Problem,
        x: Vector,
        key: PRNGKeyArray,
        spectrum: Callable[[Problem, Vector, PRNGKeyArray], Spectrum],
    ) -> Finish:
        def finish(x: Vector, before: Finish) -> tuple[Finish, Spectrum]:
            start = spectrum(problem, x, key)
            scale = start.scale
            x, loss, grad, num_steps, cost = self._descend(problem, x, scale)
            around = spectrum(problem, x, key)
            end = Finish(
                x=x,
                loss=loss,
                grad_norm=jnp.linalg.norm(grad),
                least_eigenvalue=around.eigenvalues[0],
                is_converged=self._is_flat(x, grad, scale),
                is_saddle=around.is_downhill[0],
                num_steps=before.num_steps + num_steps,
                num_kicks=before.num_kicks,
                cost=before.cost + start.cost + cost + around.cost,
            )
            return end, around

        def again(carry: tuple[Finish, Vector]) -> tuple[Finish, Vector]:
            before, x = carry
            end, around = finish(x, before)
            up, down = (end.x + sign * self.kick_size * around.eigenvectors[0] for sign in (1, -1))
            kicked = jnp.where(problem.value(up) < problem.value(down), up, down)
            counts = end.num_kicks + 1, end.cost + Cost(values=2)
            return eqx.tree_at(lambda f: (f.num_kicks, f.cost), end, counts), kicked

        def is_on_saddle(carry: tuple[Finish, Vector]) -> Bool[Array, ""]:
            end, _ = carry
            return (end.num_kicks == 0) | (end.is_saddle & (end.num_kicks <= self.max_kicks))

        end, _ = jax.lax.while_loop(is_on_saddle, again, (_nowhere(x), x))
        # Each round ends by preparing a kick; the last one is not taken.
        return eqx.tree_at(lambda f: f.num_kicks, end, end.num_kicks - 1)

    def _is_flat(self, x: Vector, grad: Vector, scale: Scalar) -> Bool[Array, ""]:
        tolerance = tolerance_of(self.tolerance, x.dtype)
        bound = tolerance * scale * jnp.maximum(jnp.linalg.norm(x), 1)
        return (jnp.linalg.norm(grad) <= bound) & jnp.isfinite(bound)  # at infinity all is flat

    def _descend(
        self, problem: Problem, x: Vector, scale: Scalar
    ) -> tuple[Vector, Scalar, Vector, Int[Array, ""], Cost]:
        optimizer = optax.with_extra_args_support(self.optimizer())
        unit = jnp.where(scale > 0, scale, 1)

        def value(x: Vector) -> Scalar:
            return problem.value(x) / unit

        value_and_grad = jax.value_and_grad(value)

        def go_on(carry: tuple) -> Bool[Array, ""]:
            x, loss, grad, _, num_steps, _ = carry
            is_finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(grad))
            is_flat = self._is_flat(x, grad * unit, scale)
            return ~is_flat & is_finite & (num_steps < self.max_steps)

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

        cost = Cost(values=1, gradients=1)
        first = (x, *value_and_grad(x), optimizer.init(x), jnp.array(0), cost)
        x, loss, grad, _, num_steps, cost = jax.lax.while_loop(go_on, step, first)
        return x, loss * unit, grad * unit, num_steps, cost


def _nowhere(x: Vector) -> Finish:
    zero, no, none = jnp.zeros((), x.dtype), jnp.array(False), jnp.array(0)
    return Finish(x, zero, zero, zero, no, no, none, none, Cost())
