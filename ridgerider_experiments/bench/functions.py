"""Functions on boxes: a catalogue with known global minima, and random ones from a seed.

The catalogue has smooth functions of the public collections of test functions for global
optimisation (those of SciPy's benchmarks) by formula, box and least value. Each line of `FORMULAS`
is a name, the number of coordinates, the box, the least value and the formula, in which `x` is the
vector, `a`, `b`, `c`, `d` are its first coordinates and `i` counts them from 1.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Vector = np.ndarray


@dataclass(frozen=True)
class Case:
    """A function on a box, with its least value where that is known."""

    name: str
    fun: Callable[[Vector], float]
    bounds: list[tuple[float, float]]
    least: float | None = None


FORMULAS = """
Problem02 | 1 | 2.7, 7.5 | -1.89959935 | sin(a) + sin(10*a/3)
Problem03 | 1 | -10, 10 | -12.03124944 | -waves(x, sin).sum()
Problem04 | 1 | 1.9, 3.9 | -3.85045071 | -(16*a**2 - 24*a + 5) * exp(-a)
Problem05 | 1 | 0, 1.2 | -1.48907254 | -(1.4 - 3*a) * sin(18*a)
Problem06 | 1 | -10, 10 | -0.82423940 | -(a + sin(a)) * exp(-a**2)
Problem07 | 1 | 2.7, 7.5 | -1.60130755 | sin(a) + sin(10*a/3) + log(a) - 0.84*a + 3
Problem08 | 1 | -10, 10 | -14.50800793 | -waves(x, cos).sum()
Problem09 | 1 | 3.1, 20.4 | -1.90596111 | sin(a) + sin(2*a/3)
Problem10 | 1 | 0, 10 | -7.91672737 | -a * sin(a)
Problem11 | 1 | -pi/2, 2*pi | -1.5 | 2*cos(a) + cos(2*a)
Problem12 | 1 | 0, 2*pi | -1 | sin(a)**3 + cos(a)**3
Problem14 | 1 | 0, 4 | -0.78868539 | -exp(-a) * sin(2*pi*a)
Problem15 | 1 | -5, 5 | -0.03553391 | (a**2 - 5*a + 6) / (a**2 + 1)
Problem20 | 1 | -10, 10 | -0.06349053 | -(a - sin(a)) * exp(-a**2)
Problem21 | 1 | 0, 10 | -9.50835040 | a*sin(a) + a*cos(2*a)
Problem22 | 1 | 0, 20 | -1 | exp(-3*a) - sin(a)**3
Ackley | 2 | -30, 30 | 0 | 20 + e - 20*exp(-0.2*sqrt(mean(x**2))) - exp(mean(cos(2*pi*x)))
Adjiman | 2 | -1, 2, -1, 1 | -2.02180678 | cos(a)*sin(b) - a / (b**2 + 1)
Alpine02 | 2 | 0, 10 | -6.12950389 | prod(sqrt(x) * sin(x))
Beale | 2 | -4.5, 4.5 | 0 | (1.5 - a + a*b)**2 + (2.25 - a + a*b**2)**2 + (2.625 - a + a*b**3)**2
BiggsExp04 | 4 | 0, 20 | 0 | sum((c*exp(-T*a) - d*exp(-T*b) - exp(-T) + 5*exp(-10*T))**2)
Bird | 2 | -2*pi, 2*pi | -106.76453675
    | (a - b)**2 + exp((1 - sin(a))**2) * cos(b) + exp((1 - cos(b))**2) * sin(a)
Bohachevsky1 | 2 | -15, 15 | 0 | a**2 + 2*b**2 - 0.3*cos(3*pi*a) - 0.4*cos(4*pi*b) + 0.7
Branin01 | 2 | -5, 10, 0, 15 | 0.39788736
    | (b - 1.275*(a/pi)**2 + 5*a/pi - 6)**2 + 10*(1 - 1/(8*pi))*cos(a) + 10
Brent | 2 | -10, 10 | 0 | (a + 10)**2 + (b + 10)**2 + exp(-a**2 - b**2)
CamelSix | 2 | -5, 5 | -1.03162845 | (4 - 2.1*a**2 + a**4/3)*a**2 + a*b + 4*(b**2 - 1)*b**2
CamelThree | 2 | -5, 5 | 0 | 2*a**2 - 1.05*a**4 + a**6/6 + a*b + b**2
Chichinadze | 2 | -30, 30 | -42.94438702
    | a**2 - 12*a + 11 + 10*cos(pi*a/2) + 8*sin(2.5*pi*a) - exp(-(b - 0.5)**2 / 2) / sqrt(5)
