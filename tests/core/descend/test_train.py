"""Ride, then train: by closed form, in the ledger, resumed, with progress, and through NaN."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ridgerider as rr
from ridgerider._core.descend.finish import listening
from ridgerider._core.descend.train import _on_all


def mean_square(x, points):
    return jnp.mean((points - x[0]) ** 2)


def line(num=8, dtype=jnp.float64):
    """The mean square distance to points, whose minimum is their mean."""
    return rr.Problem(mean_square, jnp.zeros(1, dtype), jnp.arange(num, dtype=dtype))


def bent(x, points):
    return jnp.mean((x[0] ** 2 - points) ** 2) + x[1] ** 2 - x[1] ** 2 * x[0] ** 2


def valley():
    return rr.Problem(bent, jnp.zeros(2), 1 + 0.1 * jnp.cos(jnp.arange(12.0)))


ADAM = jax.tree_util.Partial(optax.adam, 0.05)


def test_whole_batches_are_gradient_descent_in_closed_form():
    # x' = x - 2 r (x - m): the distance to the mean m shrinks by 1 - 2 r at each step.
    end = rr.Train(optax.sgd(0.1), None, epochs=5)(line(), line().x0, jax.random.key(0))
    assert float(end.x[0]) == pytest.approx(3.5 * (1 - 0.8**5))
    spread = np.var(np.arange(8.0))
    expected = spread + (3.5 * 0.8 ** np.arange(6)) ** 2
    np.testing.assert_allclose(end.history["loss"], expected)
    assert float(end.grad_norm) == pytest.approx(2 * 3.5 * 0.8**5)
    assert (end.cost.gradients, end.cost.values, int(end.num_steps)) == (6, 6, 5)
    assert end.kind == "unverified" and "trained on batches" in end.doubt


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_batches_against_a_loop_written_by_hand(dtype):
    problem, key, batches = line(10, dtype), jax.random.key(3), rr.Batches(4)
    end = rr.Train(optax.adam(0.1), batches, epochs=3)(problem, problem.x0, key)
    optimizer, x = optax.adam(0.1), problem.x0
    state = optimizer.init(x)
    for epoch in range(3):
        for step in range(10 // 4):
            seen = batches(problem, jax.random.fold_in(key, epoch), step)
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(seen.grad(x), state, x)
            x = x + updates.astype(dtype)
    np.testing.assert_allclose(end.x, x, rtol=1e-5)
    assert end.x.dtype == dtype and end.loss.dtype == dtype
    assert int(end.num_steps) == 6


def test_the_loss_on_all_data_is_summed_in_parts(monkeypatch):
    monkeypatch.setattr("ridgerider._core.descend.train.MAX_ROWS", 3)
    problem = line(8)
    for what in ("value", "grad"):
        found = _on_all(problem, jnp.array([0.7]), what)
        np.testing.assert_allclose(found, getattr(problem, what)(jnp.array([0.7])))


def test_it_ends_at_its_target_or_says_that_it_did_not_get_there():
    train = rr.Train(optax.sgd(0.1), None, epochs=50, target=6.0)
    end = train(line(), line().x0, jax.random.key(0))
    assert end.history["loss"][-1] <= 6 < end.history["loss"][-2]
    assert end.kind == "unverified" and len(end.history["loss"]) < 51
    there = train(line(), end.x, jax.random.key(0))  # nothing is left to do
    assert len(there.history["loss"]) == 1 and there.cost.gradients == 1
    short = rr.Train(optax.sgd(0.1), None, epochs=1, target=6.0)
    assert short(line(), line().x0, jax.random.key(0)).kind == "unconverged"


def test_metrics_have_a_column_each():
    def metrics(params):
        return {"place": params[0], "one": 1.0}

    end = rr.Train(optax.sgd(0.1), None, epochs=2, metrics=metrics)(
        line(), line().x0, jax.random.key(0)
    )
    np.testing.assert_allclose(end.history["place"], 3.5 * (1 - 0.8 ** np.arange(3)))
    assert end.history["one"].tolist() == [1, 1, 1]


def blows_up(x, points):
    return jnp.mean(points) * jnp.log(x[0])  # NaN once x is negative


def test_a_training_that_meets_nan_ends_at_the_last_finite_epoch():
    problem = rr.Problem(blows_up, jnp.array([1.0]), jnp.ones(4))
    end = rr.Train(optax.sgd(0.3), rr.Batches(4), epochs=9)(problem, problem.x0, jax.random.key(0))
    losses = end.history["loss"]
    assert np.isnan(losses[-1]) and np.isfinite(losses[:-1]).all() and len(losses) > 2
    assert float(end.loss) == losses[-2] == pytest.approx(float(np.log(end.x[0])))
    assert end.kind == "unconverged"


def test_a_training_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    problem, key = valley(), jax.random.key(1)
    x = jnp.array([0.3, 0.2])
    whole = rr.Train(ADAM, rr.Batches(4), epochs=8)(problem, x, key)
    kept = rr.Train(ADAM, rr.Batches(4), epochs=8, folder=str(tmp_path))

    class Stopped(Exception):
        pass

    def stop(epoch):
        if epoch.number == 5:
            raise Stopped

    with pytest.raises(Stopped), listening(stop):
        kept(problem, x, key)
    (file,) = tmp_path.iterdir()
    file.with_suffix(".1234.part").write_bytes(b"half")  # as a kill leaves it
    seen = []
    with listening(lambda epoch: seen.append(epoch.number)):
        again = kept(problem, x, key)
    assert seen == [5, 6, 7, 8]
    np.testing.assert_array_equal(again.x, whole.x)
    np.testing.assert_array_equal(again.history["loss"], whole.history["loss"])
    assert again.cost.gradients == whole.cost.gradients
    assert len(list(tmp_path.iterdir())) == 1  # nothing half-written is left

    seen.clear()
    with listening(lambda epoch: seen.append(epoch.number)):
        kept(problem, x, key)  # not repeated
        assert seen == [8]
        for other in (
            kept(problem, x + 0.1, key),
            kept(problem, x, jax.random.key(2)),
            rr.Train(optax.adam(0.04), rr.Batches(4), epochs=8, folder=str(tmp_path))(
                problem, x, key
            ),
            kept(rr.Problem(bent, x, problem.args[0] + 0.1), x, key),
        ):
            assert not np.array_equal(other.x, whole.x)  # another training, from its beginning


# --- as the end of a leg


def rider(finish):
    return rr.Rider(finish=finish, max_steps=20)


def test_a_search_that_trains_keeps_it_in_its_file(tmp_path):
    train = rr.Train(ADAM, rr.Batches(4), epochs=3)
    path = tmp_path / "run.sqlite"
    result = rr.search(valley(), rider(train), max_rides=2, max_depth=1, out=path)
    legs = [result.leg(name) for name in ("0+", "0-")]
    for leg in legs:
        assert leg.finish is not None and leg.finish.history is not None
        assert leg.finish.cost.gradients == 3 * 3 + 1 and leg.cost.gradients >= 10
        assert leg.finish.loss < leg.loss
    stored = rr.load(path, valley()).leg("0+").finish
    np.testing.assert_array_equal(stored.history["loss"], legs[0].finish.history["loss"])
    assert stored.kind == "unverified" and np.isnan(stored.least_eigenvalue)


def test_an_interrupted_search_goes_on_to_the_same_ends(tmp_path):
    train = rr.Train(ADAM, rr.Batches(4), epochs=3)
    whole = rr.search(valley(), rider(train), max_rides=2, max_depth=1)
    path = tmp_path / "run.sqlite"
    rr.search(valley(), rider(train), max_rides=1, max_depth=1, out=path)
    resumed = rr.resume(path, valley(), max_rides=2)  # the optimizer is rebuilt from the file
    for name in ("0+", "0-"):
        np.testing.assert_array_equal(resumed.leg(name).finish.x, whole.leg(name).finish.x)


def test_an_optimizer_without_a_name_is_handed_over_again_and_must_be_the_same(tmp_path):
    def with_rate(rate):
        return rider(rr.Train(optax.adam(rate), rr.Batches(4), epochs=2))

    path = tmp_path / "run.sqlite"
    rr.search(valley(), with_rate(0.05), max_rides=1, max_depth=1, out=path)
    with pytest.raises(ValueError, match="an optimizer that is not named: pass the `rider`"):
        rr.resume(path, valley(), max_rides=2)
    with pytest.raises(ValueError, match="made with another `rider`"):
        rr.resume(path, valley(), with_rate(0.04), max_rides=2)
    assert len(rr.resume(path, valley(), with_rate(0.05), max_rides=2)) == 2


def test_progress_is_told_inside_a_leg():
    lines = []
    train = rr.Train(ADAM, rr.Batches(4), epochs=2)
    rr.search(
        valley(),
        rider(train),
        max_rides=1,
        max_depth=1,
        progress=lambda done: lines.append((done.num_rides, done.training.partition(",")[0])),
    )
    assert lines == [(0, f"epoch {n} of 2") for n in range(3)] + [(1, "")]


# --- contracts


def test_a_second_training_traces_nothing():
    traces = []

    def counted(x, points):
        traces.append(1)
        return mean_square(x, points)

    problem = rr.Problem(counted, jnp.zeros(1), jnp.arange(8.0))
    train = rr.Train(ADAM, rr.Batches(4), epochs=2)
    train(problem, problem.x0, jax.random.key(0))
    before = len(traces)
    train(problem, problem.x0 + 1, jax.random.key(1))
    assert len(traces) == before
    assert pickle.loads(pickle.dumps(train)).epochs == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": 0.1}, "`optimizer` must be an optimizer of optax, such as .* not 0.1"),
        ({"batches": 128}, "`batches` must be callable with 3 arguments, not 128"),
        ({"batches": lambda *_: None}, r"`batches.size` must be a whole number .* not None"),
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1, not 0"),
        ({"target": "low"}, "`target` must be finite, not 'low'"),
        ({"target": float("nan")}, "`target` must be finite, not nan"),
        ({"metrics": 1}, "`metrics` must be callable with 1 argument, not 1"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rr.Train(**{"optimizer": optax.adam(1e-3), **arguments})


def test_bad_problems_are_refused():
    train = rr.Train(optax.adam(1e-3), rr.Batches(128))
    with pytest.raises(ValueError, match=r"`batches` must have a size of at most .* 8, not 128"):
        train(line(), line().x0, jax.random.key(0))
    with pytest.raises(ValueError, match="`args` must be arrays of one leading length"):
        train(rr.Problem(jnp.sum, jnp.zeros(1)), jnp.zeros(1), jax.random.key(0))
    with pytest.raises(ValueError, match="cannot be part of a compiled program"):
        jax.jit(lambda x: train(line(), x, jax.random.key(0)).x)(line().x0)
