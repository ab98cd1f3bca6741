"""The problem: a loss over a pytree, seen by the core as a function of one vector.

The parameters are ravelled into `x` once; everything below the surface works with `x`:

    value(x) = L(x)    grad(x) = dL/dx    hvp(x, v) = (d2L/dx2) v    hessian(x) = d2L/dx2

A problem may look at some rows of its data only, a *batch*, and go through them in chunks: then
each of the above is a mean over equal chunks, and only one chunk at a time is held in memory.

Where vectors live: beside the parameters of a problem that is spread over many devices.

A problem whose data, or parameters, are sharded over a mesh is ridden by the same compiled
programs; the compiler splits gradients and Hessian-vector products and sums them up. Only on the
way in and out of a program does it matter: a vector goes where the start is, and comes back whole.

Costs, counted where values, gradients and Hessian-vector products are made.
"""

import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ridgerider._check import MAX_COUNT, Positive, came, check_finite, check_takes, checked, told_of
from ridgerider._check import Number as Number
from ridgerider._core.problem.cost import Cost, Ledger
from ridgerider._core.problem.functions import Functions, call_host
from ridgerider._core.problem.numpy_functions import NumpyFunctions
from ridgerider._core.runtime import clock

Scalar = Float[Array, ""]
Vector = Float[Array, " n"]
BEGAN = clock.now()  # deadlines are milliseconds since then, which 32 bits can hold


