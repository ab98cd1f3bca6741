"""How far one coordinator reaches: the real search and store, and simulated workers.

    python -m ridgerider_experiments.bench.scale [DIRECTORY]

Legs are synthetic, everything the coordinator does with them is real and timed: take a leg, store
it with its children, tell the search, ask for the next branch, mark it, load its arrays, pickle
them. The workers are simulated: each rides for a random time, then queues up at the coordinator,
which serves one at a time and takes as long as was measured. With a directory, draws scale.png.
"""

import heapq
import pickle
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ridgerider as rr
from ridgerider._core.problem.cost import Cost
from ridgerider._core.spectra.spectrum import Cluster
from ridgerider._search.engine.rides import branches_at
from ridgerider._search.runfile.store import Store
from ridgerider._search.tree.orders import breadth_first
from ridgerider._search.tree.settings import Settings
from ridgerider._search.tree.tree import Branch, Leg

TRACE = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "multiplicity")
WORKERS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
RIDE_SECONDS = (0.05, 1.0, 60.0)


class Coordinator:
    """The search and its store, fed with synthetic legs."""

    def __init__(self, path, num_params, num_ridges, num_steps=50):
        self.random = np.random.default_rng(0)
        self.num_params, self.num_ridges, self.num_steps = num_params, num_ridges, num_steps
        self.settings, self.tree, self.round = Settings(order="breadth_first"), rr.Search(), 0
        root = self.leg(rr.Fingerprint())
        children = branches_at(root, self.settings, breadth_first)
        self.store = Store.create(path, {"settings": {}}, root, children)
        self.tree.tell(children)

    def leg(self, fingerprint):
        """What riding a branch might have given."""
        eigenvalues = np.sort(-self.random.uniform(0, 1, self.num_ridges))
        vectors = self.random.normal(size=(self.num_ridges + 1, self.num_params))
        return Leg(
            fingerprint=fingerprint,
            x=vectors[0],
            loss=float(eigenvalues.sum()),
            num_steps=self.num_steps,
            ended_by=("curvature_gone",),
            eigenvalues=eigenvalues,
            clusters=tuple(Cluster(float(value), 1, 0.0, 0.1) for value in eigenvalues),
            num_ridges=self.num_ridges,
            turns=tuple((index, 0) for index in range(self.num_ridges)),
            directions=vectors[1:],
            trace={name: self.random.normal(size=self.num_steps + 1) for name in TRACE},
            cost=Cost(hvps=100),
        )

    def ask(self) -> Branch:
        (branch,) = self.tree.ask(1)
        self.round += 1
        self.store.choose([branch], self.round)
        branch = self.store.load(branch)
        pickle.dumps(branch)
        return branch

    def tell(self, leg):
        children = branches_at(leg, self.settings, breadth_first)
        self.store.add(leg, children)
        self.tree.tell(children)

    def serve(self, branch):
        """Take a leg and hand out the next branch; returns that and the seconds it took."""
        leg = self.leg(branch.fingerprint)
        began = time.perf_counter()
        self.tell(leg)
        following = self.ask()
        return following, time.perf_counter() - began


