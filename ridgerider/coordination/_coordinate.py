"""Algorithm 3: ride in many runs, and deploy what plays best with strangers."""

import itertools
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from ridgerider._check import Count, Seed, checked
from ridgerider._core.descend.finish import Descend
from ridgerider._core.points.find_saddle import Saddle
from ridgerider._core.problem.cost import Cost
from ridgerider._core.ride.rider import Rider
from ridgerider._core.ride.update import Project
from ridgerider._core.spectra.spectrum import Cluster, DenseSpectrum
from ridgerider._search.engine.rides import branch_key
from ridgerider._search.engine.run import search
from ridgerider._search.results.export import aligned
from ridgerider._search.tree import Fingerprint, Leg, Turn, hashed
from ridgerider.coordination._game import (
    Baseline,
    Game,
    check_game,
    cross_play,
    game_problem,
    means,
)
from ridgerider.coordination._saddles import common_saddles
from ridgerider.coordination._symmetry import SymmetryReport, symmetry_report

# Saddles are found to rounding, so tied eigenvalues differ by less than this, in single precision.
CLUSTER_TOLERANCE = 3e-5
# Of the entropy bonus, if there is one: what policies are polished with, one after the other.
ANNEALING = (0.5, 0.25, 0.125, 0.0625, 0.0)
# Two paths whose self-play differs by less, relatively, are images of each other.
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

Unsigned = tuple[tuple[int, int], ...]  # a fingerprint without signs: (index, member) of each ridge


@dataclass(frozen=True)
class Candidate(Baseline):
    """A fingerprint, and how the policies that independent runs find for it play together.

    - `fingerprint`: the ridges, e.g. `0` or `3.2 1`, without signs: each run takes the way with the
      best self-play at its end. Where the rides had a bonus for entropy, `0, other way` takes the
      one with the worst. `none`: a bonus for entropy led all runs to the same policy, and there
      was no ridge to choose.
    - `multiplicity`: of the eigenvalue; the largest, if several ridges are ridden.
    - `confidence`: how surely the same index is the same ridge in another run, gap / (gap +
      spread): the gap to the nearest other eigenvalue against the spread of this one over runs. 0
      for a member of a repeated eigenvalue.
    - `sign_confidence`: the same for the way along it: how much worse the other way is in
      self-play, against the spread of self-play. 0 if the two are images of each other.
    - `ridden`: the fingerprint that each run took, signs included.

    >>> from ridgerider.problems import Levers
    >>> best = coordinate(Levers((1.0, 1.0, 1.0, 0.8)), num_runs=4).best
    >>> best.fingerprint, best.multiplicity, round(best.confidence, 3), round(best.cross_play, 3)
    ('0', 1, 1.0, 0.8)
    """

    fingerprint: str
    multiplicity: int
    confidence: float
    sign_confidence: float
    ridden: tuple[Fingerprint, ...]


@dataclass(frozen=True)
class Coordination:
    """What `coordinate` found.

    - `candidates`: one for each fingerprint that all runs could ride, in their order.
    - `best`: the one that plays best with strangers, two standard errors below its mean, and
      `params`: its policy from the first run,
      to be deployed.
    - `saddles`: where the runs set out from. `symmetry`: what the first one's spectrum says.
    - `bonus`: for entropy, during the rides, where the game itself has no saddle inside; 0: none.

    >>> from ridgerider.problems import Levers
    >>> print(coordinate(Levers((1.0, 1.0, 0.8)), num_runs=3, seed=1))
    fingerprint  multiplicity  confidence  self-play  cross-play
    0            1             1.000       0.800      0.800
    1            1             1.000       1.000      0.556
    """

    candidates: tuple[Candidate, ...]
    saddles: tuple[Saddle, ...]
    symmetry: SymmetryReport
    cost: Cost
    bonus: float = 0.0

    @property
    def best(self) -> Candidate:
        return max(self.candidates, key=lambda one: one.with_strangers - 2 * one.standard_error)

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
        lines = [aligned(rows)]
        if self.bonus:
            lines.append(f"ridden with an entropy bonus of {self.bonus:.3g}, annealed to zero")
        return "\n".join(lines)