def is_key(leaf: Any) -> bool:
    """Whether this is a random key, or an array of them."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_same_array(one: Any, two: Any) -> bool:
    if is_key(one):
        one, two = jax.random.key_data(one), jax.random.key_data(two)
    return one is two or np.asarray(one).tobytes() == np.asarray(two).tobytes()


class Problem(eqx.Module):
    """A loss, the point to start from, and the data.

    **Arguments**

    - `loss`: called as `loss(params, *args)`, returns a real scalar, twice differentiable.
    - `start`: any pytree of floating-point leaves of one dtype; where the search begins.
    - `args`: data. Arrays given here are traced; arrays in a closure are constants of the
      compiled program, which is compiled again for each of them.

    `unit` is the unit of length in which step sizes and tolerances are given: 1, unless a run or
    `find_saddle` has measured another one around the start.

    >>> import jax.numpy as jnp
    >>> def loss(params, depth):
    ...     return jnp.sum(params["a"] ** 4 / 4 - depth * params["a"] ** 2 / 2)
    >>> problem = Problem(loss, {"a": jnp.zeros(2)}, 0.5)
    >>> problem.size
    2
    >>> problem.hvp(problem.x0, jnp.array([1.0, 0.0])).tolist()
    [-0.5, 0.0]
    """

    loss: Callable[..., Scalar]
    start: PyTree[Float[Array, "..."]]
    args: tuple[Any, ...]
    rows: Int[Array, "chunks micro_size"] | None
    num_chunks: int | Int[Array, ""]
    unit: Scalar
    deadline: Int[Array, ""] | None

    @checked
    def __init__(self, loss: Callable[..., Scalar], start: PyTree, *args: Any):
        self.loss = loss
        self.start = _checked_start(start)
        self.args = args
        self.rows = None
        self.num_chunks = 1
        self.unit = jnp.ones((), self.dtype)
        self.deadline = None
        check_takes("loss", loss, 1 + len(args))
        _check_scalar(loss, self.start, args)

    @staticmethod
    @checked
    def from_functions(
        value_and_grad: Callable[[Any], Any],
        start: PyTree,
        *,
        hvp: Callable[[Any, Any], Any] | None = None,
        hessian: Callable[[Any], Any] | None = None,
        check: bool = True,
    ) -> "Problem":
        """A problem of Python callables on NumPy arrays, in place of a loss written in JAX.

        They are called back from the compiled programs, one call at a time, must be deterministic,
        and must not call JAX themselves. What raises an error in the middle of a ride ends that
        leg, with the error for its reason, and the search continues.

        **Arguments**

        - `value_and_grad(params)`: the loss and its gradient, shaped as `params`.
        - `start`: any pytree of arrays; where the search begins.
        - `hvp(params, v)`: the Hessian's product with `v`, shaped as `params`. Without it products
          are differences, of four gradients each, whose step is the one of five around eps^(1/3)
          for which two differences agree best close to the start; what they may be off by is
          measured along with them and added to residuals and errors.
        - `hessian(params)`: the whole matrix, for small problems.
        - `check`: compare the gradient with differences of values, and products with differences
          of gradients, before anything else.

        >>> import numpy as np
        >>> def value_and_grad(x):
        ...     return np.sum(x**4 / 4 - x**2 / 2), x**3 - x
        >>> problem = Problem.from_functions(value_and_grad, np.zeros(2))
        >>> [round(float(entry), 3) for entry in problem.hvp(problem.x0, jnp.array([1.0, 0.0]))]
        [-1.0, 0.0]
        """
        _checked_start(start)
        functions = NumpyFunctions(start, value_and_grad, hvp, hessian, check)
        return Problem(functions, start)

    def __hash__(self) -> int:
        """Of this object: its arrays have no hash, and `jax.jit(problem.hessian)` asks for one."""
        return id(self)

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.start))

    @property
    def dtype(self) -> np.dtype:
        return jax.tree.leaves(self.start)[0].dtype

    @property
    def x0(self) -> Vector:
        """The start as one vector."""
        return ravel_pytree(self.start)[0]

    @checked
    def ravel(self, params: PyTree) -> Vector:
        return ravel_pytree(check_params("params", self.start, params))[0]

    @checked
    def unravel(self, x: Vector) -> PyTree:
        return ravel_pytree(self.start)[1](x)

    @checked
    def params_of(self, x: np.ndarray) -> PyTree:
        """The parameters on the host, as the user has them: of a module, a state dictionary."""
        own = self.loss.params_of(np.asarray(x)) if isinstance(self.loss, Functions) else None
        return jax.device_get(self.unravel(jnp.asarray(x))) if own is None else own

    @checked
    def with_start(self, params: PyTree) -> "Problem":
        """The same loss and data from another start, e.g. one that `find_saddle` found."""
        new = Problem(self.loss, check_params("params", self.start, params), *self.args)
        new = new._with_deadline(self.deadline)
        return new if self.rows is None else new.on_rows(self.rows, self.num_chunks)

    @checked
    def with_unit(self, unit: Positive) -> "Problem":
        """The same problem with a unit of length; see `unit`."""
        if float(self.unit) == unit:
            return self
        return eqx.tree_at(lambda p: p.unit, self, jnp.asarray(unit, self.dtype))

    def check_deterministic(self) -> None:
        """Raise if the loss is another function each time it is called.

        Cheap: two traces are compared, and evaluated only if they call back into Python.

        >>> import jax.numpy as jnp, numpy as np
        >>> noise = np.random.default_rng(0)
        >>> try:
        ...     Problem(lambda x: x[0] * noise.normal(), jnp.ones(1)).check_deterministic()
        ... except ValueError as error:
        ...     print(str(error).partition(".")[0])
        `loss` must be deterministic, but two traces of it differ
        """
        plain = self.timeless()
        one, two = [jax.make_jaxpr(lambda x: plain.value(x))(self.x0) for _ in range(2)]
        texts = [re.sub(r"0x[0-9a-f]+", "", str(trace)) for trace in (one, two)]
        # Arrays are not part of the text.
        is_same = texts[0] == texts[1] and all(map(_is_same_array, one.consts, two.consts))
        what = "" if is_same else "two traces of it differ"
        if not what and "callback" in texts[0]:
            values = [float(plain.value(self.x0)) for _ in range(2)]
            if values[0] != values[1] and not all(map(math.isnan, values)):
                what = f"two calls at `start` returned {values[0]} and {values[1]}"
        if what:
            raise ValueError(
                f"`loss` must be deterministic, but {what}. Does it draw random numbers? Draw them "
                "once and pass them, or a key, as an argument."
            )

    @property
    def has_examples(self) -> bool:
        """Whether the data have a common leading length, so that they can be cut into batches."""
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.args)}
        return len(lengths) == 1 and lengths != {()}

    @property
    def num_examples(self) -> int:
        """The common leading length of the data; raises if there is none."""
        if not self.has_examples:
            lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.args)}
            raise ValueError(
                "`args` must be arrays of one leading length, an entry for each example, to be cut "
                f"into batches, not of leading lengths {sorted(lengths)}."
            )
        return len(jax.tree.leaves(self.args)[0])

    @checked
    def on_rows(
        self, rows: Int[Array, "chunks micro_size"], num_chunks: int | Int[Array, ""] | None = None
    ) -> "Problem":
        """The loss on these rows of the data, the mean of the first `num_chunks` chunks.

        The loss must be a mean over examples for this to be the loss on all of them. A `num_chunks`
        that is traced lets a batch grow inside a compiled loop; `value` can then no longer be
        differentiated in reverse, but `grad` and `hvp` work as ever.

        >>> import jax.numpy as jnp
        >>> def loss(x, data):
        ...     return jnp.mean(data) * x[0] ** 2
        >>> problem = Problem(loss, jnp.ones(1), jnp.arange(6.0))
        >>> float(problem.on_rows(jnp.array([[1, 2], [3, 4]])).value(problem.x0))
        2.5
        """
        chunks = len(rows) if num_chunks is None else num_chunks
        return eqx.tree_at(
            lambda p: (p.rows, p.num_chunks),
            self,
            (rows, chunks),
            is_leaf=lambda leaf: leaf is None,
        )

    @checked
    def value(self, x: Vector) -> Scalar:
        return self._mean(lambda args: self._value(x, args))

    @checked
    def grad(self, x: Vector) -> Vector:
        return self._mean(lambda args: jax.grad(self._value)(x, args))

    @checked
    def hvp(self, x: Vector, v: Vector) -> Vector:
        return self.hvp_at(x)(v)

    @checked
    def hvp_at(self, x: Vector) -> Callable[[Vector], Vector]:
        """`v -> hvp(x, v)`. What does not depend on `v` is computed once."""
        if isinstance(self.loss, Functions):
            functions = self.loss
            return lambda v: self._mean(lambda args: functions.product(x, v, *args))
        if self.rows is None or len(self.rows) == 1:
            return jax.linearize(self.grad, x)[1]
        return lambda v: self._mean(
            lambda args: jax.jvp(lambda x: jax.grad(self._value)(x, args), (x,), (v,))[1]
        )

    @checked
    def hessian(self, x: Vector) -> Float[Array, "n n"]:
        return _hessian(self, x)

    @property
    def noise(self) -> float:
        """What products may be off by beyond rounding, relative to their length; measured once."""
        return self.loss.noise if isinstance(self.loss, Functions) else 0.0

    def hvp_error(self, x: Vector, v: Vector) -> tuple[Scalar, Cost]:
        """What `hvp(x, v)` may be off by beyond rounding, measured there, and what that costs."""
        if not isinstance(self.loss, Functions) or self.loss.step is None:
            return jnp.zeros((), x.dtype), Cost()
        functions = self.loss
        return self._mean(lambda args: functions.error(x, v, *args)), Cost(hvps=1)

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Record which calls functions outside of JAX get inside of this context, and failures.

        Only one thread at a time is inside, so that calls are nobody else's; nested contexts each
        record their own. Wait for the results of programs before it ends. Nothing is remembered
        from before it: the same work costs the same, whatever was done earlier.

        >>> import numpy as np
        >>> problem = Problem.from_functions(lambda x: (x @ x, 2 * x), np.ones(3))
        >>> with problem.ledger() as ledger:
        ...     _ = jax.block_until_ready(problem.hessian(problem.x0))
        >>> ledger.calls.hvps, ledger.calls.gradients, ledger.failure
        (3, 12, '')
        """
        began, is_outside = time.perf_counter(), isinstance(self.loss, Functions)
        with self.loss.ledger() if is_outside else nullcontext(Ledger()) as ledger:  # type: ignore[attr-defined]
            yield ledger
        ledger.seconds = time.perf_counter() - began

    def timed(self) -> "Problem":
        """The problem whose loss is NaN once the time of this context (`clock.limited`) is up.

        >>> from ridgerider._core.runtime.clock import limited
        >>> problem = Problem(lambda x: x @ x, jnp.ones(2))
        >>> with limited(0.0):
        ...     print(problem.timed().value(problem.x0))
        nan
        """
        latest = 1000 * (clock.deadline() - BEGAN)
        # Those have their own clock. A limit of weeks is left to the loops between programs.
        if isinstance(self.loss, Functions) or latest > MAX_COUNT:
            return self
        return self._with_deadline(jax.device_put(np.int32(max(0, latest))))

    def timeless(self) -> "Problem":
        return self if self.deadline is None else self._with_deadline(None)

    def _with_deadline(self, deadline: Int[Array, ""] | None) -> "Problem":
        return eqx.tree_at(lambda p: p.deadline, self, deadline, is_leaf=lambda leaf: leaf is None)

    def _value(self, x: Vector, args: tuple[Any, ...]) -> Scalar:
        if isinstance(self.loss, Functions):
            return self.loss.value(x, *args)

        def value(x: Vector) -> Scalar:
            return jnp.asarray(self.loss(self.unravel(x), *args)).astype(x.dtype)

        if self.deadline is None:
            return value(x)
        shape = jax.ShapeDtypeStruct((), bool)
        (is_late,) = call_host(_is_late, (shape,), self.deadline, is_pure=False)
        return jax.lax.cond(is_late, lambda x: jnp.nan * (x @ x), value, x)

    def _mean(self, of: Callable[[tuple[Any, ...]], Any]) -> Any:
        """The mean of `of(args)` over the chunks."""
        rows, is_outside = self.rows, isinstance(self.loss, Functions)
        if rows is None:
            return of(() if is_outside else self.args)

        def chunk(index: int | Int[Array, ""]) -> Array:
            if is_outside:  # where the data are, too
                return of((rows[index],))
            return of(jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows[index]], self.args))

        if len(rows) == 1:
            return chunk(0)
        empty = jax.eval_shape(chunk, 0)
        total = jax.lax.fori_loop(
            0,
            self.num_chunks,
            lambda index, total: total + chunk(index),
            jnp.zeros(empty.shape, empty.dtype),
        )
        return total / jnp.asarray(self.num_chunks).astype(total.dtype)