CosineMixture | 3 | -1, 1 | -2.7 | -sum(0.1*cos(5*pi*x) + x**2)
Deb01 | 2 | -1, 1 | -1 | -mean(sin(5*pi*x)**6)
DeckkersAarts | 2 | -20, 20 | -24776.51834232
    | 1e5*a**2 + b**2 - (a**2 + b**2)**2 + 1e-5*(a**2 + b**2)**4
DixonPrice | 4 | -10, 10 | 0 | (a - 1)**2 + sum(i[1:] * (2*x[1:]**2 - x[:-1])**2)
DropWave | 2 | -5.12, 5.12 | -1 | -(1 + cos(12*sqrt(sum(x**2)))) / (0.5*sum(x**2) + 2)
Easom | 2 | -100, 100 | -1 | -cos(a) * cos(b) * exp(-(a - pi)**2 - (b - pi)**2)
EggCrate | 2 | -5, 5 | 0 | sum(x**2 + 25*sin(x)**2)
Exponential | 10 | -1, 1 | -1 | -exp(-0.5*sum(x**2))
FreudensteinRoth | 2 | -10, 10 | 0
    | (a - 13 + ((5 - b)*b - 2)*b)**2 + (a - 29 + ((b + 1)*b - 14)*b)**2
Giunta | 2 | -1, 1 | 0.06447042
    | 0.6 + sum(sin(16*x/15 - 1) + sin(16*x/15 - 1)**2 + sin(64*x/15 - 4)/50)
GoldsteinPrice | 2 | -2, 2 | 3
    | (1 + (a + b + 1)**2 * (19 - 14*(a + b) + 3*(a + b)**2))
    * (30 + (2*a - 3*b)**2 * (18 - 16*(2*a - 3*b) + 3*(2*a - 3*b)**2))
Griewank | 2 | -100, 100 | 0 | 1 + sum(x**2)/4000 - prod(cos(x / sqrt(i)))
Hansen | 2 | -10, 10 | -176.54179314 | waves(x[:1], cos, -1).sum() * waves(x[1:], cos).sum()
Hartmann3 | 3 | 0, 1 | -3.86277979 | wells(x, "3 10 30,.1 10 35,3 10 30,.1 10 35",
    "3689 1170 2673,4699 4387 7470,1091 8732 5547,381 5743 8828")
Hartmann6 | 6 | 0, 1 | -3.32236801 | wells(x,
    "10 3 17 3.5 1.7 8,.05 10 17 .1 8 14,3 3.5 1.7 10 17 8,17 8 .05 10 .1 14",
    "1312 1696 5569 124 8283 5886,2329 4135 8307 3736 1004 9991,"
    "2348 1451 3522 2883 3047 6650,4047 8828 8732 5743 1091 381")
HimmelBlau | 2 | -5, 5 | 0 | (a**2 + b - 11)**2 + (a + b**2 - 7)**2
Hosaki | 2 | 0, 5, 0, 6 | -2.34581158 | (1 - 8*a + 7*a**2 - 7*a**3/3 + a**4/4) * b**2 * exp(-b)
JennrichSampson | 2 | -1, 1 | 124.36218236 | sum((2 + 20*T - exp(10*T*a) - exp(10*T*b))**2)
Langermann | 2 | 0, 10 | -5.16212616 | langermann(x)
Levy03 | 8 | -10, 10 | 0 | levy(1 + (x - 1)/4, 1)
Levy05 | 2 | -10, 10 | -176.13757796
    | waves(x[:1], cos, -1).sum() * waves(x[1:], cos).sum() + (a + 1.42513)**2 + (b + 0.80032)**2
Levy13 | 2 | -10, 10 | 0
    | sin(3*pi*a)**2 + (a - 1)**2 * (1 + sin(3*pi*b)**2) + (b - 1)**2 * (1 + sin(2*pi*b)**2)
Matyas | 2 | -10, 10 | 0 | 0.26*(a**2 + b**2) - 0.48*a*b
McCormick | 2 | -1.5, 4, -3, 4 | -1.91322295 | sin(a + b) + (a - b)**2 - 1.5*a + 2.5*b + 1
Michalewicz | 2 | 0, pi | -1.80130341 | -sum(sin(x) * sin(i*x**2/pi)**20)
MieleCantrell | 4 | -1, 1 | 0 | (exp(-a) - b)**4 + 100*(b - c)**6 + tan(c - d)**4 + a**8
Parsopoulos | 2 | -5, 5 | 0 | cos(a)**2 + sin(b)**2
Paviani | 10 | 2.001, 9.999 | -45.77846971 | sum(log(10 - x)**2 + log(x - 2)**2) - prod(x)**0.2
Penalty01 | 2 | -50, 50 | 0
    | pi/2 * levy(1 + (x + 1)/4, 10) + 100*sum(maximum(abs(x) - 10, 0)**4)
