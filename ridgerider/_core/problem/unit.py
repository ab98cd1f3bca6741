"""The natural unit of length of a problem, in which step sizes and tolerances are given.

Along a direction e the gradient changes by h H e over a distance h, as long as that is short. The
distance at which this prediction is off by half is a length of the problem itself; it scales with
the parameters and does not depend on the scale and the zero of the loss. The unit is the mean of
this distance over some directions, along one parameter, rounded to a power of ten: problems whose
parameters are of ordinary size have the unit 1.
"""

import numpy as np

from ridgerider._core.problem.calls import Calls
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.functions import Functions
from ridgerider._core.problem.placement import fetch
from ridgerider._core.problem.problem import Problem

NUM_DIRECTIONS = 4
ORDINARY = 0.35  # the middle of the distances, along one parameter, whose unit is 1
MAX_DOUBLINGS = 60


def measured(problem: Problem) -> tuple[Problem, Cost]:
    """The problem with its unit of length, as it is around its start, and what that cost.

    >>> import jax.numpy as jnp
    >>> problem = Problem(lambda x: jnp.sum(jnp.cos(1e6 * x)), jnp.zeros(2))
    >>> problem, _ = measured(problem)
    >>> 1e-7 < float(problem.unit) < 1e-4
    True
    """
    if isinstance(problem.loss, Functions):  # whose differences have steps in parameters
        return problem, Cost()
    calls, x = Calls(problem), fetch(problem.x0)
    rows = np.random.default_rng(0).normal(size=(NUM_DIRECTIONS, len(x))).astype(x.dtype)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    grad = calls.value_and_grad(x)[1]
    lengths = []
    for row, image in zip(rows, calls.hvps(x, rows), strict=True):

        def is_predicted(length: float, row: np.ndarray = row, image: np.ndarray = image) -> bool:
            with np.errstate(all="ignore"):
                new = calls.value_and_grad((x + length * row).astype(x.dtype))[1]
                off = np.linalg.norm(new - grad - length * image)
                return bool(off <= length * np.linalg.norm(image) / 2)

        length, count = float(len(x)) ** 0.5, 0
        factor = 2.0 if is_predicted(length) else 0.5
        while count < MAX_DOUBLINGS and is_predicted(factor * length) == (factor > 1):
            length, count = factor * length, count + 1
        if count < MAX_DOUBLINGS:
            lengths.append(length / len(x) ** 0.5)
    if not lengths:  # no length at all, as of a quadratic loss
        return problem, calls.cost
    mean = float(np.exp(np.mean(np.log(lengths))))
    # A start that is not at the origin has a size, which counts if it is of this order.
    mean = float(np.clip(np.sqrt(np.mean(x**2)) / 4, mean, 10 * mean))
    return problem.with_unit(10.0 ** round(np.log10(mean / ORDINARY))), calls.cost
