r"""UpdateRidge as the paper writes it for large models: gradient descent on the eigen-loss.

After a step, with u = e / |e|,

    lambda <- lambda + e^T (H(x) - H(x_old)) e
    repeat S times:    loss(e, lambda) = |H u / lambda - u|^2
        lambda <- lambda - LR_lambda dloss/dlambda
        e      <- e      - LR_e      dloss/de

At the eigenpair (e, lambda) the second line multiplies the component along an eigenvalue mu by
1 - 2 LR_e (mu / lambda - 1)^2. So it is stable only for LR_e < 1 / (lambda_max / lambda - 1)^2, and
then the ridge's own neighbours at a relative distance d fade like exp(-2 S LR_e d^2). (As e is not
normalised inside the loop, too large a rate lengthens it, which lowers the rate: too late.)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from ridgerider._check import AtLeast0, Whole, check_fields
from ridgerider._core.linalg.space import Hvp, krylov
from ridgerider._core.problem.problem import Counted, Problem, Scalar, Vector
from ridgerider._core.ride.update import Certificate, Tracked, overlap_with_space, unit
from ridgerider._core.spectra.spectrum import Ridge

NUM_PROBES = 8  # HVPs spent on the largest eigenvalue where a learning rate is automatic


class Residual(eqx.Module):
    """The paper's UpdateRidge: `num_steps` gradient steps on |H u / lambda - u|^2.

    Two Hessian-vector products per step and two for the warm start of lambda. Nothing checks that
    the result is an eigenvector: look at the residual.

    **Arguments**

    - `num_steps`: the paper's S.
    - `direction_rate`, `eigenvalue_rate`: the paper's LR_e and LR_lambda. None: half of the largest
      stable rate, from an estimate of the largest eigenvalue by 8 HVPs, and lambda^2 / 2, which
      sets lambda to the Rayleigh quotient.

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: x[0] ** 2 * x[1] - x[0] ** 2 + x[1] ** 2 / 2, jnp.zeros(2))
    >>> ridge = DenseSpectrum()(problem, problem.x0, jax.random.key(0)).ridge(0)
    >>> update = Residual(num_steps=200)
    >>> ridge = update(problem, problem.x0, ridge, jax.random.key(0)).ridge
    >>> x = problem.x0 + 0.1 * ridge.direction
    >>> tracked = update(problem, x, ridge, jax.random.key(0))
    >>> float(tracked.residual) < 1e-3, int(tracked.cost.hvps)
    (True, 411)
    """

    num_steps: Whole = eqx.field(static=True, default=20)
    direction_rate: AtLeast0 | None = None
    eigenvalue_rate: AtLeast0 | None = None

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        counted, hvp = Counted(problem), problem.hvp_at(x)
        direction, eigenvalue = ridge.direction, ridge.eigenvalue
        if ridge.memory is not None:  # else the ride begins: the ridge is the one given
            direction, eigenvalue = self._descend(counted, hvp, x, ridge, key)
        image = hvp(direction)
        counted.charge(hvps=1)
        rest = jnp.linalg.norm(image - (direction @ image) * direction)
        certificate = Certificate(
            overlap=overlap_with_space(ridge, direction),
            residual=rest + counted.hvp_error(x, direction),
        )
        new = Ridge(direction, eigenvalue, ridge.index, ridge.multiplicity, memory=x)
        return Tracked(new, certificate, counted.cost)

    def _descend(
        self, counted: Counted, hvp: Hvp, x: Vector, ridge: Ridge, key: PRNGKeyArray
    ) -> tuple[Vector, Scalar]:
        e, old_x = ridge.direction, ridge.memory
        warm = ridge.eigenvalue + e @ hvp(e) - e @ counted.hvp(old_x, e)
        counted.charge(hvps=1)
        rate = self.direction_rate
        if rate is None:
            random = jax.random.normal(key, x.shape, x.dtype)
            largest = krylov(hvp, random, NUM_PROBES).ritz().scale
            counted.charge(hvps=NUM_PROBES)
            # The estimate is from below; half of the bound leaves room for 40 % more.
            rate = 0.5 / (largest / jnp.abs(warm) + 1) ** 2

        def step(_: int, carry: tuple[Vector, Scalar]) -> tuple[Vector, Scalar]:
            e, eigenvalue = carry
            length = jnp.linalg.norm(e)
            u = e / length
            image = hvp(u)
            remainder = image / eigenvalue - u
            slope = -2 * (remainder @ image) / eigenvalue**2
            fast = self.eigenvalue_rate
            eigenvalue = eigenvalue - (eigenvalue**2 / 2 if fast is None else fast) * slope
            remainder = image / eigenvalue - u
            pull = 2 * (hvp(remainder) / eigenvalue - remainder)
            return e - rate * (pull - (pull @ u) * u) / length, eigenvalue

        e, eigenvalue = jax.lax.fori_loop(0, self.num_steps, step, (e, warm))
        counted.charge(hvps=2 * self.num_steps)
        return unit(e), eigenvalue
