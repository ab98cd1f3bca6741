"""Branches that a symmetry makes equal, before they are ridden."""

import numpy as np

from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.problem import Problem
from ridgerider._search.same.classes import Classes
from ridgerider._search.same.points import ALIKE, STEP, reach_of
from ridgerider._search.same.symmetry import has_signature, signatures
from ridgerider._search.tree.tree import Branch, Fingerprint


def distinct(problem: Problem, symmetry: Symmetry | None, branches: list[Branch]) -> list[Branch]:
    """Of the branches that leave one leg and lead to copies of one another, the first."""
    if symmetry is None or not has_signature(symmetry) or not branches:
        return branches
    step = STEP * float(problem.unit)
    points = np.stack([np.asarray(one.x) + step * np.asarray(one.direction) for one in branches])
    classes = Classes[Fingerprint]()
    for branch, mark in zip(branches, signatures(problem, symmetry, points), strict=True):
        classes.add(branch.fingerprint, mark, reach_of(mark, ALIKE))
    first = set(classes.names)
    return [branch for branch in branches if branch.fingerprint in first]
