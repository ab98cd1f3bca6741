"""The built-in games: what strangers earn, against self-play, Other-Play and the optimum.

    ridgerider reproduce games

The optimum is that of any policies, by enumeration. A symmetric convention can earn less where the
optimum must choose between equals: of levers, what the best one without an equal pays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgerider import coordination
from ridgerider.problems.levers import ORIGINAL, PAPER, Levers
from ridgerider_experiments.runner import Base, Job, Runner, sized
from ridgerider_experiments.show import markdown

# By name: the game, and what a symmetric convention can earn at best (None: the optimum).
GAMES: dict[str, tuple[Callable[[], Any], float | None]] = {
    "levers of the paper": (lambda: Levers(PAPER), 0.6),
    "nine levers and one": (lambda: Levers(ORIGINAL), 0.9),
    "signalling": (coordination.signalling, None),
    "cards": (coordination.card_game, None),
    "Hanabi": (coordination.hanabi, None),
}


@dataclass(frozen=True)
class Settings(Base):
    num_runs: int = sized(25, quick=2)
    names: tuple[str, ...] = sized(tuple(GAMES), quick=("signalling",))


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    jobs = [settings.job("names", name=name) for name in settings.names]
    return {"games": dict(zip(settings.names, runner(work, jobs), strict=True))}


def work(job: Job) -> dict[str, Any]:
    make, convention = GAMES[job["name"]]
    game, how = make(), {"num_runs": job["num_runs"], "seed": job["seed"]}
    is_known = hasattr(game, "symmetries")
    optimum = max(game.payoffs.tolist()) if is_known else game.optimum()
    result = coordination.coordinate(game, **how)
    told = coordination.other_play(game, game.symmetries(), **how) if is_known else None
    best = result.best
    return {
        "optimum": optimum,
        "convention": optimum if convention is None else convention,
        "ridge": best.fingerprint,
        **{part: getattr(best, part) for part in ("with_strangers", "standard_error", "self_play")},
        "bonus": result.bonus,
        "alone": coordination.play_alone(game, **how).with_strangers,
        "other_play": None if told is None else told.with_strangers,
    }


def table(results: dict[str, Any]) -> str:
    rows = []
    for name, one in results["games"].items():
        told = "-" if one["other_play"] is None else f"{one['other_play']:.3f}"
        numbers = ("self_play", "with_strangers", "convention", "optimum", "alone")
        rows.append([name, one["ridge"], *(f"{one[number]:.3f}" for number in numbers), told])
    head = ["game", "ridge", "self-play", "with strangers", "best symmetric convention"]
    return markdown([*head, "optimum", "strangers after self-play", "Other-Play"], rows)