def _is_late(deadline: np.ndarray) -> tuple[np.ndarray]:
    return (np.asarray(1000 * (clock.now() - BEGAN) >= deadline),)


@eqx.filter_jit  # so that programs share one trace of it
def _hessian(problem: Problem, x: Vector) -> Float[Array, "n n"]:
    if isinstance(problem.loss, Functions):
        functions = problem.loss
        return problem._mean(lambda args: functions.hessian(x, *args))
    return problem._mean(lambda args: jax.hessian(problem._value)(x, args))


def _checked_start(start: PyTree, name: str = "start") -> PyTree[Float[Array, "..."]]:
    leaves = jax.tree.leaves(start)
    if not sum(np.size(leaf) for leaf in leaves):
        raise ValueError(f"`{name}` must hold at least one parameter, but it is an empty pytree.")
    for path, leaf in jax.tree.leaves_with_path(start):
        where = f"`{name}{jax.tree_util.keystr(path)}`"
        dtype = getattr(leaf, "dtype", type(leaf).__name__)
        if str(dtype) not in ("float", "float32", "float64"):
            raise ValueError(f"{where} must be float32 or float64, not {dtype}.")
        check_finite(where, leaf)
    start = jax.tree.map(jnp.asarray, start)
    dtypes = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(start)})
    if len(dtypes) > 1:
        raise ValueError(f"`{name}` must have leaves of one dtype, not {' and '.join(dtypes)}.")
    return start


