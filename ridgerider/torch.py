"""Models written in PyTorch: `pip install 'ridgerider[torch]'`.

The module and its data stay with PyTorch, on their device and in their dtype. What passes between
the two frameworks are vectors, and the numbers of the rows of a mini-batch. A Hessian-vector
product (HVP) is the gradient of grad . v; the graph of the gradient is kept, so that many HVPs at
one point, which is what every eigensolver asks for, share it. (`torch.func.jvp` of `grad` computes
the gradient again for each of them, and took more than twice as long.)

One thread at a time runs a module: compiled programs call back from several threads, and
`functional_call` puts its parameters into the module that all of them share.
"""

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np

from ridgerider._check import Positive, Seed, checked, needs
from ridgerider._core.points.network import NetworkStart, start_at
from ridgerider._core.problem.functions import CALLING, Block, Functions, Point, Rows, is_equal
from ridgerider._core.problem.numpy_functions import check_gradient
from ridgerider._core.problem.problem import Problem

with needs("torch", "ridgerider.torch"):
    import torch
    from torch.func import functional_call

Params = Literal["all"] | Sequence[str]
NOT_IN_TRAINING = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.modules.dropout._DropoutNd,
)
BLOCK = 16  # HVPs that are computed at a time for a dense Hessian
# JAX keeps the programs of modules that are gone, each start of a network with about 130 memory
# maps, of which Linux allows 65,530: after so many modules all programs are dropped.
MAX_MADE = 100
_made = itertools.count(1)


@checked
def problem(
    module: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    *data: torch.Tensor,
    params: Params = "all",
    check: bool = True,
) -> Problem:
    """The problem of minimising `loss(module(*inputs), targets)`, where `data` is both.

    Its parameters are a dictionary by name; those of a solution (`Solution.params`) are a state
    dictionary of the whole module. Mini-batches are those of any problem (see `Batches`): `loss`
    must then be a mean over the rows.

    **Arguments**

    - `module`: where its parameters are now is where the search begins; it is left as it is. In
      evaluation mode if it has batch normalisation or dropout.
    - `loss(outputs, targets)`: a scalar, e.g. `torch.nn.functional.cross_entropy`. With a single
      tensor in `data`, the input, it is called as `loss(outputs)`.
    - `data`: tensors of one leading length; all but the last go into the module.
    - `params`: which are searched: "all", or a list of names of parameters or submodules.
    - `check`: whether to compare the gradient with differences of values first.

    >>> import torch
    >>> import ridgerider.torch
    >>> module = torch.nn.Linear(2, 1)
    >>> inputs, targets = torch.eye(2), torch.zeros(2, 1)
    >>> one = ridgerider.torch.problem(module, torch.nn.functional.mse_loss, inputs, targets)
    >>> one.size, sorted(one.start)
    (3, ['bias', 'weight'])
    """
    module = _plain(module)
    names = _checked(module, data, params)
    functions = ModuleFunctions(module, loss, data, names)
    x = functions.start()
    functions.try_out(x)
    if check:
        noise = np.random.default_rng(0).normal(size=x.shape).astype(x.dtype)
        check_gradient(functions, x + np.asarray(0.01, x.dtype) * noise)
    return Problem(functions, functions.chosen(x), *map(_array, data))


@checked
def network_start(
    module: torch.nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    head: Callable[[dict[str, Any]], Any] | None = None,
    factor: Positive = 0.01,
    seed: Seed = 0,
) -> NetworkStart:
    """`rr.network_start` for a module: its last linear layer scaled, nothing else touched.

    `start.problem` is that of `problem`; the module is left as it is, and
    `start.problem.params_of(start.problem.x0)` is the state dictionary that rides begin with.

    **Arguments**

    - `module`: as it was initialised; each example by itself, the outputs along the last axis.
    - `inputs`, `targets`: tensors of one leading length.
    - `loss(outputs, targets)`: a mean over examples. Default: the cross-entropy for whole numbers,
      the mean square for others.
    - `head(params)`: the parameter of the last layer, or a tuple, of a dictionary by name. Default:
      those of the last module, which must be a `torch.nn.Linear`.
    - `factor`: what the head is multiplied by.

    >>> import torch
    >>> import ridgerider.torch
    >>> _ = torch.manual_seed(0)
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> start = ridgerider.torch.network_start(module, torch.eye(2), torch.tensor([0, 1]))
    >>> start.head
    ("['2.bias']", "['2.weight']")
    """
    module = _plain(module)
    names = _checked(module, (inputs, targets), "all")
    if head is not None:
        chosen = jax.tree.leaves(head({name: name for name in names}))
    else:
        parts = module.named_modules()
        *_, (last, layer) = (one for one in parts if not list(one[1].children()))
        if not isinstance(layer, torch.nn.Linear):
            raise ValueError(
                f"`module` must end in a linear layer, but {last or 'it'} is a "
                f"{type(layer).__name__}: name the last layer as head=lambda params: ..."
            )
        chosen = [name for name in names if name.rpartition(".")[0] == last]
    with CALLING, torch.no_grad():  # another thread may have put its parameters into the module
        scaled = copy.deepcopy(module)
        num_outputs = module(inputs[:1]).shape[-1]
        for name in chosen:
            scaled.get_parameter(name).mul_(factor)
    if loss is None and targets.is_floating_point():
        loss = torch.nn.functional.mse_loss
    elif loss is None:
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= num_outputs:
            raise ValueError(
                f"`targets` must be from 0 to {num_outputs - 1}, as there are {num_outputs} "
                f"outputs, but they go from {low} to {high}."
            )
        loss = _cross_entropy
    start = problem(scaled, loss, inputs, targets)
    is_head = {name: name in chosen for name in names}
    return start_at(start, start.start, is_head, factor, seed)


