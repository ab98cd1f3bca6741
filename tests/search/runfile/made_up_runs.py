"""Run files made without a search: any size within seconds, any name."""

import json

import numpy as np

import ridgerider as rr
from ridgerider._search.engine.rides import Rides
from ridgerider._search.runfile.schema import KEYS, SUM, TABLES, row_digest
from ridgerider._search.runfile.store import Store, select
from ridgerider._search.tree import Fingerprint, Leg, Settings, Way, named_order, with_priority

META = {
    "problem": {"params": [["", [6], "float64"]], "start": "0123", "data": "4567"},
    "rider": {"type": "ridgerider:Rider", "fields": {}},
    "mover": "rides",
    "symmetry": None,
    "valid": None,
    "settings": vars(Settings()),
    "budget": {"max_rides": 100},
}


def make_leg(fingerprint, num_ridges=2):
    """A leg with made-up but plausible numbers, which depend on its fingerprint alone."""
    fingerprint = Fingerprint.parse(fingerprint)
    random = np.random.default_rng([0, *str(fingerprint).encode()])
    depth, num_steps = fingerprint.depth, int(random.integers(5, 60)) if fingerprint else 0
    eigenvalues = np.sort(random.normal(0.2, 1.0, 6))
    eigenvalues[:num_ridges] = -np.sort(random.random(num_ridges))[::-1]
    eigenvalues[num_ridges:] = np.sort(random.random(6 - num_ridges))
    begin = -depth + 0.3 * random.random()
    trace = {
        "loss": np.linspace(begin, begin - 0.7 * random.random(), num_steps + 1),
        "eigenvalue": np.linspace(-random.random(), 0.01, num_steps + 1),
        "overlap": 1 - 0.1 * random.random(num_steps + 1),
        "residual": 1e-14 * random.random(num_steps + 1),
        "gap": random.random(num_steps + 1),
        "step_size": 0.1 * 0.5 ** random.integers(0, 4, num_steps + 1),
        "multiplicity": np.ones(num_steps + 1, int),
        "neighbours": np.sort(random.normal(size=(num_steps + 1, 4))),
    }
    loss = float(trace["loss"][-1])
    # Twelve different minima; every tenth descent ends at a saddle.
    minimum = int(random.integers(12))
    end = rr.types.Finish(
        x=np.eye(12)[minimum][:6] * 3 + minimum,
        loss=-20.0 - minimum,
        grad_norm=1e-9,
        least_eigenvalue=0.1 + minimum / 100,
        is_converged=True,
        is_saddle=random.random() < 0.1,
        num_steps=7,
        num_kicks=0,
        cost=rr.types.Cost(gradients=7),
    )
    return Leg(
        fingerprint=fingerprint,
        x=random.normal(size=6),
        loss=loss,
        num_steps=num_steps,
        ended_by=("start",) if not fingerprint else (random.choice(["curvature_gone", "Stalled"]),),
        eigenvalues=eigenvalues,
        clusters=tuple(rr.types.Cluster(float(one), 1, 0.0, 0.1) for one in eigenvalues),
        num_ridges=num_ridges,
        turns=tuple((i, 0) for i in range(num_ridges)),
        directions=np.eye(6)[:num_ridges],
        ways=(Way(),) * num_ridges,
        trace=trace if fingerprint else {},
        cost=rr.types.Cost(
            values=3, gradients=10, hvps=6 * num_steps, hessians=num_steps, seconds=0.25
        ),
        finish=end if fingerprint else None,
    )


def sign_rows(db):
    """Give each row the digest of what it holds now, as one who knows the format can."""
    total = 0
    db.execute("BEGIN")
    for table, keys in KEYS.items():
        where = " AND ".join(f"{name} IS ?" for name in keys)
        for row in list(select(db, table)):
            key = [row[name] for name in keys]
            if (table, *key) != ("meta", SUM):
                digest = row_digest(table, row)
                db.execute(f"UPDATE {table} SET digest = ? WHERE {where}", (digest, *key))
                total ^= int.from_bytes(digest)
    row = {"key": SUM, "value": json.dumps(f"{total:x}")}
    values = (*row.values(), row_digest("meta", row))
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", values)
    db.execute("COMMIT")


def make_run(path, num_legs, num_different=200, **meta):
    """A run of `num_legs` legs, two ridges at each point, breadth first; and its open branches.

    Behind the first `num_different` legs their rows come again, for speed.
    """
    settings = Settings()
    frontier = [""]
    store = None
    for number in range(min(num_legs, num_different) + 1):
        leg = make_leg(frontier[number])
        found = [
            with_priority(branch, named_order("breadth_first", 0))
            for branch in Rides(rr.Rider()).branches_at(None, settings, leg)
        ]
        if store is None:
            store = Store.create(path, {"name": "made up", **META, **meta}, leg, found)
        else:
            store.settle(leg, found)
        frontier += [str(branch.fingerprint) for branch in found]
    copy_legs(store, frontier, num_legs, num_different)
    store.checkpoint()
    return store, frontier[num_legs + 1 :]


def copy_legs(store, frontier, num_legs, num_different):
    names = ", ".join(f"[{one}]" for one in TABLES["legs"] if one not in ("fingerprint", "depth"))
    copy = (
        f"INSERT INTO legs (fingerprint, depth, {names})"
        f" SELECT :new, :depth, {names} FROM legs WHERE fingerprint = :old"
    )
    with store._transaction():
        for number in range(num_different + 1, num_legs + 1):
            new, old = frontier[number], frontier[1 + number % num_different]
            store._db.execute(copy, {"new": new, "old": old, "depth": len(new.split())})
            found = [f"{new} {turn}" for turn in ("0+", "0-", "1+", "1-")]
            rows = [(one, 0.0, -1.0, 1, "1", None) for one in found]
            store._db.executemany("INSERT INTO branches VALUES (?, ?, ?, ?, ?, ?, NULL)", rows)
            frontier += found
    sign_rows(store._db)
