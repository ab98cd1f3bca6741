"""Branches that a symmetry makes equal, before they are ridden."""

import numpy as np

from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.problem import Problem
from ridgerider._search.engine.climbs import ALIKE
from ridgerider._search.same.classes import Classes
from ridgerider._search.same.symmetry import signatures
from ridgerider._search.tree.tree import Branch, Fingerprint, Leg

STEP = 0.1  # branches are compared a step along them


def distinct(
    problem: Problem, symmetry: Symmetry | None, leg: Leg, branches: list[Branch]
) -> list[Branch]:
    """Of the branches that leave one leg and lead to copies of one another, the first."""
    if symmetry is None or symmetry.signature is None or not branches:
        return branches
    whole = [leg.branch(branch.fingerprint[-1]) for branch in branches]
    points = np.stack([np.asarray(one.x) + STEP * np.asarray(one.direction) for one in whole])
    classes = Classes[Fingerprint]()
    for branch, mark in zip(branches, signatures(problem, symmetry, points), strict=True):
        classes.add(branch.fingerprint, mark, ALIKE * max(1.0, float(np.linalg.norm(mark))) / 2)
    first = set(classes.names)
    return [branch for branch in branches if branch.fingerprint in first]


class Marks:
    """What points are compared by: their signatures, or the points themselves."""

    def __init__(self, problem: Problem, symmetry: Symmetry | None):
        self._problem, self._symmetry = problem, symmetry

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self._symmetry is None or self._symmetry.signature is None:
            return x
        return signatures(self._problem, self._symmetry, x[None])[0]
