r"""A loss that is evaluated outside of JAX, differentiable inside.

`Functions` is what a `Problem` has for its loss then. It knows the value and the gradient at a
point, g(x), and either products H(x) v or none, in which case these are differences. With u = v /
|v| and a step h = `step` * max(1, |x|),

    D(h) = |v| (g(x + h u) - g(x - h u)) / 2h,    H v = (4 D(h) - D(2h)) / 3,

four gradients for an HVP, and |D(h) - D(2h)| is what it may be off by: the error of D(h) and
the noise of the gradients, whichever is larger, and at least eps / `step` times its length. Third
and fourth derivatives, which few ask for, are differences of HVPs.

`call_host` calls Python functions inside compiled programs, like `jax.pure_callback`, but NumPy
arrays are handed over as they are, without a device between.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.flatten_util import ravel_pytree
from jax.interpreters import batching, mlir
from jaxtyping import Array, Float, Int, PyTree

from ridgerider._core.problem.cost import Cost, Ledger
from ridgerider._core.runtime import clock

Point = Float[np.ndarray, " n"]
Block = Float[np.ndarray, "b n"]
Rows = Int[np.ndarray, " m"] | None
T = TypeVar("T")
STEPS = (1, -1, 2, -2)
# One thread at a time calls code outside of JAX: programs call back from several threads, and two
# problems may share a calculator, a module or a cache that is not made for threads.
CALLING = threading.RLock()
# Whose ledgers are open in this thread, or in one that it waits for.
_open: ContextVar[tuple["Functions", ...]] = ContextVar("open", default=())


class Lock:
    """A lock that is a new one in a copy that is sent to another process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type, tuple]:
        return Lock, ()


