r"""The paper's Algorithm 4: train the featurizer until environments share a ridge, and ride it.

Two losses of the featurizer and a candidate direction e, with C the correlation (cosine), q_i =
e' H_i e, and H_i in the ridden part:

    L1 = sum_i [ b1 C(H_i e, e) + b2 q_i + b3 L_i ] + gap * |q_1 - q_2|
    L2 = b4 mean_u |C1(u)^2 - C2(u)^2| / mean_u [C1(u)^2 + b5 C2(u)^2]
         + b6 mean_u |u' (H_1 - H_2) u| / mean_u [|u' H_1 u| + |u' H_2 u|]

over random unit vectors u, e normalised. This is not the paper's text to the letter. There the
signs of b1 and b2 are those for the Hessian of -L: minimised as printed they lead to positive
curvature; e' H e is not normalised, so unbounded; the denominator of L2 has H_1 twice; and L2 is a
mean of ratios, whose gradients explode where u' H u is near 0.

With more than two environments |q_1 - q_2| and its like are means over all pairs.

`ride_common` is the algorithm: it trains the featurizer on L1 + L2 until there is a common ridge,
then steps along it and trains in turns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ridgerider._check import Count, Seed, Whole, check_fields, checked
from ridgerider._core.problem.batches import Batches
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Scalar, Vector
from ridgerider._core.ride.update import unit
from ridgerider.environments._environments import Environments, mask_of
from ridgerider.environments._scores import Consistency, consistency

STEP_SIZE = 0.06  # along the ridge


class RidgeLosses(eqx.Module):
    """L1 and L2 with their weights, the paper's beta.

    **Arguments**

    - `correlation`, `curvature`, `loss`: b1, b2, b3.
    - `gap`: of the difference of curvatures in L1; the direction stays on its ridge only while
      `correlation` exceeds gap * |q_1 - q_2|.
    - `probe_correlation`, `second`, `probe_gap`: b4, b5, b6.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(x, steep):
    ...     return -steep * x[0] ** 2 / 2 - x[1] ** 2 / 2
    >>> both = Environments([rr.Problem(loss, jnp.zeros(2), steep) for steep in (3.0, 1.0)])
    >>> losses = RidgeLosses(correlation=1.0, curvature=1.0, gap=1.0, probe_gap=1.0)
    >>> float(losses.values(both, both.start, jnp.array([1.0, 0.0]), jnp.eye(2))[0])
    -4.0
    >>> float(losses.values(both, both.start, jnp.array([0.0, 1.0]), jnp.eye(2))[1])
    0.3333333333333333

    The first is -1 - 3 - 1 - 1 + 2, the second (2 + 0) / (4 + 2).
    """

    correlation: float = 30.0
    curvature: float = 1.0
    loss: float = 1.0
    gap: float = 150.0
    probe_correlation: float = 1.0
    second: float = 1.0
    probe_gap: float = 30.0

    def values(
        self,
        environments: Environments,
        params: PyTree,
        direction: Vector,
        probes: Float[Array, "k r"],
    ) -> tuple[Scalar, Scalar]:
        """L1, small for a consistent ridge with low loss, and L2, 0 if all Hessians are equal."""
        e = unit(direction)
        problems = environments.ridden(params)
        values = jnp.stack([one.value(one.x0) for one in problems])
        images = environments.hvps(params, jnp.concatenate([e[None], probes]))
        at_e, at_probes = images[:, 0], images[:, 1:]
        one, two = np.triu_indices(len(values), 1)  # all pairs of environments
        along = at_e @ e
        terms = self.correlation * _correlations(at_e, e) + self.curvature * along
        gap = jnp.mean(jnp.abs(along[one] - along[two]))
        ridge = jnp.sum(terms + self.loss * values) + self.gap * gap
        squares = jax.vmap(_correlations, (1, 0), 1)(at_probes, probes) ** 2
        curvatures = jnp.einsum("ikr,kr->ik", at_probes, probes)
        floor = jnp.finfo(probes.dtype).tiny ** 0.5

        def share(values: Array, size: Callable[[Array, Array], Array]) -> Scalar:
            apart = jnp.mean(jnp.abs(values[one] - values[two]))
            return apart / (jnp.mean(size(values[one], values[two])) + floor)

        agreement = self.probe_correlation * share(squares, lambda a, b: a + self.second * b)
        size = share(curvatures, lambda a, b: jnp.abs(a) + jnp.abs(b))
        return ridge, agreement + self.probe_gap * size


def _correlations(
    images: Float[Array, "environments r"], e: Vector
) -> Float[Array, " environments"]:
    # The floor keeps the gradient finite where the image vanishes.
    lengths = jnp.sqrt(jnp.sum(images**2, axis=1) * (e @ e) + jnp.finfo(e.dtype).tiny ** 0.5)
    return images @ e / lengths


class Algorithm4(eqx.Module):
    """How Algorithm 4 is run. Defaults are ours, but for the nine steps.

    **Arguments**

    - `losses`: L1 and L2.
    - `batch`: examples of each environment that a training step sees; None for all.
    - `num_pretrain`: steps on L1 + L2 until the first ridge step; H in the paper.
    - `num_steps`: along the ridge; N in the paper.
    - `num_inner`: training steps after each of them; S in the paper.
    - `num_probes`: random directions of L2.
    - `feature_rate`, `direction_rate`: of Adam, at first; they fall on a half cosine to
      zero by the end of the ride.
    - `decay`: penalty on the featurizer's squares.
    - `trained`: what of the featurizer is trained, a mask like `ridden` of `Environments`. The more
      of it, the more of the environments' agreement is learned by heart. Default: all of it.

    >>> Algorithm4(num_steps=5).num_pretrain
    200
    """

    losses: RidgeLosses = RidgeLosses()
    batch: Batches | None = Batches(2500)
    num_pretrain: Whole = eqx.field(static=True, default=200)
    num_steps: Count = eqx.field(static=True, default=9)
    num_inner: Whole = eqx.field(static=True, default=10)
    num_probes: Count = eqx.field(static=True, default=8)
    feature_rate: float = eqx.field(static=True, default=1e-3)
    direction_rate: float = eqx.field(static=True, default=1e-2)
    decay: float = eqx.field(static=True, default=1e-3)
    trained: PyTree = True

    __check_init__ = check_fields


@dataclass(frozen=True)
class CommonRide:
    """A ride by Algorithm 4.

    - `params`: at the saddle and after each step; the featurizer changes on the way, too.
    - `scores`: of the common direction at each of these points; axes are environments and points.
    - `overlaps`: of each point's direction with the one before.
    - `loss`: L1 + L2 after pre-training.
    - `cost`: of training and riding. HVPs and gradients are counted for each environment; a step
      that trains the featurizer differentiates them once more.

    >>> import jax.numpy as jnp
    >>> scores = Consistency(*(jnp.array([[-2.0], [-1.0]]),) * 4)
    >>> CommonRide(({},), scores, jnp.ones(1), loss=-30.0).loss
    -30.0
    """

    params: tuple[PyTree, ...]
    scores: Consistency
    overlaps: Float[Array, " points"]
    loss: float
    cost: Cost = Cost()


@checked
def ride_common(
    environments: Environments,
    settings: Algorithm4 = Algorithm4(),
    *,
    warm_start: Callable[[PyTree, PRNGKeyArray], PyTree] | None = None,
    seed: Seed = 0,
) -> CommonRide:
    """The paper's Algorithm 4 in any environments with a featurizer.

    **Arguments**

    - `warm_start(params, key)`: trains the featurizer of the start before anything else, say on
      the mean loss with a head to be thrown away. Not in the paper, but on coloured MNIST
      essential: a random featurizer has little to agree on.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(params, c):  # a featurizer f, and a head of two layers
    ...     return -params["w"] * params["a"] * jnp.sum(jnp.tanh(params["f"]) * c)
    >>> start = {"f": jnp.array([0.1, 0.5]), "w": jnp.array(0.01), "a": jnp.array(0.02)}
    >>> problems = [rr.Problem(loss, start, jnp.array(c)) for c in ([1.0, 2.0], [1.0, 1.0])]
    >>> both = Environments(problems, {"f": False, "w": True, "a": True})
    >>> settings = Algorithm4(batch=None, num_steps=2, feature_rate=0.01)
    >>> ride = ride_common(both, settings)
    >>> len(ride.params), bool(ride.scores.relative_gap[-1] < 0.1)
    (3, True)
    """
    trained = mask_of(environments.start, settings.trained, "trained")
    key = jax.random.fold_in(jax.random.key(seed), 0)
    _, second, third = jax.random.split(key, 3)
    params = environments.start if warm_start is None else warm_start(environments.start, third)
    train_key, draw = jax.random.split(second)
    direction = jax.random.normal(draw, environments.x0.shape, environments.x0.dtype)

    def train(carry: Carry, key: PRNGKeyArray, num_steps: int) -> tuple[Carry, Scalar]:
        return _train(environments, settings, trained, carry, key, jnp.array(num_steps))

    state = _optimizer(settings).init((params, direction))
    carry, loss = train((params, direction, state), train_key, settings.num_pretrain)
    params, direction, state = carry
    problem = environments.on_batch(settings.batch, draw).pooled(params)
    # Both losses are even in the direction: ride the way on which the loss falls.
    uphill = eqx.filter_jit(problem.grad)(problem.x0) @ direction
    step_size = jnp.where(uphill > 0, -STEP_SIZE, STEP_SIZE).astype(uphill.dtype)
    points, directions, keys = [params], [direction], [key]
    for number in range(settings.num_steps):
        keys.append(jax.random.fold_in(second, 1 + number))
        along = environments.ravel(params) + step_size * unit(direction)
        params = environments.with_ridden(params, along)
        train_key, _ = jax.random.split(keys[-1])
        carry, _ = train((params, direction, state), train_key, settings.num_inner)
        params, direction, state = carry
        points.append(params)
        directions.append(direction)
    scores = [
        consistency(environments.on_batch(settings.batch, own), params, direction[None])
        for own, params, direction in zip(keys, points, directions, strict=True)
    ]
    along = jax.vmap(unit)(jnp.stack([directions[0], *directions]))
    num_steps = settings.num_pretrain + settings.num_steps * settings.num_inner
    # L1 + L2 in every training step, which way is down, and the scores at every point.
    num_hvps = num_steps * (1 + settings.num_probes) + 1 + settings.num_steps
    cost = Cost(values=num_steps, gradients=num_steps + 1, hvps=num_hvps)
    return CommonRide(
        params=tuple(points),
        scores=jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *scores),
        overlaps=jnp.sum(along[1:] * along[:-1], axis=1),
        loss=float(loss),
        cost=jax.tree.map(lambda spent: len(environments) * spent, cost),
    )


Carry = tuple[PyTree, Vector, Any]  # parameters, direction, and the optimizer's state


def _optimizer(settings: Algorithm4) -> optax.GradientTransformation:
    """Of (params, direction), each with its own learning rate."""
    total = settings.num_pretrain + settings.num_steps * settings.num_inner
    rates = enumerate((settings.feature_rate, settings.direction_rate))
    adams = {n: optax.adam(optax.cosine_decay_schedule(rate, total)) for n, rate in rates}
    return optax.multi_transform(adams, (0, 1))


@eqx.filter_jit
def _train(
    environments: Environments,
    settings: Algorithm4,
    trained: PyTree[bool],
    carry: Carry,
    key: PRNGKeyArray,
    num_steps: Int[Array, ""],
) -> tuple[Carry, Scalar]:
    """Steps on L1 + L2 in featurizer and direction; and the last loss."""

    def step(index: Array, carry: tuple[Carry, Scalar]) -> tuple[Carry, Scalar]:
        (*both, state), _ = carry
        here, probe = jax.random.split(jax.random.fold_in(key, index))
        on_batch = environments.on_batch(settings.batch, here)
        shape = (settings.num_probes, environments.size)
        probes = jax.vmap(unit)(jax.random.normal(probe, shape, both[1].dtype))

        def loss(params: PyTree, direction: Vector) -> tuple[Scalar, Scalar]:
            value = jnp.add(*settings.losses.values(on_batch, params, direction, probes))
            squares = jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)])
            return value + settings.decay * jnp.sum(squares), value

        (grads, slope), value = jax.grad(loss, (0, 1), has_aux=True)(*both)
        # The ridden part is ridden, not trained; of the rest only what is to be trained.
        grads = eqx.combine(eqx.filter(grads, trained), jax.tree.map(jnp.zeros_like, grads))
        grads = environments.with_ridden(grads, jnp.zeros_like(slope))
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = _optimizer(settings).update((grads, slope), state, tuple(both))
        return (*jax.tree.map(jnp.add, tuple(both), updates), state), value

    # A number of steps that is traced: one program for pre-training and for what follows a step.
    return jax.lax.fori_loop(0, num_steps, step, (carry, jnp.zeros((), carry[1].dtype)))
