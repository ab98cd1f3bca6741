"""Ensemble: members that begin differently, are trained alike, and predict together."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ridgerider._check import (
    Count,
    Positive,
    Seed,
    Whole,
    check_count,
    check_labels,
    checked,
    told_of,
)
from ridgerider._core.descend.finish import Epoch, listening
from ridgerider._core.descend.train import Train
from ridgerider._core.problem.batches import Batches
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem
from ridgerider.ensembles._begin import VALUE, AlongRidges, Beginning, Fresh, Init
from ridgerider.ensembles._scores import (
    Labels,
    Probabilities,
    Scores,
    auroc,
    disagreement,
    entropy,
    verdict,
)

Logits = Callable[[PyTree, Array], Float[Array, "examples classes"]]
Apply = Annotated[Logits, "apply(params, inputs)"]
Begin = Annotated[Callable[[Problem, PRNGKeyArray], Iterator[Beginning]], "begin(problem, key)"]
CHUNK = 1024  # inputs that are predicted at a time


@dataclass(frozen=True)
class Member:
    """One network of an ensemble: where it began ("0+": along ridge 0), and what became of it.

    `how` says in words how it began. `cost` is what its beginning and its training took; a spectrum
    at the start, which is shared, is charged to the first beginning after it. `work` is that cost
    in gradients of one example, where a value counts as a third of one and a Hessian-vector product
    as two.
    """

    name: str
    x: np.ndarray
    loss: float
    is_at_target: bool
    history: dict[str, np.ndarray] = field(repr=False)
    cost: Cost
    work: float
    how: str = ""


@dataclass(frozen=True)
class Ensemble:
    """Networks that were trained alike from different beginnings; `print` shows a table of them.

    `dropped` says which beginnings were discarded, and why; others took their places.

    `cost` and `work` are those of all that was computed: the members, beginnings that were dropped
    or not trained, and spectra in which no further ridge was found. So they can be more than the
    sum over the members. The products of a spectrum share one pass through the loss, which is part
    of them. Predictions and the metrics of `Train` are not counted. What an earlier call left in
    the `folder` of `Train` is counted as if it had been computed now.
    """

    problem: Problem = field(repr=False)
    apply: Apply = field(repr=False)
    finish: Train = field(repr=False)
    members: tuple[Member, ...]
    dropped: dict[str, str]
    cost: Cost
    work: float
    seed: int = 0

    def __len__(self) -> int:
        return len(self.members)

    @checked
    def params(self, number: Whole) -> PyTree:
        """The parameters of a member."""
        return self.problem.unravel(jnp.asarray(self.members[number].x))

    @checked
    def predictions(self, inputs: Array | np.ndarray) -> Probabilities:
        """The probabilities that each member gives to each class."""
        if not np.ndim(inputs):
            raise ValueError("`inputs`, `inside` and `outside` must have a row for each example.")
        xs = jnp.stack([jnp.asarray(member.x) for member in self.members])
        with told_of("apply", "apply(params, inputs), for these `inputs` (`inside`, `outside`)"):
            return predict(self.problem, self.apply, xs, inputs)

    @checked
    def disagreement(self, inputs: Array | np.ndarray) -> Float[np.ndarray, "members members"]:
        """On which part of the inputs each two members guess differently."""
        return disagreement(self.predictions(inputs))

    @checked
    def scores(self, inputs: Array | np.ndarray, labels: Labels) -> Scores:
        """Accuracy, disagreement, negative log-likelihood and calibration error."""
        return Scores.of(self.predictions(inputs), labels)

    @checked
    def auroc(self, inside: Array | np.ndarray, outside: Array | np.ndarray) -> float:
        """How well its uncertainty (the entropy of the mean) distinguishes inputs from outside."""
        sides = (entropy(self.predictions(inputs).mean(axis=0)) for inputs in (inside, outside))
        return auroc(*sides)

    @checked
    def pick(self, k: Count, inputs: Array | np.ndarray) -> "Ensemble":
        """The `k` members that disagree most on these inputs, one after the other."""
        check_count("k", k, 1, len(self))
        chosen = farthest_first(disagreement(self.predictions(inputs)))[:k]
        return replace(self, members=tuple(self.members[number] for number in sorted(chosen)))

    @checked
    def deep(self, init: Init | None = None, *, budget: Positive | None = None) -> "Ensemble":
        """A deep ensemble to compare with: trained alike, from random initialisations.

        With as many members; or, with a `budget` of work such as this ensemble's own (`work`), with
        as many as it allows. `init` is that of `Fresh`.
        """
        how: dict[str, Any] = {"apply": self.apply, "finish": self.finish, "seed": self.seed}
        return ensemble(self.problem, len(self), begin=Fresh(init), budget=budget, **how)

    @checked
    def train_on(self, epochs: Count) -> "Ensemble":
        """The same ensemble; members above the target are trained for at most `epochs` more.

        Without a target all members are. The optimizer's state begins anew.
        """
        finish, key = replace(self.finish, epochs=epochs), jax.random.key(self.seed)
        members, trained = list(self.members), list[Member]()
        for number, member in enumerate(members):
            if finish.target is not None and member.is_at_target:
                continue
            here = Beginning(member.name, jnp.asarray(member.x), how=member.how)
            more = _trained(self.problem, finish, here, jax.random.fold_in(key, 1))
            trained.append(more)
            before = member.history.items()
            history = {name: np.append(old, more.history[name][1:]) for name, old in before}
            members[number] = replace(more, history=history, **_total(member, more))
        return _told(replace(self, members=tuple(members), **_total(self, *trained)))

    def missed(self) -> str:
        """Which members are above the target, in words; empty if none is."""
        late = [member.loss for member in self.members if not member.is_at_target]
        if not late:
            return ""
        return (
            f"{len(late)} of {len(self)} members missed the target: a training loss of at most "
            f"{self.finish.target:g} was wanted, theirs are {min(late):.3g} to {max(late):.3g} "
            f"after {self.finish.epochs} epochs. `train_on(epochs)` continues, or raise `epochs`."
        )

    def __str__(self) -> str:
        lines = ["| member | it began with | epochs | loss | work |", "|---|---|---|---|---|"]
        for member in self.members:
            loss = f"{member.loss:.4g}{'' if member.is_at_target else ', missed the target'}"
            num_epochs = len(member.history["loss"]) - 1
            lines.append(
                f"| {member.name} | {member.how} | {num_epochs} | {loss} | {member.work:,.0f} |"
            )
        lines += [f"{name} was dropped: {why}." for name, why in self.dropped.items()]
        return "\n".join([*lines, self.missed()]).rstrip()

    @checked
    def compare(
        self,
        inputs: Array | np.ndarray,
        labels: Labels,
        init: Init | None = None,
        *,
        shifted: Array | np.ndarray | None = None,
    ) -> str:
        """A table and a verdict: this ensemble against deep ensembles, in two modes.

        One deep ensemble has as many members, trained to the largest training loss of this one's
        (equal loss); the other is trained alike with as many members as this one's work allows
        (equal budget). The verdict asks for more disagreement, an accuracy that is not lower by
        half a point, and at most 1.5 times the work, with 95 % intervals over the examples: it
        holds for this data and this seed.

        - `init`: of the deep ensembles, as for `Fresh`.
        - `shifted`: the same examples under a shift, to measure disagreement on; default `inputs`.
        """
        if not np.ndim(inputs):
            raise ValueError("`inputs` must have a row for each example, but it is one number.")
        check_labels(
            "`labels`", np.asarray(labels), len(inputs), _classes(self.problem, self.apply)
        )
        shifted = inputs if shifted is None else shifted
        if np.shape(shifted) != np.shape(inputs):
            raise ValueError(
                f"`shifted` must have the shape of `inputs`, {np.shape(inputs)}, not "
                f"{np.shape(shifted)}."
            )
        loss = max(member.loss for member in self.members)
        with warnings.catch_warnings():  # a target that is missed stands in the table
            warnings.simplefilter("ignore")
            finish = replace(self.finish, target=loss, epochs=2 * self.finish.epochs)
            rows = {
                "this ensemble": self,
                "deep ensemble, equal loss": replace(self, finish=finish).deep(init),
                "deep ensemble, equal budget": self.deep(init, budget=self.work),
            }
        head = "members | training loss | accuracy | disagreement | NLL | calibration error | work"
        lines, said = [f"| | {head} |", "|---|---|---|---|---|---|---|---|"], []
        mine = self.predictions(inputs), self.predictions(shifted)
        for name, one in rows.items():
            clean, moved = one.predictions(inputs), one.predictions(shifted)
            scores = Scores.of(clean, labels)
            numbers = (
                *(np.mean([member.loss for member in one.members]), scores.accuracy),
                *(Scores.of(moved, labels).disagreement, scores.nll, scores.calibration_error),
            )
            shown = " | ".join(f"{number:.4f}" for number in numbers)
            lines.append(f"| {name} | {len(one)} | {shown} | {one.work:,.0f} |")
            said += [f"{name}: {one.missed()}"] if one.missed() else []
            if one is not self:
                judged = verdict(mine, (clean, moved), labels, self.work / one.work)
                said.append(f"Against the {name}: {judged}")
        return "\n".join([*lines, *said])


@checked
def ensemble(
    problem: Problem,
    k: Count,
    *,
    apply: Apply | None = None,
    finish: Train | None = None,
    begin: Begin = AlongRidges(),
    budget: Positive | None = None,
    seed: Seed = 0,
    progress: Callable[[str], None] | None = None,
) -> Ensemble:
    """`k` networks that set out along distinct ridges of the start, trained to one target.

    **Arguments**

    - `problem`: a loss of labelled data, `loss(params, inputs, labels)`, with a start near a saddle
      (`rr.network_start`).
    - `apply`: called as `apply(params, inputs)`, returns logits. Default: `problem.loss.logits`.
    - `finish`: a `Train`, with the target that all are trained to; without a target all are trained
      for as many epochs. With a `folder`, an interrupted call continues where it was. Default: Adam
      at 3e-3 in batches of 128, 50 epochs.
    - `begin`: where members begin; default `AlongRidges()`, one straight step along each distinct
      ridge. Of straight steps 2 `k` are made, or as many as there are, and the `k` of them that
      predict most differently, on at most 1024 of the training inputs, are trained. Where it
      ends too early, random initialisations (`Fresh`) follow, and a warning says so.
    - `budget`: continue with further members while the work, in gradients of one example, stays
      below this.
    - `progress`: called with a line after each epoch.

    A member whose loss is no longer finite is dropped, and the next candidate takes its place. A
    warning says if members missed the target; `Ensemble.train_on` continues their training.

    >>> from ridgerider.data import digits
    >>> from ridgerider.problems import classifier
    >>> images = digits().some(256, 64)
    >>> problem = classifier(images.train_images, images.train_labels, widths=(8,), init_scale=1e-3)
    >>> train = Train(optax.adam(0.02), Batches(64), epochs=40, target=0.3)
    >>> found = ensemble(problem, 3, finish=train)
    >>> len(found), found.disagreement(images.test_images).shape
    (3, (3, 3))
    """
    apply = getattr(problem.loss, "logits", None) if apply is None else apply
    if apply is None:
        raise ValueError(
            "`apply` must be given as apply(params, inputs) -> logits, for `problem.loss` has "
            "no `logits`."
        )
    _classes(problem, apply)
    if finish is None:
        size = min(128, problem.num_examples)
        finish = Train(optax.adam(3e-3), Batches(size), epochs=50)
    has_straight_steps = isinstance(begin, AlongRidges) and begin.rider is None
    key, unused = jax.random.key(seed), list[Beginning]()

    def asked() -> Iterator[Beginning]:
        rest: Any = yield from begin(problem, key)  # type: ignore[func-returns-value]
        unused.extend([rest] if isinstance(rest, Beginning) else ())

    more = asked()
    first = list(islice(more, 2 * k if has_straight_steps else k))
    if len(first) < k:
        why = ", for `problem.start` has no negative curvature" if not first else ""
        warnings.warn(
            f"`begin` has {len(first)} beginnings for {k} members{why}; the others begin at random "
            "initialisations (rr.network_start makes a start with more ridges).",
            stacklevel=2,
        )
    if len(first) > k:
        xs, inputs = jnp.stack([one.x for one in first]), problem.args[0][:CHUNK]
        guesses = predict(problem, apply, xs, inputs)
        distances = np.abs(guesses[:, None] - guesses[None]).sum(axis=-1).mean(axis=-1)
        first = [first[row] for row in farthest_first(np.nan_to_num(distances))]
    members, tried, dropped = list[Member](), list[Member](), dict[str, str]()

    def spent() -> dict[str, Any]:
        return _total(*tried, *first[len(tried) :], *unused)

    def is_complete() -> bool:
        if len(members) < k or budget is None:
            return len(members) >= k
        return bool(spent()["work"] + np.mean([member.work for member in members]) > budget)

    fresh = islice(Fresh()(problem, key), 2 * k)  # not for ever, where no loss is finite
    beginnings = chain(first, more, fresh)
    while not is_complete() and (one := next(beginnings, None)):  # none is made in vain
        with listening(progress and partial(_say, progress, one.name)):
            member = _trained(problem, finish, one, key)
        tried.append(member)
        losses = member.history["loss"]
        if np.isfinite(losses[-1]):
            members.append(member)
        else:
            dropped[one.name] = f"the loss was no longer finite in epoch {len(losses) - 1}"
    if len(members) < k:
        reasons = "; ".join(f"{name}: {why}" for name, why in dropped.items())
        raise ValueError(
            f"the loss must stay finite in training, but only {len(members)} of "
            f"{len(members) + len(dropped)} trainings did, for {k} members ({reasons})."
        )
    made = Ensemble(problem, apply, finish, tuple(members), dropped, **spent(), seed=seed)
    return _told(made)


def _total(*spent: Beginning | Member | Ensemble) -> dict[str, Any]:
    """The sums of their `cost` and `work`."""
    cost = sum((one.cost for one in spent), Cost())
    return {"cost": cost, "work": sum(one.work for one in spent)}


def _told(made: Ensemble) -> Ensemble:
    """The ensemble, with a warning if members missed the target."""
    if made.missed():
        warnings.warn(made.missed(), stacklevel=3)
    return made


def _say(progress: Callable[[str], None], name: str, epoch: Epoch) -> None:
    progress(f"member {name}: {epoch}")


def _trained(problem: Problem, finish: Train, one: Beginning, key: PRNGKeyArray) -> Member:
    # A key of its name: it does not matter when its turn comes.
    end = finish(problem, one.x, jax.random.fold_in(key, crc32(one.name.encode())))
    assert end.history is not None
    num_examples = problem.num_examples
    rows = getattr(finish.batches, "size", num_examples)
    # A gradient of each row in each step; the losses of all examples, and their last gradient.
    work = float(int(end.num_steps) * rows + num_examples * (VALUE * end.cost.values + 1))
    return Member(
        name=one.name,
        x=np.asarray(end.x),
        loss=float(end.loss),
        is_at_target=finish.target is None or float(end.loss) <= finish.target,
        history=end.history,
        cost=one.cost + end.cost,
        work=one.work + work,
        how=one.how,
    )


def farthest_first(distances: Float[np.ndarray, "n n"]) -> list[int]:
    """All rows, the first one first, then always the one whose nearest chosen one is farthest.

    >>> farthest_first(np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]]))
    [0, 2, 1]
    """
    chosen, left = [0], list(range(1, len(distances)))
    while left:
        nearest = distances[np.ix_(left, chosen)].min(axis=1)
        chosen.append(left.pop(int(np.argmax(nearest))))
    return chosen


def predict(problem: Problem, apply: Apply, xs: Array, inputs: Array | np.ndarray) -> Probabilities:
    """The probabilities of each class, by each member, for each input."""
    parts = [
        np.asarray(_softmax(problem, apply, xs, jnp.asarray(inputs[begin : begin + CHUNK])), float)
        for begin in range(0, len(inputs), CHUNK)
    ]
    return np.concatenate(parts, axis=1)


@eqx.filter_jit
def _softmax(problem: Problem, apply: Apply, xs: Array, inputs: Array) -> Array:
    return jax.lax.map(lambda x: jax.nn.softmax(apply(problem.unravel(x), inputs)), xs)


def _classes(problem: Problem, apply: Apply) -> int:
    """How many classes there are; raises unless `apply` returns logits, and labels are classes."""
    if not problem.args:
        raise ValueError(
            "`problem` must have its inputs as its first argument, but it has no data."
        )
    inputs, *rest = problem.args
    out = eqx.filter_eval_shape(apply, problem.start, inputs)
    shape = getattr(out, "shape", type(out).__name__)
    if isinstance(shape, str) or shape[:1] != (len(inputs),) or len(shape) != 2 or shape[1] < 2:
        raise ValueError(
            f"`apply` must return logits of shape ({len(inputs)}, classes), a row for each input, "
            f"not {shape}."
        )
    labels = np.asarray(rest[0]) if rest else np.zeros(())
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        check_labels("`labels`", labels, len(labels), shape[1])
    return int(shape[1])
