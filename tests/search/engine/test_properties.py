"""Statements that hold for all inputs, on inputs that Hypothesis makes up."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgerider as rr
from ridgerider._core.spectra.spectrum import cluster_labels
from ridgerider._search.runfile.rules_json import describe, digest, rebuild
from ridgerider.types import Frontier

TURNS = st.builds(rr.types.Turn, st.integers(0, 99), st.sampled_from([1, -1]), st.integers(0, 9))
FINGERPRINTS = st.lists(TURNS, max_size=6).map(rr.types.Fingerprint)
LABELS = jax.jit(cluster_labels)


@given(FINGERPRINTS)
def test_fingerprints_print_and_parse(fingerprint):
    assert rr.types.Fingerprint.parse(str(fingerprint)) == fingerprint


@given(
    st.lists(st.tuples(FINGERPRINTS, st.integers(0, 3)), unique_by=lambda pair: pair[0]),
    st.randoms(),
)
def test_what_is_asked_does_not_depend_on_the_order_of_telling(pairs, random):
    branches = [
        rr.types.Branch(fingerprint, 0.0, -1.0, 1, priority) for fingerprint, priority in pairs
    ]
    one, two = Frontier(), Frontier()
    one.tell(branches)
    random.shuffle(branches)
    two.tell(branches)
    asked = one.ask(len(branches))
    assert asked == two.ask(len(branches)) and not len(one)
    priorities = [branch.priority for branch in asked]
    assert priorities == sorted(priorities)


@settings(deadline=None)
@given(
    st.lists(st.integers(-50, 50), min_size=5, max_size=5),
    st.sampled_from([0.0, 0.01, 0.1, 0.5]),
)
def test_clusters_are_narrow_and_greedy(values, tolerance):
    eigenvalues = np.sort(np.asarray(values, float))
    labels = np.asarray(LABELS(jnp.asarray(eigenvalues), tolerance))
    width = tolerance * np.abs(eigenvalues).max()
    assert labels[0] == 0 and set(np.diff(labels)) <= {0, 1}
    firsts = {label: eigenvalues[labels == label][0] for label in labels}
    for k in range(5):
        assert eigenvalues[k] - firsts[labels[k]] <= width
        if k and labels[k] != labels[k - 1]:  # no smaller number of clusters from the left
            assert eigenvalues[k] - firsts[labels[k - 1]] > width


@pytest.mark.parametrize(
    "rider",
    [
        rr.Rider(),
        rr.Rider(
            spectrum=rr.DenseSpectrum("random", 0.1),
            update=rr.Project(0.1),
            step=rr.FixedStep(0.3),
            stop=(rr.curvature_gone, rr.Stalled(5, 1e-3)),
            finish=rr.Descend(max_kicks=2),
            max_steps=7,
        ),
        rr.Rider(update=rr.Keep(), step=rr.FixedStep(jnp.array(0.25)), finish=None),
    ],
)
def test_riders_survive_the_run_file(rider):
    data = json.loads(json.dumps(describe(rider)))
    assert describe(rebuild(data)) == data
    if not isinstance(rider.step.size, jnp.ndarray):
        assert eqx.tree_equal(rebuild(data), rider)


@pytest.mark.parametrize(
    "name",
    ["os:system", "ridgerider._store:os", "ridgerider._store:os.system", "ridgerider:nothing"],
)
def test_only_trusted_names_are_looked_up(name):
    with pytest.raises(ValueError, match="a custom rule"):
        rebuild({"function": name})
    with pytest.raises(ValueError, match="a custom rule"):
        rebuild({"type": name, "fields": {}})


def test_nothing_but_rules_is_built():
    with pytest.raises(ValueError, match=r"the run used ridgerider\.cli:main, a custom rule"):
        rebuild({"type": "ridgerider.cli:main", "fields": {}})


def test_digests_tell_data_apart():
    trees = [
        {"a": np.zeros(3)},
        {"b": np.zeros(3)},
        {"a": np.zeros((3, 1))},
        {"a": np.zeros(3, "float32")},
        {"a": np.array([0.0, 0.0, 1e-300])},
        {"a": 1.0},
        {"a": "text"},
    ]
    assert len({digest(tree) for tree in trees}) == len(trees)
    assert digest({"a": jnp.zeros(3)}) == digest({"a": np.zeros(3)})
