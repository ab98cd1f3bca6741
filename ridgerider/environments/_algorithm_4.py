"""Algorithm 4's loop: pre-train to a saddle with a common ridge, then step and train in turns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ridgerider._check import check_count
from ridgerider._core.problem.batches import Batches
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Scalar, Vector
from ridgerider._core.ride.rider import Rider
from ridgerider._core.ride.step import FixedStep
from ridgerider._core.ride.stop import not_finite
from ridgerider._core.ride.update import Keep, unit
from ridgerider._core.spectra.spectrum import Ridge
from ridgerider.environments._environments import Environments, Split, split_by
from ridgerider.environments._losses import RidgeLosses
from ridgerider.environments._scores import Consistency, consistency

# One step at a time: the direction is updated by training, between the steps.
STEP = Rider(update=Keep(), step=FixedStep(0.06), stop=(not_finite,), finish=None, max_steps=1)


class CommonRidge(eqx.Module):
    """How Algorithm 4 is run. Defaults are ours, but for the nine steps.

    **Arguments**

    - `losses`: L1 and L2.
    - `rider`: takes one step along the direction at a time.
    - `batch`: examples of each environment that a training step sees; None for all.
    - `num_pretrain`: steps on L1 + L2 until the first ridge step; H in the paper.
    - `num_steps`: along the ridge; N in the paper.
    - `num_inner`: training steps after each of them; S in the paper.
    - `num_probes`: random directions of L2.
    - `feature_rate`, `direction_rate`: of Adam, at first; they fall on a half cosine to
      `final_rate` times as much by the end of the ride.
    - `decay`: penalty on the featurizer's squares.
    - `trained`: what of the featurizer is trained, a mask like `ridden` of `Environments`. The more
      of it, the more of the environments' agreement is learned by heart. Default: all of it.

    >>> CommonRidge(num_steps=5).num_pretrain
    200
    """

    losses: RidgeLosses = RidgeLosses()
    rider: Rider = STEP
    batch: Batches | None = Batches(2500)
    num_pretrain: int = eqx.field(static=True, default=200)
    num_steps: int = eqx.field(static=True, default=9)
    num_inner: int = eqx.field(static=True, default=10)
    num_probes: int = eqx.field(static=True, default=8)
    feature_rate: float = eqx.field(static=True, default=1e-3)
    direction_rate: float = eqx.field(static=True, default=1e-2)
    final_rate: float = eqx.field(static=True, default=0.0)
    decay: float = eqx.field(static=True, default=1e-3)
    trained: PyTree = True

    def __check_init__(self) -> None:
        for name in ("num_pretrain", "num_inner"):
            check_count(name, getattr(self, name), 0)
        for name in ("num_steps", "num_probes"):
            check_count(name, getattr(self, name))


@dataclass(frozen=True)
class CommonRide:
    """A ride by Algorithm 4.

    - `params`: at the saddle and after each step; the featurizer changes on the way, too.
    - `scores`: of the common direction at each of these points; axes are environments and points.
    - `overlaps`: of each point's direction with the one before.
    - `loss`: L1 + L2 after pre-training, of the network ridden.
    - `num_dropped`: networks that were resampled because pre-training failed.
    - `cost`: of training and riding, those dropped included. Products and gradients are counted
      for each environment; a step that trains the featurizer differentiates them once more.

    >>> import jax.numpy as jnp
    >>> scores = Consistency(*(jnp.array([[-2.0], [-1.0]]),) * 4)
    >>> CommonRide(({},), scores, jnp.ones(1), loss=-30.0, num_dropped=0).num_dropped
    0
    """

    params: tuple[PyTree, ...]
    scores: Consistency
    overlaps: Float[Array, " points"]
    loss: float
    num_dropped: int
    cost: Cost = Cost()


def ride_common(
    environments: Environments,
    settings: CommonRidge = CommonRidge(),
    *,
    initialize: Callable[[PRNGKeyArray], PyTree] | None = None,
    warm_start: Callable[[PyTree, PRNGKeyArray], PyTree] | None = None,
    max_loss: float = float("inf"),
    max_dropped: int = 0,
    seed: int = 0,
) -> CommonRide:
    """The paper's Algorithm 4 in any environments with a featurizer.

    **Arguments**

    - `initialize`: draws the parameters, the ridden part near its saddle. Default: the start.
    - `warm_start`: trains the featurizer of such parameters before anything else, say on the mean
      loss with a head to be thrown away. Not in the paper, but on coloured MNIST essential: a
      random featurizer has little to agree on.
    - `max_loss`, `max_dropped`: draw another network while L1 + L2 exceeds `max_loss` after
      pre-training, at most this many times. Default: keep the first.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(params, c):  # a featurizer f, and a head of two layers
    ...     return -params["w"] * params["a"] * jnp.sum(jnp.tanh(params["f"]) * c)
    >>> start = {"f": jnp.array([0.1, 0.5]), "w": jnp.array(0.01), "a": jnp.array(0.02)}
    >>> problems = [rr.Problem(loss, start, jnp.array(c)) for c in ([1.0, 2.0], [1.0, 1.0])]
    >>> both = Environments(problems, {"f": False, "w": True, "a": True})
    >>> settings = CommonRidge(batch=None, num_steps=2, feature_rate=0.01)
    >>> ride = ride_common(both, settings)
    >>> len(ride.params), ride.num_dropped, bool(ride.scores.relative_gap[-1] < 0.1)
    (3, 0, True)
    """
    check_count("max_dropped", max_dropped, 0)
    trained = split_by(environments.start, settings.trained, "trained")
    for dropped in range(max_dropped + 1):
        key = jax.random.fold_in(jax.random.key(seed), dropped)
        first, second, third = jax.random.split(key, 3)
        params = environments.start if initialize is None else initialize(first)
        params = params if warm_start is None else warm_start(params, third)
        state, loss = _pretrain(environments, settings, trained, params, second)
        if float(loss) <= max_loss or dropped == max_dropped:
            break
    points, scores, overlaps = [state.params], [_look(environments, settings, state, key)], [1.0]
    cost = _training_cost(environments, settings, dropped)
    for step in range(settings.num_steps):
        here = jax.random.fold_in(second, 1 + step)
        train_key, ride_key = jax.random.split(here)
        new, ridden = _ride_step(environments, settings, state, ride_key)
        cost = cost + jax.tree.map(lambda spent: len(environments) * spent, jax.device_get(ridden))
        num_inner = jnp.array(settings.num_inner)
        new, _ = _train(environments, settings, trained, new, train_key, num_inner)
        overlaps.append(float(unit(new.direction) @ unit(state.direction)))
        state = new
        points.append(state.params)
        scores.append(_look(environments, settings, state, here))
    return CommonRide(
        params=tuple(points),
        scores=jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *scores),
        overlaps=jnp.asarray(overlaps),
        loss=float(loss),
        num_dropped=dropped,
        cost=cost,
    )


def _training_cost(environments: Environments, settings: CommonRidge, dropped: int) -> Cost:
    """Of L1 + L2 in every training step, of which way is down, and of the scores at every point."""
    num_steps = (1 + dropped) * settings.num_pretrain + settings.num_steps * settings.num_inner
    each, looks = 1 + settings.num_probes, 1 + settings.num_steps
    return Cost(
        values=num_steps * len(environments),
        gradients=(num_steps + 1 + dropped) * len(environments),
        hvps=(num_steps * each + looks) * len(environments),
    )


class _State(eqx.Module):
    """Everything that Algorithm 4 carries along."""

    params: PyTree
    direction: Vector
    feature_state: Any
    direction_state: Any
    sign: Scalar


def _optimizers(settings: CommonRidge) -> tuple[Any, Any]:
    total = settings.num_pretrain + settings.num_steps * settings.num_inner
    feature_rate, direction_rate = (
        optax.cosine_decay_schedule(rate, total, settings.final_rate)
        for rate in (settings.feature_rate, settings.direction_rate)
    )
    return optax.adam(feature_rate), optax.adam(direction_rate)


def _on_batch(environments: Environments, settings: CommonRidge, key: PRNGKeyArray) -> Environments:
    if settings.batch is None:
        return environments
    return environments.on_batch(settings.batch, key, 0)


def _to_train(environments: Environments, trained: Split, grads: PyTree) -> PyTree:
    """The ridden part is ridden, not trained; and of the rest what is to be."""
    chosen = trained.put(jax.tree.map(jnp.zeros_like, grads), trained.take(grads))
    return environments.with_ridden(chosen, jnp.zeros_like(environments.ravel(grads)))


def _pretrain(
    environments: Environments,
    settings: CommonRidge,
    trained: Split,
    params: PyTree,
    key: PRNGKeyArray,
) -> tuple[_State, Scalar]:
    train, draw = jax.random.split(key)
    direction = jax.random.normal(draw, environments.x0.shape, environments.x0.dtype)
    features, directions = _optimizers(settings)
    state = _State(
        params,
        direction,
        features.init(params),
        directions.init(direction),
        jnp.ones((), direction.dtype),
    )
    num_pretrain = jnp.array(settings.num_pretrain)
    state, loss = _train(environments, settings, trained, state, train, num_pretrain)
    sign = _downhill(environments, settings, state, draw)
    return eqx.tree_at(lambda s: s.sign, state, sign), loss


@eqx.filter_jit
def _downhill(
    environments: Environments, settings: CommonRidge, state: _State, key: PRNGKeyArray
) -> Scalar:
    """Both losses are even in the direction: ride the way on which the loss falls."""
    problem = _on_batch(environments, settings, key).pooled(state.params)
    uphill = problem.grad(problem.x0) @ state.direction
    return jnp.where(uphill > 0, -1, 1).astype(uphill.dtype)


@eqx.filter_jit
def _train(
    environments: Environments,
    settings: CommonRidge,
    trained: Split,
    state: _State,
    key: PRNGKeyArray,
    num_steps: Int[Array, ""],
) -> tuple[_State, Scalar]:
    """Steps on L1 + L2 in featurizer and direction; and the last loss."""
    features, directions = _optimizers(settings)

    def step(index: Array, carry: tuple[_State, Scalar]) -> tuple[_State, Scalar]:
        state, _ = carry
        here, probe = jax.random.split(jax.random.fold_in(key, index))
        on_batch = _on_batch(environments, settings, here)
        shape = (settings.num_probes, environments.size)
        probes = jax.vmap(unit)(jax.random.normal(probe, shape, state.direction.dtype))

        def loss(params: PyTree, direction: Vector) -> tuple[Scalar, Scalar]:
            both = settings.losses.both(on_batch, params, direction, probes)
            return both + settings.decay * _squares(params), both

        grads, value = jax.grad(loss, (0, 1), has_aux=True)(state.params, state.direction)
        feature_grads = _to_train(environments, trained, grads[0])
        params, feature_state = _stepped(features, feature_grads, state.feature_state, state.params)
        direction, direction_state = _stepped(
            directions, grads[1], state.direction_state, state.direction
        )
        return _State(params, direction, feature_state, direction_state, state.sign), value

    # A number of steps that is traced: one program for pre-training and for what follows a step.
    nothing = jnp.zeros((), state.direction.dtype)
    return jax.lax.fori_loop(0, num_steps, step, (state, nothing))


@eqx.filter_jit
def _ride_step(
    environments: Environments, settings: CommonRidge, state: _State, key: PRNGKeyArray
) -> tuple[_State, Cost]:
    """One step along the ridge."""
    problem = _on_batch(environments, settings, key).pooled(state.params)
    ridge = Ridge(
        direction=state.sign * unit(state.direction),
        eigenvalue=jnp.zeros_like(state.sign),  # the rider looks
        index=jnp.array(0),
        multiplicity=jnp.array(1),
    )
    ride = settings.rider.ride(problem, problem.x0, ridge, key)
    params = environments.with_ridden(state.params, ride.x)
    return eqx.tree_at(lambda s: s.params, state, params), ride.cost


@eqx.filter_jit
def _look(
    environments: Environments, settings: CommonRidge, state: _State, key: PRNGKeyArray
) -> Consistency:
    on_batch = _on_batch(environments, settings, key)
    return consistency(on_batch, state.params, state.direction[None])


def _stepped(optimizer: Any, grads: PyTree, state: Any, params: PyTree) -> tuple[PyTree, Any]:
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        updates, state = optimizer.update(grads, state, params)
    return jax.tree.map(jnp.add, params, updates), state


def _squares(params: PyTree) -> Scalar:
    return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)]))