def _check_scalar(loss: Callable[..., Scalar], start: PyTree, args: tuple[Any, ...]) -> None:
    try:
        with told_of("loss", "loss(params, *args), for this `start`"):
            out = eqx.filter_eval_shape(loss, start, *args)
    except ValueError as error:
        concrete = jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError
        if not isinstance(error.__cause__, concrete):
            raise
        raise ValueError(
            "`loss` must be written in JAX (jax.numpy), but it makes NumPy arrays or Python "
            "numbers of its parameters; functions on NumPy arrays go into "
            "rr.Problem.from_functions."
        ) from error.__cause__
    shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", type(out).__name__)
    if shape != () or not jnp.issubdtype(dtype, jnp.floating):
        hint = " Did you forget a mean or a sum?" if shape else ""
        what = f"shape {shape} and type {dtype}" if shape is not None else dtype
        raise ValueError(f"`loss` must return a real scalar, but it returned {what}.{hint}")


def check_params(name: str, start: PyTree, params: PyTree) -> PyTree:
    """Parameters in the structure of the start, which may be the state of a PyTorch module."""
    if isinstance(params, OrderedDict) and isinstance(start, dict):
        params = dict(params)  # pytrees sort dictionaries only
    params = jax.tree.map(
        lambda leaf: leaf.detach().numpy() if hasattr(leaf, "detach") else leaf, params
    )
    shapes, wanted = (jax.tree.map(np.shape, tree) for tree in (params, start))
    if shapes != wanted:
        raise ValueError(
            f"`{name}` must be parameters like the problem's start, {wanted}, not {came(params)}."
        )
    _checked_start(params, name)
    return params


