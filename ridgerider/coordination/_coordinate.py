"""Algorithm 3: ride in many runs, and deploy what plays best with strangers."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray, PyTree

from ridgerider._check import check_count
from ridgerider._core.descend.finish import Descend, Finish
from ridgerider._core.points.find_saddle import Saddle, find_saddle
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Vector
from ridgerider._core.ride.rider import Rider
from ridgerider._core.ride.update import Project
from ridgerider._core.spectra.spectrum import Cluster, DenseSpectrum
from ridgerider._search.engine.rides import branch_key, look, ride_batch
from ridgerider._search.tree.settings import Settings
from ridgerider._search.tree.tree import Fingerprint, Leg, Turn, hashed
from ridgerider.coordination._game import (
    Game,
    NegativeEntropy,
    check_game,
    check_num_runs,
    cross_play,
    game_problem,
    with_strangers,
)
from ridgerider.coordination._symmetry import SymmetryReport, symmetry_report

# Saddles are found to rounding, so tied eigenvalues differ by less than this, in single precision.
CLUSTER_TOLERANCE = 3e-5
# Two ways whose self-play differs by less, relatively, are images of each other.
TIE = 1e-6
# Moves a policy off a symmetry axis before it is polished, so that rounding does not choose the
# side for all runs alike.
TREMBLE = 1e-6

# Gradient descent with a step well below 1 / curvature stays in the valley that the ride ended in.
GENTLE = Descend(jax.tree_util.Partial(optax.sgd, 0.3), max_steps=5000)
RIDER = Rider(
    spectrum=DenseSpectrum(gauge="random", cluster_tolerance=CLUSTER_TOLERANCE),
    update=Project(CLUSTER_TOLERANCE),
    finish=GENTLE,
)

_RIDGE = re.compile(r"\d+(\.\d+)?")
Ridges = tuple[tuple[int, int], ...]  # (index, member) of each ridge of a fingerprint


@dataclass(frozen=True)
class Candidate:
    """A fingerprint, and how the policies that independent runs find for it play together.

    - `fingerprint`: the ridges, e.g. `0` or `3.2 1`, without signs: each run takes the best.
    - `cross_play`: averaged over all pairs of runs, a run with itself included, as in the paper.
    - `with_strangers`: the same over different runs; what a stranger can expect.
    - `multiplicity`: of the eigenvalue; the largest, if several ridges are ridden.
    - `confidence`: how surely the same index is the same ridge in another run, gap / (gap +
      spread): the gap to the nearest other eigenvalue against the spread of this one over runs. 0
      for a member of a repeated eigenvalue.
    - `sign_confidence`: the same for the way along it: how much worse the other way is in
      self-play, against the spread of self-play. 0 if the two are images of each other.
    - `ridden`: the path that each run took, signs included.
    - `policies`: the parameters, with a leading axis of runs.

    >>> from ridgerider.problems import Levers
    >>> best = coordinate(Levers((1.0, 1.0, 1.0, 0.8)), num_runs=4).best
    >>> best.fingerprint, best.multiplicity, round(best.confidence, 3), round(best.cross_play, 3)
    ('0', 1, 1.0, 0.8)
    """

    fingerprint: str
    cross_play: float
    with_strangers: float
    self_play: float
    multiplicity: int
    confidence: float
    sign_confidence: float
    ridden: tuple[Fingerprint, ...]
    policies: PyTree


@dataclass(frozen=True)
class Coordination:
    """What `coordinate` found.

    - `candidates`: one for each fingerprint that all runs could ride, in their order.
    - `best`: the one that plays best with strangers, and `params`: its policy from the first run,
      to be deployed.
    - `scores`: the cross-play of every combination of runs; axis k is the run that player k comes
      from, the last axis the candidate.
    - `saddles`: where the runs set out from. `symmetry`: what the first one's spectrum says.
    - `num_dropped`: fingerprints that some runs could ride and others could not.

    >>> from ridgerider.problems import Levers
    >>> print(coordinate(Levers((1.0, 1.0, 0.8)), num_runs=3, seed=1))
    fingerprint  multiplicity  confidence  self-play  cross-play
    0            1             1.000       0.800      0.800
    1            1             1.000       1.000      0.556
    """

    candidates: tuple[Candidate, ...]
    scores: np.ndarray
    saddles: tuple[Saddle, ...]
    symmetry: SymmetryReport
    num_dropped: int
    cost: Cost

    @property
    def best(self) -> Candidate:
        return max(self.candidates, key=lambda one: one.with_strangers)

    @property
    def params(self) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], self.best.policies)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("fingerprint", "multiplicity", "confidence", "self-play", "cross-play")
        ]
        for one in self.candidates:
            numbers = (one.confidence, one.self_play, one.cross_play)
            rows.append((one.fingerprint, str(one.multiplicity), *(f"{n:.3f}" for n in numbers)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def coordinate(
    game: Game,
    num_runs: int = 25,
    *,
    max_depth: int | None = None,
    fingerprints: Sequence[str] | None = None,
    max_ridges: int | None = None,
    members: Literal["one", "all"] = "one",
    rider: Rider = RIDER,
    noise: float = 0.01,
    weight: float = 1e-2,
    max_saddle_steps: int = 100,
    require_saddle: bool = True,
    seed: int = 0,
) -> Coordination:
    """Find a policy to play with a stranger who runs the same method.

    **Arguments**

    - `game`: see `Game`; `ridgerider.problems.Levers` is one.
    - `max_depth`: ride every fingerprint of up to this many ridges. Default: 1.
    - `fingerprints`: or only these, such as `["0", "0 1", "3.2"]`: indices of ridges, most negative
      first, with `.member` inside a repeated eigenvalue.
    - `max_ridges`: at each point only this many of the most negative eigenvalues.
    - `members`: of a repeated eigenvalue ride "one" member or "all": they are as good as each
      other.
    - `rider`: its `finish` polishes the policies once the way is chosen. Give `spectrum` the gauge
      "random", or runs are not independent.
    - `noise`, `weight`, `max_saddle_steps`: of `find_saddle`, towards high entropy.
    - `require_saddle`: False rides from wherever the search for the saddle ends, and promises
      nothing.

    >>> from ridgerider.problems import Levers
    >>> result = coordinate(Levers((1.0, 1.0, 1.0, 0.8)), num_runs=4)
    >>> jax.nn.softmax(result.params[0]).round(2).tolist()
    [0.0, 0.0, 0.0, 1.0]
    >>> result.symmetry.unique, [group.multiplicity for group in result.symmetry.groups]
    ((0,), [2])
    """
    wanted = _wanted(fingerprints, max_depth)
    depth = max(map(len, wanted)) if wanted is not None else max_depth or 1
    if wanted is not None and any(member for ridges in wanted for _, member in ridges):
        members = "all"
    check_num_runs(num_runs, game)
    check_game(game)
    problem, regularizer = game_problem(game), NegativeEntropy(game)
    runs = []
    for run in range(num_runs):
        own = Settings(
            seed=_run_seed(seed, run),
            members="rows" if members == "all" else "one",
            max_ridges=max_ridges,
            go_on="end",
        )
        saddle = find_saddle(
            problem,
            regularizer,
            weight=weight,
            noise=noise,
            num_starts=1,
            max_steps=max_saddle_steps,
            seed=own.seed,
        )
        if require_saddle:
            _check_saddle(saddle, run)
        runs.append(_Run.ride(problem, rider, own, saddle, wanted, depth))
    return _compare(game, problem, rider, runs, wanted)


@dataclass(frozen=True)
class _End:
    """A leg, and the clusters it chose from, ridge by ridge."""

    leg: Leg
    clusters: tuple[Cluster, ...]


@dataclass(frozen=True)
class _Run:
    """One run: the ends of all ways to ride each fingerprint."""

    settings: Settings
    saddle: Saddle
    ends: dict[Ridges, list[_End]]

    @staticmethod
    def ride(
        problem: Problem,
        rider: Rider,
        settings: Settings,
        saddle: Saddle,
        wanted: list[Ridges] | None,
        depth: int,
    ) -> "_Run":
        here, unpolished = problem.with_start(saddle.params), replace(rider, finish=None)
        ends: dict[Ridges, list[_End]] = {(): [_End(look(here, unpolished, settings), ())]}
        for num_ridden in range(depth):
            for ridges in [one for one in ends if len(one) == num_ridden]:
                for end in ends[ridges]:
                    for turn in end.leg.turns:
                        longer = (*ridges, turn)
                        if wanted is None or any(one[: len(longer)] == longer for one in wanted):
                            ridden = _both_ways(here, unpolished, settings, end, turn)
                            ends.setdefault(longer, []).extend(ridden)
        return _Run(settings, saddle, ends)

    def choose(self, ridges: Ridges) -> tuple[_End, float]:
        """The way with the best self-play, and by how much; 0 if it is a matter of symmetry."""
        ways = sorted(self.ends[ridges], key=lambda end: end.leg.loss)
        best = ways[0].leg.loss
        tied = [end for end in ways if end.leg.loss - best <= TIE * abs(best)]
        chosen = min(tied, key=lambda end: hashed("way", self.settings.seed, end.leg.fingerprint))
        if len(tied) > 1:
            return chosen, 0.0
        return chosen, (ways[1].leg.loss - best if len(ways) > 1 else float("inf"))


def _both_ways(
    problem: Problem, rider: Rider, settings: Settings, end: _End, turn: tuple[int, int]
) -> list[_End]:
    branches = [end.leg.branch(Turn(turn[0], sign, turn[1])) for sign in (1, -1)]
    clusters = (*end.clusters, end.leg.clusters[turn[0]])
    return [_End(leg, clusters) for leg in ride_batch(problem, rider, settings, branches)]


def _compare(
    game: Game, problem: Problem, rider: Rider, runs: list[_Run], wanted: list[Ridges] | None
) -> Coordination:
    """Let all runs play with each other, fingerprint by fingerprint."""
    known = set().union(*(run.ends for run in runs)) - {()}
    shared = [ridges for ridges in known if all(ridges in run.ends for run in runs)]
    asked = [ridges for ridges in sorted(shared) if wanted is None or ridges in wanted]
    if not asked:
        raise ValueError(
            "`fingerprints` must hold one that all runs can ride, but there are only "
            f"{', '.join(map(_name, sorted(shared))) or 'none'}."
        )
    candidates, scores, cost = [], [], Cost()
    for ridges in asked:
        chosen = [run.choose(ridges) for run in runs]
        policies, spent = _polished(problem, rider, runs, [end for end, _ in chosen])
        scores.append(np.asarray(cross_play(game, policies)))
        candidates.append(_candidate(ridges, chosen, policies, scores[-1]))
        cost = cost + spent
    for run in runs:
        cost = sum((end.leg.cost for ends in run.ends.values() for end in ends), cost)
        cost = cost + run.saddle.cost
    first = problem.with_start(runs[0].saddle.params)
    reversible = {ridges[0][0] for ridges in asked if runs[0].choose(ridges[:1])[1] == 0}
    return Coordination(
        candidates=tuple(candidates),
        scores=np.stack(scores, axis=-1),
        saddles=tuple(run.saddle for run in runs),
        symmetry=symmetry_report(first, rider.spectrum, reversible),
        num_dropped=len(known) - len(shared),
        cost=cost,
    )


def _polished(
    problem: Problem, rider: Rider, runs: list[_Run], ends: list[_End]
) -> tuple[PyTree, Cost]:
    xs, cost = [], Cost()
    for run, end in zip(runs, ends, strict=True):
        x = jnp.asarray(end.leg.x)
        if rider.finish is not None:
            finish = _polish(problem, rider, x, branch_key(run.settings.seed, end.leg.fingerprint))
            x, cost = finish.x, cost + jax.device_get(finish.cost)
        xs.append(x)
    return jax.vmap(problem.unravel)(jnp.stack(xs)), cost


@eqx.filter_jit
def _polish(problem: Problem, rider: Rider, x: Vector, key: PRNGKeyArray) -> Finish:
    assert rider.finish is not None
    x = x + TREMBLE * jax.random.normal(key, x.shape, x.dtype)
    return rider.finish(problem, x, key, rider.spectrum)


def _candidate(
    ridges: Ridges, chosen: list[tuple[_End, float]], policies: PyTree, scores: np.ndarray
) -> Candidate:
    ends, margins = zip(*chosen, strict=True)
    alone = np.array([scores[(run,) * scores.ndim] for run in range(len(scores))])
    before = [end.leg.loss for end in ends]
    return Candidate(
        fingerprint=_name(ridges),
        cross_play=float(scores.mean()),
        with_strangers=with_strangers(scores),
        self_play=float(alone.mean()),
        multiplicity=max(cluster.multiplicity for end in ends for cluster in end.clusters),
        confidence=min(
            _index_confidence(column)
            for column in zip(*(end.clusters for end in ends), strict=True)
        ),
        sign_confidence=_ratio(min(margins), float(np.ptp(before))),
        ridden=tuple(end.leg.fingerprint for end in ends),
        policies=policies,
    )


def _index_confidence(clusters: Iterable[Cluster]) -> float:
    clusters = tuple(clusters)
    if any(cluster.multiplicity > 1 for cluster in clusters):
        return 0.0
    spread = float(np.ptp([cluster.eigenvalue for cluster in clusters]))
    return _ratio(min(cluster.gap for cluster in clusters), spread)


def _ratio(gap: float, spread: float) -> float:
    return 1.0 if np.isinf(gap) else gap / (gap + spread) if gap > 0 else 0.0


def _run_seed(seed: int, run: int) -> int:
    return int(np.random.SeedSequence([seed, run]).generate_state(1, np.uint64)[0] >> 1)


def _check_saddle(saddle: Saddle, run: int) -> None:
    if saddle.is_strict:
        return
    raise ValueError(
        "`game` must have a saddle near its `start`, where the gradient of self-play vanishes and "
        f"some curvature leads up, but run {run} found none. {saddle.reason}"
    )


def _wanted(fingerprints: Sequence[str] | None, max_depth: int | None) -> list[Ridges] | None:
    if max_depth is not None:
        check_count("max_depth", max_depth)
    if fingerprints is None:
        return None
    if max_depth is not None:
        raise ValueError(
            "`fingerprints` must not be given together with `max_depth`, which means all of them."
        )
    words = [] if isinstance(fingerprints, str) else [str(one).split() for one in fingerprints]
    if not words or not all(one and all(map(_RIDGE.fullmatch, one)) for one in words):
        raise ValueError(
            f"`fingerprints` must be a list such as ['0', '0 1', '3.2'], not {fingerprints!r}."
        )
    turns = [[Turn.parse(f"{word}+") for word in one] for one in words]
    return [tuple((turn.index, turn.member) for turn in one) for one in turns]


def _name(ridges: Ridges) -> str:
    return " ".join(str(Turn(index, 1, member))[:-1] for index, member in ridges)
