"""Beyond the paper: players and features, what its text suggests and does not test.

    ridgerider reproduce players

One weight in and one out for each feature, and all of them zero at the start:

    logit = sum_j out_j tanh(in_j feature_j),   eigenvalues there: +- |mean (label - 1/2) feature_j|

So every ridge is one feature, the most predictive one first, and a fingerprint names a feature.

- Environments as a game: two players own one environment of coloured digits each, and agree on the
  start and on a fingerprint only. Features are the principal components of images without labels
  whose colour is random. Cross-play is the accuracy of a player's network on the other's images.
- Shape against texture: tall or wide boxes, filled with one of two fine patterns, as coefficients
  of the cosine transform, the 40 that vary most. Both say the label, the texture always and the
  shape nearly always. Whom a network follows is asked on images where they disagree.
- Follow-the-Ridge (Wang et al. 2019), the other method with this name, on two-player zero-sum games
  min_x max_y f(x, y): the share of starts that come to the local minimax point at the origin, or,
  where the origin is none, that stay away from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import fft, stats

import ridgerider as rr
from ridgerider.problems.colored import colored_digits, colored_mnist
from ridgerider_experiments.runner import Base, Runner, accuracy_interval, sized
from ridgerider_experiments.show import descent_paths, markdown

# A public environment without labels to be used, then one for each player.
GAMES = {"the paper's environments": (0.5, 0.2, 0.1), "opposed colours": (0.5, 0.2, 0.8)}
RIDER = rr.Rider(
    step=rr.FixedStep(0.25),
    stop=(rr.curvature_gone, rr.RidgeLost(), rr.not_finite),
    finish=None,
    max_steps=12,
)


@dataclass(frozen=True)
class Settings(Base):
    data: str = sized("mnist", quick="digits")
    num_seeds: int = sized(5, quick=2)
    num_features: int = sized(20, quick=10)  # of the players
    num_images: int = sized(2000, quick=400)  # with shape and texture; half of them in conflict
    shape_says: float = 0.9  # how often the shape is that of the label
    num_starts: int = 100  # in each two-player game


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    seeds = range(settings.seed, settings.seed + settings.num_seeds)
    games = {
        name: summary([play(settings, rates, seed) for seed in seeds])
        for name, rates in GAMES.items()
    }
    textures = [shape_or_texture(settings, seed) for seed in seeds]
    return {
        "games": games,
        "textures": {name: [one[name] for one in textures] for name in textures[0]},
        "minimax": {name: minimax(settings, *game) for name, game in MINIMAX.items()},
    }


# --- one ridge for each feature


def logits(params: dict[str, Array], features: Float[Array, "k m"]) -> Float[Array, " k"]:
    return jnp.tanh(features * params["in"][None]) @ params["out"]


def loss(params: dict[str, Array], features: Float[Array, "k m"], labels: Array) -> Array:
    z = logits(params, features)
    return jnp.mean(jax.nn.softplus(z) - labels * z)


def problem_of(features: np.ndarray, labels: np.ndarray) -> rr.Problem:
    zero = jnp.zeros(features.shape[1])
    start = {"in": zero, "out": zero}
    return rr.Problem(loss, start, jnp.asarray(features), jnp.asarray(labels, float))


def rides(problem: rr.Problem, count: int) -> list[dict[str, Array]]:
    """The network at the end of each of the first ridges; both signs are the same network."""
    key = jax.random.key(0)
    spectrum = RIDER.spectrum_at(problem, problem.x0, key)
    ends = [_ride(problem, problem.x0, spectrum.ridge(k), key).x for k in range(count)]
    return [problem.unravel(x) for x in ends]


_ride = eqx.filter_jit(RIDER.ride)


def accuracy(params: dict[str, Array], features: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean((np.asarray(logits(params, jnp.asarray(features))) > 0) == (labels > 0)))


# --- environments as a game


def play(settings: Settings, rates: tuple[float, ...], seed: int) -> dict[str, list[float]]:
    """For each fingerprint: cross-play and the test accuracy of the two players."""
    colored = {"digits": colored_digits, "mnist": colored_mnist}[settings.data](
        seed, flip_rates=rates
    )
    (public, _), *own = ((one.images[:5000], one.labels[:5000]) for one in colored.train)
    public, count = public.reshape(len(public), -1), settings.num_features
    center = public.mean(axis=0)
    _, sizes, rows = np.linalg.svd(public - center, full_matrices=False)
    whiten = np.sqrt(len(public)) * rows[:count].T / sizes[:count]

    def seen(images: np.ndarray) -> np.ndarray:
        return (images.reshape(len(images), -1) - center) @ whiten

    networks = [rides(problem_of(seen(x), y), count) for x, y in own]
    first, second = ((seen(one.images), one.labels) for one in colored.validation[1:])
    test = colored.load_test()
    tested = seen(test.images), test.labels
    pairs = list(zip(*networks, strict=True))
    return {
        "cross_play": [(accuracy(a, *second) + accuracy(b, *first)) / 2 for a, b in pairs],
        "test": [(accuracy(a, *tested) + accuracy(b, *tested)) / 2 for a, b in pairs],
    }


def summary(played: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Whether cross-play predicts the test: rank correlation, and what it would deploy."""
    ranks = [stats.spearmanr(one["cross_play"], one["test"]).statistic for one in played]
    best = [int(np.argmax(one["cross_play"])) for one in played]
    both = list(zip(played, best, strict=True))
    return {
        "correlation": float(np.mean(ranks)),
        "deployed": best,
        "cross_play": accuracy_interval(one["cross_play"][k] for one, k in both),
        "test": accuracy_interval(one["test"][k] for one, k in both),
        "best_test": accuracy_interval(max(one["test"]) for one in played),
    }