def place(problem: Problem, x: Any) -> Vector:
    """`x` on the devices that hold the problem's parameters, split in the same way."""
    leaves = jax.tree.leaves(problem.start)
    if all(len(leaf.sharding.device_set) == 1 for leaf in leaves):
        return jax.device_put(x)  # `jnp.asarray` would compile a program for it
    return jax.device_put(x, problem.x0.sharding)


def flat(tree: Any) -> np.ndarray:
    """The leaves of a pytree in one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fetch(tree))])


def fetch(tree: Any) -> Any:
    """The arrays of a pytree on this host, whole, also those that other processes share."""
    return jax.device_get(jax.tree.map(_gathered, tree))


def _gathered(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return process_allgather(leaf, tiled=True)
    return leaf


class Counted:
    """A problem whose `cost` is what was asked of it so far; use one for each call of a rule.

    For code that a program runs once: the body of a compiled loop is traced once and runs often,
    so a loop counts in its carry and is charged with `charge`.

    >>> problem = Counted(Problem(lambda x: x @ x, jnp.ones(2)))
    >>> problem.grad(jnp.ones(2)).tolist(), problem.cost.gradients
    ([2.0, 2.0], 1)
    """

    def __init__(self, problem: Problem):
        self.problem, self.cost = problem, Cost()

    def charge(self, **counts: Any) -> None:
        self.cost = self.cost + Cost(**counts)

    def grad(self, x: Vector) -> Vector:
        self.charge(gradients=1)
        return self.problem.grad(x)

    def hvp(self, x: Vector, v: Vector) -> Vector:
        self.charge(hvps=1)
        return self.problem.hvp(x, v)

    def hvp_error(self, x: Vector, v: Vector) -> Scalar:
        """What `hvp(x, v)` may be off by beyond rounding."""
        error, cost = self.problem.hvp_error(x, v)
        self.cost = self.cost + cost
        return error

    def eigh(
        self, x: Vector
    ) -> tuple[Float[Array, "n n"], Float[Array, " n"], Float[Array, "n n"]]:
        """The dense Hessian, its eigenvalues, ascending, and its eigenvectors as columns."""
        self.charge(hvps=self.problem.size, hessians=1, eigendecompositions=1)
        hessian = self.problem.hessian(x)
        return hessian, *jnp.linalg.eigh(hessian)
