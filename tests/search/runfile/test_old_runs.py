"""A run file that version 0.1.0 wrote: `ridgerider search wells --max-rides 12 --step-size 0.25
--order best_first`. Its steps and losses are multiples of powers of two, so every machine rides to
the same bits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import ridgerider as rr
from ridgerider import cli
from ridgerider._search.runfile.rules import describe, is_same_rule, rebuild
from ridgerider.problems import wells

OLD = Path(__file__).parent / "data" / "run-0.1.0.sqlite"
SEARCH = {"max_rides": 18, "order": "best_first"}


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copy(OLD, tmp_path / "run.sqlite"))


@pytest.fixture(scope="module")
def new():
    # Then the default descent was optax's.
    rider = rr.Rider(step=rr.Backtracking(0.25), finish=rr.Descend(optax.lbfgs))
    return rr.search(wells(), rider, **SEARCH)


def run(*args):
    result = CliRunner().invoke(cli.app, list(map(str, args)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_what_is_in_it_is_shown(old):
    shown = run("show", old)
    assert "12 legs, 6 branches open; 4 minima; descents ended at: minimum 7, saddle 5" in shown
    assert "0.5625" in run("show", old, "0+")
    page = Path(run("report", old).splitlines()[-1]).read_text()
    assert '"fingerprint":"0+ 1- 0+"' in page and "damaged" not in page


def test_it_is_resumed_to_the_tree_of_a_new_search(old, new):
    before = {str(leg.fingerprint): leg.x for leg in rr.load(old)}
    run("resume", old, "--max-rides", 18)
    resumed = rr.load(old)
    assert sorted(map(str, resumed.fingerprints())) == sorted(map(str, new.fingerprints()))
    for leg in resumed:
        np.testing.assert_array_equal(leg.x, new.leg(leg.fingerprint).x)
        np.testing.assert_array_equal(leg.x, before.get(str(leg.fingerprint), leg.x))


def test_it_is_replayed(old):
    for name in ("0+ 1- 0+", "0+ 0- 0-"):
        assert "NOT equal" not in run("replay", old, name)
        (*_, leg) = rr.load(old, wells()).replay(name)
        np.testing.assert_array_equal(leg.x, rr.load(old).leg(name).x)


def test_names_of_rules_are_public_and_old_ones_are_read(old, new):
    written = json.dumps(new.meta["rider"])
    assert '"ridgerider:Rider"' in written and '"optax:lbfgs"' in written and "._" not in written
    stored = rr.load(old).meta["rider"]
    assert stored["type"] == "ridgerider._rider:Rider"
    assert is_same_rule(stored, new.rider) and not is_same_rule(stored, rr.Rider())
    assert describe(rebuild(stored)) == new.meta["rider"]
    # With a rule of the user's own in it, it cannot be rebuilt; the rest is known all the same.
    own = {**stored["fields"], "correct": {"function": "mine:correct"}}
    assert is_same_rule({**stored, "fields": own}, replace(new.rider, correct=correct))


def test_a_gauge_that_is_gone_is_named():
    stored = {"type": "ridgerider._spectrum:DenseSpectrum", "fields": {"gauge": "basis"}}
    with pytest.raises(ValueError, match=r"`gauge` of .* in the run file cannot be 'basis'"):
        rebuild(stored)


def correct(problem, x, ridge):
    return x, rr.Cost()


correct.__module__ = "mine"


def test_orders_with_settings_are_known_by_either_name(tmp_path):
    assert is_same_rule(
        {"type": "ridgerider._tree:RandomOrder", "fields": {"seed": 3}}, rr.RandomOrder(3)
    )