# --- shape against texture

SIDE = 12


def boxes(labels: np.ndarray, textures: np.ndarray, seed: int) -> Float[np.ndarray, "k m"]:
    """Tall (label 0) or wide boxes with columns (texture 0) or rows of one pixel, transformed."""
    random, images = np.random.default_rng(seed), np.zeros((len(labels), SIDE, SIDE))
    for image, wide, rows in zip(images, labels, textures, strict=True):
        height, width = (6, 10) if wide else (10, 6)
        top, left = random.integers(SIDE - height + 1), random.integers(SIDE - width + 1)
        box = np.indices((SIDE, SIDE))
        image[top : top + height, left : left + width] = 1.0
        image *= 1 + 0.8 * (-1.0) ** box[0 if rows else 1]
    images += 0.3 * random.normal(size=images.shape)
    return fft.dctn(images, axes=(1, 2), norm="ortho").reshape(len(images), -1)


def shape_or_texture(settings: Settings, seed: int) -> dict[str, Any]:
    """Whom the networks at the ends of the first ridges follow, and that of a plain descent."""
    random, count = np.random.default_rng([seed, 1]), settings.num_images // 2
    labels = random.integers(2, size=count)
    shapes = np.where(random.random(count) < settings.shape_says, labels, 1 - labels)
    train = boxes(shapes, labels, seed)
    center, size = train.mean(axis=0), train.std(axis=0)
    kept = np.argsort(-size)[:40]
    conflict = ((boxes(shapes, 1 - shapes, seed + 1000) - center) / size)[:, kept]
    problem = problem_of(((train - center) / size)[:, kept], labels)
    networks = rides(problem, 20)
    start = problem.x0 + 1e-3 * jnp.asarray(random.normal(size=problem.size))
    descent = descent_paths(problem, start[None], 0.5, 500)[0, -1]
    by_shape = np.array([accuracy(net, conflict, shapes) for net in networks])
    return {
        "gradient descent, decided by shape": accuracy(
            problem.unravel(jnp.asarray(descent)), conflict, shapes
        ),
        "first ridge, decided by shape": float(by_shape[0]),
        "ridge that follows the shape most, decided by shape": float(by_shape.max()),
        "index of the first ridge above three quarters": int(np.argmax(by_shape > 0.75)),
        "of the first 20 ridges above three quarters": int(np.sum(by_shape > 0.75)),
        "of the first 20 ridges below a quarter": int(np.sum(by_shape < 0.25)),
    }


# --- Follow-the-Ridge

# f(x, y), and whether the origin is a local minimax point of it.
MINIMAX: dict[str, tuple[Callable[[Array, Array], Array], bool]] = {
    "-3 x^2 - y^2 + 4 x y": (lambda x, y: -3 * x**2 - y**2 + 4 * x * y, True),
    "3 x^2 + y^2 + 4 x y": (lambda x, y: 3 * x**2 + y**2 + 4 * x * y, False),
    "(4 x^2 - (y - 3 x + x^3 / 20)^2 - y^4 / 10) exp(-(x^2 + y^2) / 100)": (
        lambda x, y: (
            (4 * x**2 - (y - 3 * x + x**3 / 20) ** 2 - y**4 / 10) * jnp.exp(-(x**2 + y**2) / 100)
        ),
        True,
    ),
}


def minimax(settings: Settings, f: Callable[[Array, Array], Array], is_there: bool) -> Any:
    """The share of starts for which a method is right, after 2,000 steps of 0.05."""
    slope_x, slope_y = jax.grad(f, 0), jax.grad(f, 1)
    curve, mixed = jax.grad(slope_y, 1), jax.grad(slope_y, 0)
    starts = jnp.asarray(np.random.default_rng(settings.seed).normal(size=(settings.num_starts, 2)))

    def share(weight: float) -> float:
        def step(_: int, point: Array) -> Array:
            x, y = point
            # The follower's correction: it moves along its ridge as the leader moves.
            ridge = weight * mixed(x, y) / curve(x, y) * slope_x(x, y)
            return point + 0.05 * jnp.stack([-slope_x(x, y), slope_y(x, y) + ridge])

        ends = jax.vmap(lambda start: jax.lax.fori_loop(0, 2000, step, start))(starts)
        return float(jnp.mean((jnp.linalg.norm(ends, axis=1) < 1e-3) == is_there))

    return {"descent_ascent": share(0.0), "follow_the_ridge": share(1.0)}


def table(results: dict[str, Any]) -> str:
    games = [
        [name, f"{of['correlation']:+.2f}", ", ".join(map(str, of["deployed"]))]
        + [
            "{mean:.3f} ({low:.3f}-{high:.3f})".format(**of[part])
            for part in ("cross_play", "test", "best_test")
        ]
        for name, of in results["games"].items()
    ]
    head = ["game", "rank correlation of cross-play with test accuracy", "ridges deployed"]
    head += ["their cross-play", "their test accuracy", "test accuracy of the best ridge"]
    textures = [
        [name, ", ".join(f"{one:.3g}" for one in of)] for name, of in results["textures"].items()
    ]
    minimax = [
        [f"`{name}`", *(f"{100 * share:.0f}" for share in of.values())]
        for name, of in results["minimax"].items()
    ]
    tables = (
        markdown(head, games),
        markdown(["images whose shape and texture disagree", "each seed"], textures),
        markdown(["right for (% of starts)", "descent-ascent", "Follow-the-Ridge"], minimax),
    )
    return "\n".join(tables)