Penalty02 | 3 | -50, 50 | 0
    | 0.1 * (sin(3*pi*a)**2 + sum((x[:-1] - 1)**2 * (1 + sin(3*pi*x[1:])**2))
    + (x[-1] - 1)**2 * (1 + sin(2*pi*x[-1])**2)) + 100*sum(maximum(abs(x) - 5, 0)**4)
PermFunction | 2 | -2, 3 | 0
    | sum(sum((i**i[:, None] + 0.5) * ((x/i)**i[:, None] - 1), axis=1)**2)
Powell | 4 | -4, 5 | 0 | (a + 10*b)**2 + 5*(c - d)**2 + (b - 2*c)**4 + 10*(a - d)**4
Price03 | 2 | -5, 5 | 0 | 100*(b - a**2)**2 + (6.4*(b - 0.5)**2 - a - 0.6)**2
Price04 | 2 | -50, 50 | 0 | (2*a**3*b - b**3)**2 + (6*a - b**2 + b)**2
Qing | 3 | -500, 500 | 0 | sum((x**2 - i)**2)
Quadratic | 2 | -10, 10 | -3873.72418219
    | -3803.84 - 138.08*a - 232.92*b + 128.08*a**2 + 203.64*b**2 + 182.25*a*b
Rastrigin | 2 | -5.12, 5.12 | 0 | sum(x**2 + 10 - 10*cos(2*pi*x))
Rosenbrock | 6 | -30, 30 | 0 | sum(100*(x[1:] - x[:-1]**2)**2 + (1 - x[:-1])**2)
RosenbrockModified | 2 | -2, 2 | 34.04024311
    | 74 + 100*(b - a**2)**2 + (1 - a)**2 - 400*exp(-10*((a + 1)**2 + (b + 1)**2))
Schaffer06 | 2 | -100, 100 | 0 | 0.5 + (sin(sqrt(sum(x**2)))**2 - 0.5) / (1 + 0.001*sum(x**2))**2
Schwefel26 | 2 | -500, 500 | 0 | sum(418.9828872724338 - x*sin(sqrt(abs(x))))
Shekel05 | 4 | 0, 10 | -10.15319968 | shekel(x, 5)
Shekel07 | 4 | 0, 10 | -10.40294057 | shekel(x, 7)
Shekel10 | 4 | 0, 10 | -10.53640982 | shekel(x, 10)
Shubert01 | 2 | -10, 10 | -186.73090883 | prod(waves(x, cos))
Shubert03 | 2 | -10, 10 | -24.06249888 | -waves(x, sin).sum()
StyblinskiTang | 5 | -5, 5 | -195.83082852 | sum(x**4 - 16*x**2 + 5*x) / 2
Treccani | 2 | -5, 5 | 0 | a**4 + 4*a**3 + 4*a**2 + b**2
Trid | 6 | -20, 20 | -50 | sum((x - 1)**2) - sum(x[1:]*x[:-1])
Trigonometric01 | 3 | 0, pi | 0 | sum((3 - sum(cos(x)) + i*(1 - cos(x) - sin(x)))**2)
Ursem01 | 2 | -2.5, 3, -2, 2 | -4.81681406 | -sin(2*a - pi/2) - 3*cos(b) - a/2
Venter | 2 | -50, 50 | -400 | sum(x**2 - 100*cos(x)**2 - 100*cos(x**2/30))
Vincent | 2 | 0.25, 10 | -2 | -sum(sin(10*log(x)))
Wavy | 2 | -pi, pi | 0 | 1 - mean(cos(10*x) * exp(-x**2/2))
WayburnSeader01 | 2 | -5, 5 | 0 | (a**6 + b**4 - 17)**2 + (2*a + b - 4)**2
WayburnSeader02 | 2 | -500, 500 | 0
    | (1.613 - 4*(a - 0.3125)**2 - 4*(b - 1.625)**2)**2 + (b - 1)**2