@checked
def coordinate(
    game: Game,
    num_runs: Count = 25,
    *,
    max_depth: Count = 1,
    max_ridges: Count | None = None,
    members: Literal["one", "all"] = "one",
    rider: Rider = RIDER,
    seed: Seed = 0,
) -> Coordination:
    """Find a policy to play with a stranger who runs the same method.

    **Arguments**

    - `game`: see `Game`; `ridgerider.problems.Levers` is one, and `coordination.PayoffGame` makes
      one from a payoff function. A game with no saddle inside gets a bonus for entropy, chosen
      alike for all runs, which is annealed to zero when policies are polished.
    - `max_depth`: ride every fingerprint of up to this many ridges.
    - `max_ridges`: at each point only this many of the most negative eigenvalues.
    - `members`: of a repeated eigenvalue ride "one" member of the run's random basis or "all" of
      them, which are as good as each other.
    - `rider`: its `finish` polishes the policies once the way is chosen. Give `spectrum` the gauge
      "random", or runs are not independent.

    >>> from ridgerider.problems import Levers
    >>> result = coordinate(Levers((1.0, 1.0, 1.0, 0.8)), num_runs=4)
    >>> jax.nn.softmax(result.params[0]).round(2).tolist()
    [0.0, 0.0, 0.0, 1.0]
    >>> result.symmetry.unique, [group.multiplicity for group in result.symmetry.groups]
    ((0,), [2])
    """
    check_game(game, num_runs)
    sequences = [np.random.SeedSequence([seed, number]) for number in range(num_runs)]
    seeds = [int(one.generate_state(1, np.uint64)[0] >> 1) for one in sequences]
    saddles, bonus, is_led = common_saddles(game, seeds)
    problem = game_problem(game, bonus)
    how: dict[str, Any] = {"members": members, "max_ridges": max_ridges, "max_depth": max_depth}
    how["max_rides"] = 0 if is_led else None
    runs, cost = [], sum((saddle.cost for saddle in saddles), Cost())
    for run_seed, saddle in zip(seeds, saddles, strict=True):
        here = problem.with_start(saddle.params)
        result = search(here, replace(rider, finish=None), seed=run_seed, **how)
        legs = {leg.fingerprint: leg for leg in (result.leg(""), *result)}
        runs.append(_Run(run_seed, legs))
        cost = sum((leg.cost for leg in legs.values()), cost)
    known = {
        tuple((turn.index, turn.member) for turn in name) for run in runs for name in run.legs
    } - {()}
    shared = [ridges for ridges in sorted(known) if all(run.paths(ridges) for run in runs)]
    if is_led:  # a bonus for entropy leads all runs to a policy, which becomes a saddle nowhere
        shared = [()]
    elif not shared:
        raise ValueError("`game` must have a ridge that all runs can ride, but there is none.")
    candidates = []
    # With a bonus the better way at the end of the ride may be the worse one without.
    ways = (True, False) if bonus and not is_led else (True,)
    for ridges, is_best in itertools.product(shared, ways):
        paths, margins = zip(*(run.choose(ridges, is_best) for run in runs), strict=True)
        policies, spent = _polished(game, bonus, rider, seeds, [path[-1] for path in paths])
        cost = cost + spent
        words = (f"{index}.{member}" if member else str(index) for index, member in ridges)
        name = (" ".join(words) or "none") + ("" if is_best else ", other way")
        # For each ridge the cluster it was taken from, in each run.
        clusters = [
            [path[depth].clusters[index] for path in paths]
            for depth, (index, _) in enumerate(ridges)
        ]
        scores = np.asarray(cross_play(game, policies))
        spread = float(np.ptp([path[-1].loss for path in paths]))
        one = Candidate(
            policies=policies,
            scores=scores,
            **means(scores),
            fingerprint=name,
            multiplicity=max((one.multiplicity for some in clusters for one in some), default=1),
            confidence=min(map(index_confidence, clusters), default=1.0),
            sign_confidence=_ratio(min(margins), spread),
            ridden=tuple(path[-1].fingerprint for path in paths),
        )
        candidates.append(one)
    first = problem.with_start(saddles[0].params)
    reversible = {
        ridges[0][0] for ridges in shared if ridges and runs[0].choose(ridges[:1])[1] == 0
    }
    symmetry = symmetry_report(first, rider.spectrum, reversible)
    return Coordination(tuple(candidates), tuple(saddles), symmetry, cost, bonus)


@dataclass(frozen=True)
class _Run:
    """One independent run: the legs that were ridden from its saddle."""

    seed: int
    legs: dict[Fingerprint, Leg]

    def paths(self, ridges: Unsigned) -> list[list[Leg]]:
        """All ways to ride these ridges: the legs from the saddle to the end, signs included."""
        paths = [[self.legs[Fingerprint()]]]
        for index, member in ridges:
            longer = []
            for path in paths:
                # A leg that reached the end of another one has its continuations there.
                here = path[-1].linked_to or path[-1].fingerprint
                names = [here.child(Turn(index, sign, member)) for sign in (1, -1)]
                longer += [[*path, self.legs[name]] for name in names if name in self.legs]
            paths = longer
        return paths

    def choose(self, ridges: Unsigned, is_best: bool = True) -> tuple[list[Leg], float]:
        """The path with the best self-play, and by how much; 0 if it is a matter of symmetry.

        Or the one with the worst, which is another name that needs no agreement.
        """
        sign = 1 if is_best else -1
        paths = sorted(self.paths(ridges), key=lambda path: sign * path[-1].loss)
        best = paths[0][-1].loss
        tied = [path for path in paths if sign * (path[-1].loss - best) <= TIE * abs(best)]
        if len(tied) > 1:
            by_key = {hashed("way", self.seed, path[-1].fingerprint): path for path in tied}
            return by_key[min(by_key)], 0.0
        return paths[0], (abs(paths[1][-1].loss - best) if len(paths) > 1 else float("inf"))


def _polished(
    game: Game, bonus: float, rider: Rider, seeds: list[int], ends: list[Leg]
) -> tuple[PyTree, Cost]:
    """The policies at the ends of rides, one for each run, descended without the bonus at last."""
    stages = [game_problem(game, part * bonus) for part in (ANNEALING if bonus else (0.0,))]
    xs, cost = [], Cost()
    for seed, end in zip(seeds, ends, strict=True):
        x, key = jnp.asarray(end.x), branch_key(seed, end.fingerprint)
        for stage in stages if rider.finish is not None else ():
            x = x + TREMBLE * jax.random.normal(key, x.shape, x.dtype)
            finish = rider.finish(stage, x, key, rider.spectrum)  # type: ignore[misc]
            x, cost = finish.x, cost + jax.device_get(finish.cost)
        xs.append(x)
    return jax.vmap(stages[0].unravel)(jnp.stack(xs)), cost


def index_confidence(clusters: list[Cluster]) -> float:
    """Of one ridge, from the cluster it was taken from in each run."""
    if any(cluster.multiplicity > 1 for cluster in clusters):
        return 0.0
    spread = float(np.ptp([cluster.eigenvalue for cluster in clusters]))
    return _ratio(min(cluster.gap for cluster in clusters), spread)


def _ratio(gap: float, spread: float) -> float:
    return 1.0 if np.isinf(gap) else gap / (gap + spread) if gap > 0 else 0.0