def memory():
    """What this process holds, in bytes."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def grow(path, size=1_000_000, num_params=100):
    """Memory and time per leg as the frontier grows to `size` open branches."""
    coordinator = Coordinator(path, num_params, num_ridges=10)
    before, branch, rows, seconds = memory(), coordinator.ask(), [], []
    marks = [size * tenth // 10 for tenth in range(1, 11)]
    while marks:
        branch, took = coordinator.serve(branch)
        seconds.append(took)
        if len(coordinator.tree) >= marks[0]:
            recent = 1e3 * np.array(seconds[-500:])
            rows.append((marks.pop(0), memory() - before, np.median(recent), recent.max()))
            print(
                "{:>9} open: {:7.1f} MB, {:.2f} ms per leg, at most {:.1f}".format(
                    rows[-1][0], rows[-1][1] / 1e6, *rows[-1][2:]
                ),
                flush=True,
            )
    print(f"run file: {path.stat().st_size / 1e6:.0f} MB")
    began = time.perf_counter()
    again = rr.Search()
    again.tell(coordinator.store.open_branches(chosen=False))
    print(f"reading {len(again)} open branches on resume: {time.perf_counter() - began:.1f} s")
    return rows, np.array(seconds)


def store_rate(path, num_legs=4000, num_params=1000, num_ridges=5):
    """Legs stored per second, with traces, each in a transaction of its own."""
    coordinator = Coordinator(path, num_params, num_ridges)
    legs = [coordinator.leg(coordinator.ask().fingerprint) for _ in range(2 * num_ridges)]
    names = (rr.Fingerprint.parse(f"0+ {k}+") for k in range(num_legs))
    legs = [
        Leg(**{**vars(legs[k % len(legs)]), "fingerprint": name}) for k, name in enumerate(names)
    ]
    work = [(leg, branches_at(leg, coordinator.settings, breadth_first)) for leg in legs]
    began = time.perf_counter()
    for leg, children in work:
        coordinator.store.add(leg, children)
    return num_legs / (time.perf_counter() - began)


def simulate(num_workers, ride_seconds, service, random):
    """Workers that ride and queue up; returns their utilisation and the mean wait for a branch."""
    num_events = 4 * max(num_workers, 1000)
    ends = list(random.exponential(ride_seconds, num_workers))
    heapq.heapify(ends)
    free, waited, ridden = 0.0, 0.0, 0.0
    for event in range(num_events):
        if event == num_events // 2:
            waited, ridden = 0.0, 0.0  # after the rush at the beginning
        ended, ride = heapq.heappop(ends), random.exponential(ride_seconds)
        free = max(free, ended) + service[event % len(service)]
        waited += free - ended
        ridden += ride
        heapq.heappush(ends, free + ride)
    return ridden / (ridden + waited), waited / (num_events - num_events // 2)


def sweep(service):
    random, rows = np.random.default_rng(0), {}
    service = random.permutation(service)  # short runs see all of it
    for ride_seconds in RIDE_SECONDS:
        for num_workers in WORKERS:
            busy, wait = simulate(num_workers, ride_seconds, service, random)
            rows[ride_seconds, num_workers] = busy, wait
            print(
                f"{num_workers:>6} workers, rides of {ride_seconds:g} s: busy {busy:6.1%}, "
                f"wait {1e3 * wait:9.2f} ms",
                flush=True,
            )
        print(f"saturates at {ride_seconds / service.mean():.0f} workers (ride / service)")
    return rows


def draw(growth, rows, service, path):
    import matplotlib.pyplot as plt

    from ridgerider_experiments.surface import COLORS

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot([row[0] / 1e6 for row in growth], [row[1] / 1e9 for row in growth], "o-", c=COLORS[0])
    left.axhline(4, color="0.5", linestyle="--", linewidth=1)
    left.text(0.02, 3.95, "the most it may take: 4 GB", color="0.4", va="top")
    left.set(xlabel="open branches (millions)", ylabel="memory of the frontier (GB)")
    left.set(xlim=(0, 1.05), ylim=(0, 4.4))
    for color, seconds in zip(COLORS, RIDE_SECONDS, strict=False):
        busy = [100 * rows[seconds, num][0] for num in WORKERS]
        right.semilogx(WORKERS, busy, "o", color=color, label=f"rides of {seconds:g} s")
        dense = np.geomspace(WORKERS[0], WORKERS[-1], 200)
        model = 100 * np.minimum(1, seconds / service.mean() / dense)
        right.semilogx(dense, model, "-", color=color, linewidth=1)
    right.semilogx([], [], "-", color="0.5", linewidth=1, label="model")
    right.set(xlabel="simulated workers", ylabel="time workers ride (%)", ylim=(0, 104))
    right.legend(frameon=False, loc="lower left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path / "scale.png", dpi=160)


def main():
    with tempfile.TemporaryDirectory() as directory:
        rate = store_rate(Path(directory) / "rate.sqlite")
        print(f"store: {rate:.0f} legs per second with traces, n = 1000")
        growth, service = grow(Path(directory) / "run.sqlite")
    service = service[len(service) // 2 :]  # with a large frontier
    print(f"coordinator: {1e3 * service.mean():.2f} ms per leg, {1 / service.mean():.0f} legs/s")
    rows = sweep(service)
    if len(sys.argv) > 1:
        draw(growth, rows, service, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