Zakharov | 7 | -5, 10 | 0 | sum(x**2) + (i @ x / 2)**2 + (i @ x / 2)**4
Zettl | 2 | -5, 10 | -0.00379124 | (a**2 - 2*a + b**2)**2 + a/4
Zirilli | 2 | -10, 10 | -0.35238607 | a**4/4 - a**2/2 + a/10 + b**2/2
"""


def waves(x: Vector, wave: Callable[[Vector], Vector], shift: int = 1) -> Vector:
    """Sums over j from 1 to 5 of j wave((j + shift) x + j), for each coordinate."""
    j = np.arange(1, 6)
    return (j * wave((j + shift) * x[:, None] + j)).sum(axis=1)


def levy(y: Vector, factor: float) -> float:
    middle = (y[:-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * y[1:]) ** 2)
    return float(factor * np.sin(np.pi * y[0]) ** 2 + middle.sum() + (y[-1] - 1) ** 2)


@functools.cache
def matrix(text: str) -> np.ndarray:
    return np.array([row.split() for row in text.split(",")], float)


def wells(x: Vector, widths: str, centres: str) -> float:
    """The sum of four Gaussians of Hartmann."""
    squares = (matrix(widths) * (x - matrix(centres) / 1e4) ** 2).sum(axis=1)
    return float(-np.array([1, 1.2, 3, 3.2]) @ np.exp(-squares))


def langermann(x: Vector) -> float:
    squares = ((x - matrix("3 5,5 2,2 1,1 4,7 9")) ** 2).sum(axis=1)
    factors = np.array([1, 2, 5, 2, 3])
    return float(-factors @ (np.cos(np.pi * squares) * np.exp(-squares / np.pi)))


def shekel(x: Vector, num_wells: int) -> float:
    centres = matrix(
        "4 4 4 4,1 1 1 1,8 8 8 8,6 6 6 6,3 7 3 7,2 9 2 9,5 5 3 3,8 1 8 1,6 2 6 2,7 3.6 7 3.6"
    )
    added = np.array([1, 2, 2, 4, 4, 6, 3, 7, 5, 5]) / 10
    return float(-(1 / (((x - centres) ** 2).sum(axis=1) + added))[:num_wells].sum())


def parsed(line: str) -> Case:
    """The case that a line of `FORMULAS` describes."""
    name, size, box, least, formula = line.split(" | ", 4)
    n, names = int(size), {**vars(np), **globals(), "T": np.arange(1, 11) / 10}
    names["i"] = np.arange(1, n + 1)
    numbers = eval(box, names)
    bounds = [numbers[-2:]] * n if len(numbers) == 2 else [numbers[:2], numbers[2:]]
    compute = eval(f"lambda x, a, b=0, c=0, d=0: {formula}", names)
    return Case(name, lambda x: float(compute(x, *x[:4])), bounds, float(least))


SUITE = [parsed(line) for line in FORMULAS.replace("\n    ", " ").strip().splitlines()]


def random_cases(seed: int) -> list[Case]:
    """Random functions: six each of four kinds, in one to six dimensions."""
    made = (gaussians, trigonometric, polynomial, network)
    return [
        kind(f"{kind.__name__} {number}", number, np.random.default_rng([seed, place, number]))
        for place, kind in enumerate(made)
        for number in range(6)
    ]


def gaussians(name: str, number: int, random: np.random.Generator) -> Case:
    n = 2 + number % 4
    centres, heights = random.random((10 * n, n)), random.random(10 * n)
    widths = random.uniform(0.08, 0.25, 10 * n)

    def fun(x: Vector) -> float:
        return float(-heights @ np.exp(-((x - centres) ** 2).sum(axis=1) / (2 * widths**2)))

    return Case(name, fun, [(0, 1)] * n)


def trigonometric(name: str, number: int, random: np.random.Generator) -> Case:
    n = 1 + number % 3
    rows, phases, factors = random.normal(0, 10, (8, n)), random.random(8), random.normal(size=8)
    return Case(name, lambda x: float(factors @ np.cos(rows @ x + 6 * phases)), [(-1, 1)] * n)


def polynomial(name: str, number: int, random: np.random.Generator) -> Case:
    """Of degree four: a sum of fourth powers, and products of at most three coordinates."""
    n = 2 + number % 3
    rows, factors = random.integers(0, n + 1, (20, 3)), random.normal(size=20)
    return Case(
        name,
        lambda x: float((x**4).sum() + 3 * factors @ np.append(x, 1.0)[rows].prod(axis=1)),
        [(-2, 2)] * n,
    )


def network(name: str, number: int, random: np.random.Generator) -> Case:
    """One or two tanh units on thirty noisy data, with a small penalty on the weights."""
    n = 3 if number % 2 else 6
    inputs, hidden = np.linspace(-2, 2, 30), random.normal(0, 2, (3, 3))
    targets = (hidden[0] @ np.tanh(np.outer(hidden[1], inputs) + hidden[2][:, None])) / 2
    targets = targets + random.normal(0, 0.1, 30)

    def fun(x: Vector) -> float:
        units = np.tanh(np.outer(x[0::3], inputs) + x[1::3, None])
        return float(((x[2::3] @ units - targets) ** 2).mean() + 1e-3 * (x**2).mean())

    return Case(name, fun, [(-6, 6)] * n)