class Functions:
    """The base of every bridge: `evaluate`, and `multiply` if products are known, on NumPy arrays.

    **Arguments**

    - `size`: how many parameters there are.
    - `dtype`: of the arrays that the functions get.
    - `block`: how many points or vectors they take at a time.
    - `step`: of differences, relative to max(unit, |x|); None where products are known.
    - `unit`: of length; see `Problem.unit`.
    - `noise`: the error of an HVP, relative to its length.
    - `grad_noise`: what an entry of a gradient may be off by, beyond rounding.
    - `resolution`: how closely stationary points are known, a length; 0: to rounding.
    - `chart`: how steps bend; see `Domain`.
    - `preparation`: what was spent before a run, to be charged to it.

    An error in a function is NaN inside, and its message is kept in the ledgers that are open. Each
    bridge calls `count` just before it calls a function: points for values and gradients, vectors
    for HVPs; a Hessian is one Hessian, and as many HVPs as there are parameters. A copy that is
    sent to another process counts from zero.
    """

    def __init__(self, size: int, dtype: Any, block: int = 1, name: str = "loss"):
        self.size, self.dtype, self.block, self.__name__ = size, np.dtype(dtype), block, name
        self.step: float | None = None
        self.noise = self.grad_noise = self.resolution = 0.0
        self.unit = 1.0
        self.chart: Any = None
        self.preparation = Cost()
        self.calls = Counter[str]()
        self._latest = math.inf  # by the clock of `runtime`
        self._ledgers: list[Ledger] = []
        self._last: tuple[Any, ...] | None = None
        self._recording = Lock()  # one ledger at a time

    # --- what a bridge provides

    def evaluate(self, x: Block, rows: Rows) -> tuple[Float[np.ndarray, " b"], Block]:
        """Values and gradients at at most `block` points, on these rows of the data or all."""
        raise NotImplementedError

    def multiply(self, x: Point, v: Block, rows: Rows) -> Block:
        """H(x) times each row of `v`."""
        self.count(hvps=len(v))
        return self.differences(x, v, rows)[0]

    def dense(self, x: Point, rows: Rows) -> Float[np.ndarray, "n n"]:
        self.count(hessians=1)
        return self.multiply(x, np.eye(self.size, dtype=self.dtype), rows)

    def params_of(self, x: Point) -> PyTree | None:
        """Parameters in the form that a user wants them in, or None for that of the start."""
        del x
        return None

    def count(self, **calls: int) -> None:
        """Count calls that are about to be made. Raises if the time is up."""
        if clock.now() >= self._latest:
            raise clock.OutOfTime
        self.calls.update(calls)

    def forget(self) -> None:
        """Forget what is remembered of the last point, so that it is evaluated again."""
        self._last = None

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """See `Problem.ledger`."""
        ledger, outer = Ledger(), _open.get()
        is_nested = any(one is self for one in outer)
        with nullcontext() if is_nested else self._recording.lock:
            with CALLING:
                self.forget()
            before, latest = self.calls.copy(), self._latest
            self._latest = clock.deadline()
            self._ledgers.append(ledger)
            token = _open.set((*outer, self))
            try:
                yield ledger
            finally:
                _open.reset(token)
                self._ledgers.pop()
                self._latest = latest
                ledger.calls = Cost(**(self.calls - before))

    # --- what JAX sees

    def __call__(self, params: PyTree, *data: Any) -> Array:
        del data
        return self.value(ravel_pytree(params)[0])

    def value(self, x: Array, rows: Array | None = None) -> Array:
        return _value(self, x, rows)

    def product(self, x: Array, v: Array, rows: Array | None = None) -> Array:
        return _product(self, x, v, rows)

    def hessian(self, x: Array, rows: Array | None = None) -> Array:
        return self.on_host("hessian", x, rows)[0]

    def error(self, x: Array, v: Array, rows: Array | None = None) -> Array:
        """The error of the HVP with `v`; costs one more HVP."""
        return self.on_host("error", x, v, rows)[0]

    def on_host(self, what: str, *args: Array | None) -> list[Array]:
        """Inside a program: what the functions say of a point, or of a vector there.

        What raises an error must not end the program: it is NaN there, and a reason here.
        """
        table: dict[str, tuple[Any, ...]] = {
            "value": (self.pair_at, (), (self.size,)),
            "product": (lambda x, v, rows=None: self.multiply(x, v[None], rows), (self.size,)),
            "error": (lambda x, v, rows=None: self.errors(x, v[None], rows), ()),
            "hessian": (lambda x, rows=None: [self.dense(x, rows)], (self.size,) * 2),
        }
        compute, *shapes = table[what]
        x, *_ = given = [arg for arg in args if arg is not None]
        results = tuple(jax.ShapeDtypeStruct(shape, x.dtype) for shape in shapes)

        def call(*given: np.ndarray) -> tuple[np.ndarray, ...]:
            with CALLING:
                try:
                    found = compute(*map(self._own, given))
                except Exception as error:
                    self._note(error)
                    found = [np.full(shape, np.nan) for shape in shapes]
            pairs = zip(found, results, strict=True)
            return tuple(np.asarray(one, like.dtype).reshape(like.shape) for one, like in pairs)

        return call_host(call, results, *given)

    # --- on the host

    def differences(self, x: Point, v: Block, rows: Rows) -> tuple[Block, Float[np.ndarray, " b"]]:
        """Products by differences of gradients, and what each may be off by."""
        assert self.step is not None
        lengths = np.linalg.norm(v, axis=1)
        units = v / np.where(lengths > 0, lengths, 1)[:, None]
        h = self.step * max(self.unit, float(np.linalg.norm(x)))
        images, errors = np.zeros_like(v), np.zeros(len(v))
        count = max(1, self.block // len(STEPS))
        for begin in range(0, len(v), count):
            some = slice(begin, begin + count)
            points = [x + step * h * unit for unit in units[some] for step in STEPS]
            _, grads = self._in_blocks(np.array(points), rows)
            ahead, behind, far, far_behind = np.moveaxis(
                grads.reshape(-1, len(STEPS), self.size), 1, 0
            )
            near, wide = (ahead - behind) / (2 * h), (far - far_behind) / (4 * h)
            images[some] = (4 * near - wide) / 3 * lengths[some, None]
            # Where both agree by chance there is still the rounding of the points themselves.
            rounding = float(np.finfo(self.dtype).eps) / self.step * np.linalg.norm(near, axis=1)
            apart = np.linalg.norm(near - wide, axis=1)
            errors[some] = np.maximum(apart, rounding) * lengths[some]
        return images, errors

    def _in_blocks(self, x: Block, rows: Rows) -> tuple[np.ndarray, Block]:
        blocks = [
            self.evaluate(x[begin : begin + self.block], rows)
            for begin in range(0, len(x), self.block)
        ]
        values, grads = zip(*blocks, strict=True)
        return np.concatenate(values), np.concatenate(grads)

    def pair_at(self, x: Point, rows: Rows = None) -> tuple[Any, Point]:
        """Value and gradient at one point; those of the last one are remembered."""
        last = self._last
        if last is None or not (is_equal(last[0], x) and is_equal(last[1], rows)):
            (value,), (grad,) = self.evaluate(x[None], rows)
            last = self._last = (x.copy(), rows, value, grad)
        return last[2:]

    def value_at(self, x: Point) -> Any:
        return self.pair_at(x)[0]

    def errors(self, x: Point, v: Block, rows: Rows) -> Float[np.ndarray, " b"]:
        """What each product may be off by."""
        self.count(hvps=len(v))
        return self.differences(x, v, rows)[1]

    def safely(self, compute: Callable[[], T], otherwise: T) -> T:
        """What is computed; where that raises, something else, and the ledgers have the reason."""
        with CALLING:
            try:
                return compute()
            except clock.OutOfTime:
                raise
            except Exception as error:
                self._note(error)
                return otherwise

    def _note(self, error: Exception) -> None:
        for ledger in self._ledgers:
            ledger.failure = f"{type(error).__name__}: {error}".rstrip(".")
        self.forget()

    def _own(self, x: np.ndarray) -> np.ndarray:
        """A copy for the functions to keep: the program's own memory is used again."""
        return np.array(x, self.dtype if x.dtype.kind == "f" else x.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_last": None,
            "_ledgers": [],
            "_latest": math.inf,
            "calls": Counter(),
        }


def is_equal(one: Any, two: Any) -> bool:
    return one is two or (one is not None and two is not None and np.array_equal(one, two))


# --- derivatives


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value(functions: Functions, x: Array, rows: Array | None) -> Array:
    return functions.on_host("value", x, rows)[0]


@_value.defjvp
def _value_jvp(functions: Functions, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, rows), (v, _) = primals, tangents
    value, grad = _value_and_grad(functions, x, rows)
    return value, grad @ v


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_and_grad(functions: Functions, x: Array, rows: Array | None) -> tuple[Array, Array]:
    value, grad = functions.on_host("value", x, rows)
    return value, grad


@_value_and_grad.defjvp
def _value_and_grad_jvp(functions: Functions, primals: Any, tangents: Any) -> Any:
    (x, rows), (v, _) = primals, tangents
    value, grad = _value_and_grad(functions, x, rows)
    return (value, grad), (grad @ v, _product(functions, x, v, rows))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(functions: Functions, x: Array, v: Array, rows: Array | None) -> Array:
    return functions.on_host("product", x, v, rows)[0]


@_product.defjvp
def _product_jvp(functions: Functions, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, v, rows), (along, turn, _) = primals, tangents
    product = _product(functions, x, v, rows)
    return product, _third(functions, x, v, along, rows) + _product(functions, x, turn, rows)


def _third(functions: Functions, x: Array, v: Array, along: Array, rows: Array | None) -> Array:
    """How the HVP with `v` changes along a direction, by differences of fourth order.

    It is differentiated in turn, which needs long steps.
    """
    noise = max(float(jnp.finfo(x.dtype).eps), functions.noise)
    length = jnp.linalg.norm(jax.lax.stop_gradient(along))
    reach = noise**0.2 * jnp.maximum(jnp.linalg.norm(jax.lax.stop_gradient(x)), 1)
    h = reach / jnp.where(length > 0, length, 1)
    ahead, behind, far, far_behind = (
        _product(functions, x + step * h * along, v, rows) for step in STEPS
    )
    return (8 * (ahead - behind) - (far - far_behind)) / (12 * h)


# Measured with JAX 0.10.2: a call with 3 to 300 numbers takes 4 us of processor time, 31 us with
# `jax.pure_callback` (13 to 23 and 95 to 270 us of wall time); of 10 MB 15 and 24 ms. No deadlock
# of either, 8 calls side by side, one core.
host_p = Primitive("host_callback")
host_p.multiple_results = True


def call_host(
    function: Callable[..., tuple[np.ndarray, ...]],
    results: tuple[Any, ...],
    *args: Array,
    is_pure: bool = True,
) -> list[Array]:
    """`function(*args)` on NumPy arrays, which are its own only until it returns.

    Unless it is pure it is called in each step of a loop. It must not call JAX, and returns a tuple
    of arrays of the shapes and dtypes of `results`. Under `vmap` calls are made one by one.

    >>> def double(x):
    ...     return (2 * x,)
    >>> x = jnp.arange(3.0)
    >>> jax.jit(lambda x: call_host(double, (x,), x))(x)[0].tolist()
    [0.0, 2.0, 4.0]
    """
    shapes = tuple(ShapedArray(result.shape, np.dtype(result.dtype)) for result in results)
    if hasattr(mlir, "emit_python_callback"):  # not documented by JAX
        return host_p.bind(*args, function=function, results=shapes, is_pure=is_pure)
    found = jax.pure_callback(
        lambda *args: function(*map(np.asarray, args)), results, *args, vmap_method="sequential"
    )
    return list(found)


@host_p.def_impl
def _call_now(*args: Any, function: Callable[..., Any], **_: Any) -> list[Array]:
    return [jnp.asarray(result) for result in function(*map(np.asarray, args))]


@host_p.def_abstract_eval
def _shapes(*_: Any, results: tuple[Any, ...], **__: Any) -> list[Any]:
    return list(results)


def _lower(
    ctx: Any, *args: Any, function: Callable[..., Any], results: tuple[Any, ...], is_pure: bool
) -> Any:
    is_double = any(result.dtype.itemsize == 8 for result in results)

    def call(*args: np.ndarray) -> tuple[np.ndarray, ...]:
        found = function(*args)
        # JAX makes single precision of what comes back unless this thread, one of the program's,
        # is told of the `jax.enable_x64` that the program was compiled in.
        if is_double and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            jax.enable_x64(True).__enter__()
        return found

    return mlir.emit_python_callback(
        ctx,
        call,
        None,
        list(args),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=not is_pure,
        returns_token=False,
    )[0]


def _batch(args: Any, axes: Any, **same: Any) -> Any:
    is_shared = [axis is None for axis in axes]
    leading = [
        None if axis is None else jnp.moveaxis(arg, axis, 0)
        for arg, axis in zip(args, axes, strict=True)
    ]

    def one(given: list[Any]) -> list[Array]:
        parts = zip(is_shared, args, given, strict=True)
        return host_p.bind(*(arg if shared else part for shared, arg, part in parts), **same)

    results = jax.lax.map(one, leading)
    return results, [0] * len(results)


mlir.register_lowering(host_p, _lower)
batching.primitive_batchers[host_p] = _batch