def _plain(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of one by `torch.compile`, whose programs have no second derivatives."""
    return getattr(module, "_orig_mod", module)


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Outputs along the last axis, which for sequences is not where PyTorch has them."""
    flat = outputs.reshape(-1, outputs.shape[-1])
    return torch.nn.functional.cross_entropy(flat, targets.reshape(-1).long())


class ModuleFunctions(Functions):
    """A module with its loss and data, as functions of the chosen parameters in one vector."""

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[..., torch.Tensor],
        data: tuple[torch.Tensor, ...],
        names: list[str],
    ):
        self.module, self.criterion, self.data, self.names = module, loss, data, names
        given = dict(module.named_parameters())
        # Copies: the module is the user's, who may continue to train it.
        with CALLING:
            tensors = {**module.state_dict(), **given, **dict(module.named_buffers())}
            self.fixed = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        every = dict(module.named_parameters(remove_duplicate=False))
        # A parameter in several places goes by its first name.
        first_names = {id(tensor): name for name, tensor in reversed(list(given.items()))}
        self.same = {name: first_names[id(tensor)] for name, tensor in every.items()}
        self.sizes = [given[name].numel() for name in names]
        first = given[names[0]]
        self.device, self.is_vectorized = first.device, True
        self._graph: tuple[Any, ...] | None = None
        dtype = np.dtype(str(first.dtype).removeprefix("torch."))
        name = getattr(loss, "__name__", type(loss).__name__)
        super().__init__(sum(self.sizes), dtype, BLOCK, f"{type(module).__name__}, {name}")
        if next(_made) % MAX_MADE == 0:
            jax.clear_caches()

    # --- parameters

    def start(self) -> Point:
        return torch.cat([self.fixed[name].reshape(-1) for name in self.names]).cpu().numpy()

    def chosen(self, x: Point) -> dict[str, np.ndarray]:
        """What is searched, by name."""
        return {name: _array(part) for name, part in self._parameters(torch.tensor(x)).items()}

    def params_of(self, x: Point) -> dict[str, torch.Tensor]:
        """The state dictionary of the module with these parameters."""
        with torch.no_grad():
            new = self._parameters(self._tensor(np.array(x, self.dtype)))
        names = self.module.state_dict().keys()
        found = {name: new.get(self.same.get(name, name), self.fixed[name]) for name in names}
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def _parameters(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = zip(self.names, x.split(self.sizes), strict=True)
        return {name: part.view_as(self.fixed[name]) for name, part in parts}

    # --- derivatives

    def evaluate(self, x: Block, rows: Rows) -> tuple[np.ndarray, Block]:
        found = [self._differentiated(point, rows, False)[1:] for point in x]
        values, grads = zip(*found, strict=True)
        return _array(torch.stack(values)), _array(torch.stack(grads))

    def multiply(self, x: Point, v: Block, rows: Rows) -> Block:
        last = self._graph
        if last is None or not (is_equal(last[0], x) and is_equal(last[1], rows)):
            self._graph = None  # its memory is needed
            own = x.copy()  # the graph outlives the program's memory
            point, _, grad = self._differentiated(own, rows, True)
            last = self._graph = (own, rows, point, grad)
        _, _, point, grad = last
        self.count(hvps=len(v))
        if not grad.requires_grad:  # the loss is linear
            return np.zeros_like(v)
        is_block = len(v) > 1 and self.is_vectorized
        parts = self._tensor(v).split(self.block) if is_block else self._tensor(v)
        how = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        with _alone():
            images = [
                torch.autograd.grad(grad, point, part, is_grads_batched=is_block, **how)[0]
                for part in parts
            ]
        return _array(torch.cat(images) if is_block else torch.stack(images))

    def _differentiated(
        self, x: Point, rows: Rows, keeps_graph: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.count(gradients=1)
        with _alone():
            point = self._tensor(x).requires_grad_()
            value = self.loss(point, rows)
            (grad,) = torch.autograd.grad(value, point, create_graph=keeps_graph)
        return point, value.detach(), grad

    def loss(self, x: torch.Tensor, rows: Rows = None) -> torch.Tensor:
        """The loss in PyTorch, on these rows of the data or all."""
        self.count(values=1)
        data = self.data
        if rows is not None and len(rows) < len(data[0]):
            chosen = torch.as_tensor(rows, device=self.device)
            data = tuple(tensor[chosen] for tensor in data)
        inputs = data[:-1] or data
        with _alone():
            state = {**self.fixed, **self._parameters(x)}
            state = {name: of for name, of in state.items() if self.same.get(name, name) == name}
            outputs = functional_call(self.module, state, tuple(inputs))
            return self.criterion(outputs, *data[len(inputs) :])

    def _tensor(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_dlpack(x).to(self.device)  # without a copy on a processor

    def _own(self, x: np.ndarray) -> np.ndarray:
        # Never written to, and copied where it is kept.
        return np.asarray(x, self.dtype) if x.dtype.kind == "f" else np.array(x)

    # --- checks

    def try_out(self, x: Point) -> None:
        """Evaluate once, and find out which derivatives there are."""
        with torch.no_grad():
            value = self.loss(self._tensor(x))
        if not isinstance(value, torch.Tensor) or value.shape != ():
            what = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(
                f"`loss` must return a scalar tensor, not {what}. Did you forget a mean?"
            )
        (first,), (slope,) = self.evaluate(x[None], None)
        (second,), (again,) = self.evaluate(x[None], None)
        if first != second or not np.array_equal(slope, again):
            raise ValueError(
                f"`loss` must be deterministic, but two calls returned {first!r} and {second!r}."
            )
        directions = np.stack([np.ones_like(x), np.arange(1, len(x) + 1, dtype=x.dtype) / len(x)])
        self.multiply(x, directions[:1], None)
        try:
            self.multiply(x, directions, None)
        except (NotImplementedError, RuntimeError, UserWarning):
            self.is_vectorized = False

    def forget(self) -> None:
        super().forget()
        self._graph = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_graph": None}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One thread at a time, with attention by operations that can be differentiated twice."""
    with CALLING:
        was_fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(was_fast)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _checked(module: torch.nn.Module, data: tuple[Any, ...], params: Params) -> list[str]:
    """The names of the chosen parameters; raises on bad input."""
    for number, tensor in enumerate(data):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"`data[{number}]` must be a tensor, not {type(tensor).__name__}.")
    lengths = [tuple(tensor.shape[:1]) for tensor in data]
    if not data or len(set(lengths)) > 1 or () in lengths:
        raise ValueError(
            "`data` must be tensors of one leading length, inputs and targets, not of leading "
            f"lengths {lengths}."
        )
    for name, part in module.named_modules():
        is_random = isinstance(part, NOT_IN_TRAINING) and getattr(part, "p", 1.0) > 0
        has_dropout = isinstance(getattr(part, "dropout", None), float) and part.dropout
        if part.training and (is_random or has_dropout):
            raise ValueError(
                f"`module` must be in evaluation mode, since {name or 'it'} "
                f"({type(part).__name__}) makes the loss another one in each call: call "
                "module.eval()."
            )
    names = _names(module, params)
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    first = tensors[names[0]]
    tensors |= {f"data[{number}]": tensor for number, tensor in enumerate(data)}
    for name, tensor in tensors.items():
        if tensor.device != first.device:
            raise ValueError(
                f"`module` and `data` must be on one device, but {name} is on {tensor.device} and "
                f"the parameters are on {first.device}."
            )
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"`module` and `data` must be float32 or float64, but {name} is {tensor.dtype}: "
                "call .float()."
            )
        if name in names and tensor.dtype != first.dtype:
            raise ValueError(f"`params` must have one dtype, not {first.dtype} and {tensor.dtype}.")
    if first.dtype == torch.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise ValueError(
            "a `module` in float64 needs jax.config.update('jax_enable_x64', True) first."
        )
    return names


def _names(module: torch.nn.Module, params: Params) -> list[str]:
    """Of the chosen parameters, as JAX sorts the keys of a dictionary."""
    given = sorted(name for name, _ in module.named_parameters())
    wanted = given if params == "all" else params
    chosen = {one: [name for name in given if f"{name}.".startswith(f"{one}.")] for one in wanted}
    for one, names in chosen.items():
        if not names:
            raise ValueError(
                f"`params` must be names of parameters, {', '.join(given)}, not {one!r}."
            )
    if not chosen:
        raise ValueError("`params` must leave at least one parameter to search.")
    return sorted({name for names in chosen.values() for name in names})
