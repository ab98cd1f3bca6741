"""Ensembles along ridges: where members begin, what becomes of them, and those that fail."""

import dataclasses
from collections import Counter
from functools import partial
from itertools import islice, product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ridgerider as rr
from ridgerider.data import digits
from ridgerider.ensembles import AlongRidges, Beginning, Fresh, RandomDirections
from ridgerider.ensembles._begin import distinct_ridges
from ridgerider.ensembles._ensemble import farthest_first
from ridgerider.problems import classifier, wells

ADAM = jax.tree_util.Partial(optax.adam, 0.02)
IMAGES = digits().some(256, 128)


def small_problem(dtype=np.float32, labels=IMAGES.train_labels, **settings):
    images = IMAGES.train_images[:, ::2, ::2].astype(dtype)
    return classifier(images, labels, **{"widths": (6,), "init_scale": 1e-3, **settings})


def inputs(dtype=np.float32):
    return IMAGES.test_images[:, ::2, ::2].astype(dtype)


def train(**settings):
    target = None if "epochs" in settings else 1.2
    return rr.Train(ADAM, rr.Batches(64), **{"epochs": 80, "target": target, **settings})


# --- beginnings


def test_straight_steps_end_where_the_loss_is_lowest_on_their_line():
    # sum of x^4 / 4 - d x^2 / 2: along axis i the lowest loss is at sqrt(d_i).
    problem, key = wells(3), jax.random.key(0)
    found = list(AlongRidges(stretch=1.0)(problem, key))
    assert [one.name for one in found[:6]] == ["0+", "1+", "2+", "0-", "1-", "2-"]
    combined, found = found[6:], found[:6]
    assert len(combined) == 12  # three pairs, four combinations of signs
    for one in combined:
        is_along = [number in (int(one.name[0]), int(one.name[2])) for number in (2, 1, 0)]
        np.testing.assert_array_equal(np.abs(np.asarray(one.x)) > 1e-6, is_along)
        assert "sum of ridges" in one.how
    depths = -np.linalg.eigvalsh(np.asarray(problem.hessian(problem.x0)))
    for one in found:
        number = int(one.name[0])
        place = np.argmax(np.abs(one.x))
        others = np.delete(np.asarray(one.x), place)
        np.testing.assert_allclose(others, 0, atol=1e-6)
        # Lengths are tried in steps of sqrt(2), so the best is within its fourth root.
        length = float(jnp.abs(one.x[place]))
        assert 2**-0.3 < length / np.sqrt(depths[number]) < 2**0.3
    for one, other in zip(found[:3], found[3:], strict=True):
        np.testing.assert_allclose(one.x, -other.x)  # the other way
    far = list(AlongRidges(stretch=2.0)(problem, key))
    np.testing.assert_allclose(far[0].x, 2 * found[0].x)


def test_the_first_beginning_pays_for_the_look():
    found = list(AlongRidges()(wells(3), jax.random.key(0)))
    # The second spectrum, for less accurate ridges, is paid for by what comes next.
    assert [int(one.cost.hvps) for one in found] == [3, 0, 0, 0, 0, 0, 3] + 11 * [0]
    assert found[0].work > found[1].work == found[2].work


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_near_zero_there_is_one_ridge_less_than_classes(seed):
    problem = small_problem(np.float64, seed=seed)
    found = distinct_ridges(problem, jax.random.key(seed))
    pixels = inputs_with_ones(problem.args[0])
    residual = 0.1 - np.eye(10)[np.asarray(problem.args[1])]
    expected = np.linalg.svd(residual.T @ pixels / len(pixels), compute_uv=False)[:9]
    width = 0.02 * expected[0]
    apart = 1 + np.sum(np.diff(-expected[expected > width]) > width)
    assert abs(len(found) - apart) <= 1
    eigenvalues = np.array([-float(ridge.eigenvalue) for ridge in found])
    nearest = np.abs(eigenvalues[:, None] - expected[None]).min(axis=1)
    assert (nearest <= width).all() and (np.diff(eigenvalues) < 0).all()


def inputs_with_ones(images):
    pixels = np.asarray(images).reshape(len(images), -1)
    return np.concatenate([pixels, np.ones((len(pixels), 1))], axis=1)


def test_a_rider_rides_each_ridge():
    rider = rr.Rider(step=rr.FixedStep(0.1), finish=None, max_steps=4)
    begin = AlongRidges(rider)
    found = list(islice(begin(wells(3), jax.random.key(0)), 6))
    for one in found:
        assert float(jnp.linalg.norm(one.x)) == pytest.approx(0.4, rel=1e-3)
        assert one.work > 0 and int(one.cost.hvps) > 0


def test_fresh_starts_have_the_variance_of_their_fan_in():
    start = {"w": jnp.zeros((400, 50)), "b": jnp.full(50, 0.5)}
    problem = rr.Problem(lambda p: jnp.sum(p["w"] ** 2) + jnp.sum(p["b"]), start)
    begin = Fresh()(problem, jax.random.key(0))
    one, two = problem.unravel(next(begin).x), problem.unravel(next(begin).x)
    assert float(jnp.std(one["w"])) == pytest.approx(1 / 20, rel=0.05)
    np.testing.assert_array_equal(one["b"], start["b"])
    assert not np.array_equal(one["w"], two["w"])
    mine = next(Fresh(lambda key: jax.tree.map(jnp.ones_like, start))(problem, jax.random.key(0)))
    assert float(jnp.sum(mine.x)) == problem.size


# --- members


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_members_are_trained_to_one_target_and_add_up(dtype):
    problem, lines = small_problem(dtype), []
    found = rr.ensemble(problem, 3, finish=train(), progress=lines.append)
    assert len(found) == 3 and not found.dropped
    assert all(member.is_at_target and member.loss <= 1.2 for member in found.members)
    assert all(member.x.dtype == dtype for member in found.members)
    names = [member.name for member in found.members]
    assert len(set(names)) == 3 and lines[0].startswith(f"member {names[0]}: epoch 0 of 80, loss")
    predictions = found.predictions(inputs(dtype))
    np.testing.assert_allclose(predictions.sum(axis=-1), 1, rtol=1e-5)
    one = jax.nn.softmax(problem.loss.logits(found.params(1), jnp.asarray(inputs(dtype))))
    np.testing.assert_allclose(predictions[1], one, rtol=1e-4, atol=1e-6)
    scores = found.scores(inputs(dtype), IMAGES.test_labels)
    right = predictions.mean(axis=0).argmax(axis=-1) == IMAGES.test_labels
    assert scores.accuracy == pytest.approx(right.mean())
    matrix = found.disagreement(inputs(dtype))
    assert matrix.shape == (3, 3) and (matrix == matrix.T).all() and not np.diag(matrix).any()
    # Every member is paid for, and so are the candidates that were not trained.
    assert found.work >= sum(member.work for member in found.members)
    noise = np.random.default_rng(0).uniform(size=inputs(dtype).shape).astype(dtype)
    assert 0 <= found.auroc(inputs(dtype), noise) <= 1


def test_the_same_call_gives_the_same_members():
    one, two = (rr.ensemble(small_problem(), 2, finish=train(epochs=2)) for _ in range(2))
    for a, b in zip(one.members, two.members, strict=True):
        assert a.name == b.name
        np.testing.assert_array_equal(a.x, b.x)


def test_a_deep_ensemble_under_the_same_budget():
    found = rr.ensemble(small_problem(), 2, finish=train())
    alike = found.deep()
    assert len(alike) == 2 and alike.members[0].name == "fresh 0"
    more = found.deep(budget=4 * alike.work)
    assert len(more) > 2 and more.work <= 4 * alike.work
    np.testing.assert_array_equal(more.members[0].x, alike.members[0].x)
    table = found.compare(inputs(), IMAGES.test_labels)
    lines = table.split("\n")
    assert lines[4].startswith("| deep ensemble, equal budget | ")
    assert all(" deep ensemble, equal " in line and ": the claim " in line for line in lines[5:])
    assert len(lines) == 7
    with pytest.raises(ValueError, match="`shifted` must have the shape of `inputs`"):
        found.compare(inputs(), IMAGES.test_labels, shifted=inputs()[:3])


def test_members_are_picked_for_diversity():
    # Points on a line, two of them nearly the same: these are not both among the first three.
    places = np.array([0.0, 0.01, 1.0, 0.5])
    assert farthest_first(np.abs(places[:, None] - places[None])) == [0, 2, 3, 1]
    found = rr.ensemble(small_problem(), 4, finish=train(epochs=3))
    two = found.pick(2, inputs())
    matrix = found.disagreement(inputs())
    assert len(two) == 2 and two.members[0].name == found.members[0].name
    assert two.disagreement(inputs())[0, 1] == matrix[0].max()


def test_copies_are_not_picked():
    problem = small_problem()

    class Copies(AlongRidges):
        def __call__(self, problem, key):
            ridges = AlongRidges()(problem, key)
            first, other = next(ridges), next(ridges)
            yield from (Beginning(f"copy {number}", first.x) for number in range(3))
            yield other

    made = rr.ensemble(problem, 2, finish=train(epochs=1), begin=Copies())
    assert [one.name for one in made.members] == ["copy 0", "1+"]


# --- what goes wrong


class Poisoned(eqx.Module):
    """The loss of a classifier, not a number where a bias is positive beyond a bound."""

    inner: eqx.Module
    bound: float

    def __call__(self, params, images, labels):
        loss = self.inner(params, images, labels)
        return jnp.where(params[-1]["bias"][0] > self.bound, jnp.nan, loss)

    def logits(self, params, images):
        return self.inner.logits(params, images)


def poisoned_beginnings(*signs):
    """Beginnings whose first output bias is pulled up, or not."""

    def begin(problem, key):
        for number, is_bad in enumerate(signs):
            params = problem.unravel(next(Fresh()(problem, jax.random.fold_in(key, number))).x)
            params[-1]["bias"] = params[-1]["bias"].at[0].set(3.0 if is_bad else 0.0)
            yield Beginning(f"start {number}", problem.ravel(params))

    return begin


def poisoned():
    problem = small_problem()
    return rr.Problem(Poisoned(problem.loss, 2.0), problem.start, *problem.args)


def test_a_member_that_meets_nan_is_dropped_named_and_replaced():
    begin = poisoned_beginnings(False, True, False, False)
    found = rr.ensemble(poisoned(), 3, finish=train(epochs=2), begin=begin)
    assert [member.name for member in found.members] == ["start 0", "start 2", "start 3"]
    assert found.dropped == {"start 1": "the loss was no longer finite in epoch 0"}
    assert np.isfinite(found.predictions(inputs())).all()


def rising(problem, key):
    """The second one trains well at first, and then leaves the region where there is a loss."""
    for number, bias in enumerate((0.0, 1.9, 0.0)):
        params = problem.unravel(next(Fresh()(problem, jax.random.fold_in(key, number))).x)
        params[-1]["bias"] = params[-1]["bias"].at[0].set(bias)
        yield Beginning(f"start {number}", problem.ravel(params))


def test_nan_in_mid_training():
    problem = small_problem()
    # All labels are 0, so that training raises this bias: at 0.02 a step it passes 2.0 in time.
    zeros = jnp.zeros_like(problem.args[1])
    problem = rr.Problem(Poisoned(problem.loss, 2.0), problem.start, problem.args[0], zeros)
    found = rr.ensemble(problem, 2, finish=train(epochs=4), begin=rising)
    (name,) = found.dropped
    assert name == "start 1" and "no longer finite in epoch" in found.dropped[name]
    assert not found.dropped[name].endswith("epoch 0")
    assert [member.name for member in found.members] == ["start 0", "start 2"]


def test_random_initialisations_take_the_places_that_are_left():
    begin = poisoned_beginnings(False, True)
    finish = train(epochs=1)
    with pytest.warns(UserWarning, match="`begin` has 2 beginnings for 3 members; the others"):
        found = rr.ensemble(poisoned(), 3, finish=finish, begin=begin)
    assert [member.name for member in found.members] == ["start 0", "fresh 0", "fresh 1"]
    assert [member.how for member in found.members[1:]] == 2 * ["a random initialisation"]
    assert set(found.dropped) == {"start 1"}


def test_an_ensemble_has_as_many_members_as_were_asked_for():
    # Two classes have one ridge: both ways, then random initialisations.
    images = IMAGES.train_images[:, ::2, ::2].astype(np.float32)
    problem = classifier(images, IMAGES.train_labels % 2, widths=(3,), init_scale=1e-3)
    with pytest.warns(UserWarning, match=r"`begin` has \d+ beginnings for 12 members"):
        found = rr.ensemble(problem, 12, finish=train(epochs=1))
    names = [member.name for member in found.members]
    assert len(set(names)) == len(found) == 12 and "0+" in names and "fresh 0" in names
    text = str(found)
    assert all(f"| {member.name} | {member.how} |" in text for member in found.members)
    assert "ridge 0 (eigenvalue -" in text


def test_a_start_without_negative_curvature():
    problem = small_problem()
    trained = rr.ensemble(problem, 1, finish=train()).members[0]
    flat = rr.Problem(Bowl(problem.loss), problem.start, *problem.args)
    with pytest.warns(UserWarning, match="for `problem.start` has no negative curvature"):
        found = rr.ensemble(flat, 2, finish=train(epochs=1))
    assert [member.name for member in found.members] == ["fresh 0", "fresh 1"]
    assert trained.name == "0+"


class Bowl(eqx.Module):
    inner: eqx.Module

    def __call__(self, params, images, labels):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    def logits(self, params, images):
        return self.inner.logits(params, images)


def test_a_target_that_is_missed_is_said_and_trained_on():
    with pytest.warns(UserWarning, match=r"2 of 2 members missed the target: .* at most 1.2 was"):
        found = rr.ensemble(small_problem(), 2, finish=train(epochs=2, target=1.2))
    assert str(found).count(", missed the target") == 2 and found.missed() in str(found)
    more = found.train_on(80)
    assert not more.missed() and all(member.is_at_target for member in more.members)
    assert [len(one.history["loss"]) > 3 for one in more.members] == [True, True]
    assert more.work > found.work and more.work >= sum(one.work for one in more.members)
    table = found.compare(inputs(), IMAGES.test_labels)
    assert "this ensemble: 2 of 2 members missed the target" in table


def test_where_no_loss_stays_finite_it_is_said():
    problem = small_problem()
    nowhere = rr.Problem(Poisoned(problem.loss, -np.inf), problem.start, *problem.args)
    with pytest.raises(ValueError, match="must stay finite in training, but only 0 of 6"):
        rr.ensemble(nowhere, 2, finish=train(epochs=1), begin=poisoned_beginnings(True, True))


def test_parameters_that_are_not_finite_are_not_trained():
    def begin(problem, key):
        yield Beginning("lost", problem.x0 * jnp.nan)
        yield from Fresh()(problem, key)

    two = rr.ensemble(small_problem(), 1, finish=train(epochs=1), begin=begin)
    assert two.dropped == {"lost": "the loss was no longer finite in epoch 0"}


def test_an_interrupted_ensemble_goes_on(tmp_path):
    finish = train(epochs=3)
    kept = dataclasses.replace(finish, folder=str(tmp_path))
    whole = rr.ensemble(small_problem(), 2, finish=finish)
    lines = []

    def stop(line):
        lines.append(line)
        if len(lines) == 6:  # in the second member
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rr.ensemble(small_problem(), 2, finish=kept, progress=stop)
    again = list[str]()
    found = rr.ensemble(small_problem(), 2, finish=kept, progress=again.append)
    assert len(again) < 8  # what was done is not repeated
    for one, two in zip(found.members, whole.members, strict=True):
        np.testing.assert_array_equal(one.x, two.x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": 1}, "`problem` must be a Problem, not 1"),
        ({"k": 0}, "`k` must be a whole number of at least 1, not 0"),
        ({"apply": 3}, r"`apply` must be callable as apply\(params, inputs\), not 3"),
        ({"apply": lambda p, x: x[:, 0, 0]}, r"must return logits of shape \(256, classes\)"),
        ({"finish": rr.Descend()}, "`finish` must be a Train, not Descend"),
        ({"begin": None}, r"`begin` must be callable as begin\(problem, key\), not None"),
        ({"budget": -1}, "`budget` must be positive, not -1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    given = {"problem": small_problem(), "k": 2, "finish": train(epochs=1), **arguments}
    with pytest.raises(ValueError, match=message):
        rr.ensemble(given.pop("problem"), given.pop("k"), **given)


def test_labels_out_of_range_are_refused_before_any_training():
    problem = small_problem()
    wrong = rr.Problem(problem.loss, problem.start, problem.args[0], problem.args[1] + 5)
    with pytest.raises(ValueError, match="`labels` must be from 0 to 9, but they go from 5 to 14"):
        rr.ensemble(wrong, 2)
    with pytest.raises(ValueError, match="`apply` must be given as apply"):
        rr.ensemble(rr.Problem(lambda p, x: jnp.sum(p * x), jnp.zeros(2), jnp.ones(2)), 2)


def test_bad_beginnings_are_refused():
    for make, message in [
        (lambda: AlongRidges(rider=3), "`rider` must be a Rider, not 3"),
        (lambda: AlongRidges(stretch=0), "`stretch` must be positive, not 0"),
        (lambda: RandomDirections(-1.0), "`length` must be positive, not -1.0"),
        (lambda: Fresh(3), r"`init` must be callable as init\(key\), not 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    wrong = Fresh(lambda key: jnp.zeros(3))(wells(2), jax.random.key(0))
    with pytest.raises(ValueError, match=r"`init` must return 2 parameters, .* not 3"):
        next(wrong)


# --- what it costs

EXECUTED = Counter[str]()


def tell(what, operand):
    """Counts when the program runs; in a `vmap` once for each lane in which the operand differs."""
    jax.debug.callback(lambda _: EXECUTED.update([what]), operand)


@jax.custom_vjp
def watched(weights):
    return weights


@jax.custom_jvp
def watched_gradient(gradient):
    return gradient


@watched_gradient.defjvp
def _(primals, tangents):
    tell("products", tangents[0])
    return primals[0], tangents[0]


watched.defvjp(lambda weights: (weights, None), lambda _, grad: (watched_gradient(grad),))


class Watched(eqx.Module):
    """Counts passes through the loss, and products with its Hessian."""

    inner: eqx.Module

    def __call__(self, params, images, labels):
        tell("passes", params[0]["weights"])
        first = params[0] | {"weights": watched(params[0]["weights"])}
        return self.inner([first, *params[1:]], images, labels)

    def logits(self, params, images):
        return self.inner.logits(params, images)


def executed(call):
    EXECUTED.clear()
    result = call()
    jax.effects_barrier()
    return result, EXECUTED["passes"], EXECUTED["products"]


def check_cost(found, passes, products):
    # The products of a spectrum share one pass.
    num_spectra = found.cost.hvps // 40
    assert passes == found.cost.values + found.cost.gradients + num_spectra
    assert products == found.cost.hvps


@pytest.mark.parametrize("num_classes", [2, 10])
def test_the_cost_is_what_was_executed(num_classes):
    # Two classes have one ridge: a second spectrum looks for more, and there are none.
    problem = small_problem(widths=(3,), labels=IMAGES.train_labels % num_classes)
    problem = rr.Problem(Watched(problem.loss), problem.start, *problem.args)
    for k, epochs in product((1, 2), (1, 3)):
        found, *counts = executed(partial(rr.ensemble, problem, k, finish=train(epochs=epochs)))
        check_cost(found, *counts)
        num_spectra = 2 if (num_classes, k) == (2, 2) else 1
        assert found.cost.hvps == num_spectra * 40
    more, *further = executed(partial(found.train_on, 1))
    check_cost(more, *np.add(counts, further))
    twice, *counts = executed(partial(rr.ensemble, problem, 1, finish=train(epochs=1), budget=1e5))
    check_cost(twice, *counts)
    assert len(twice) > 2


def test_members_that_are_dropped_are_paid_for():
    problem = poisoned()
    problem = rr.Problem(Watched(problem.loss), problem.start, *problem.args)
    begin, made = poisoned_beginnings(True, False, False), []

    def noted(problem, key):
        for one in begin(problem, key):
            made.append(one.name)
            yield one

    found, *counts = executed(partial(rr.ensemble, problem, 1, finish=train(epochs=1), begin=noted))
    check_cost(found, *counts)
    assert list(found.dropped) == ["start 0"] and found.members[0].name == "start 1"
    assert found.cost.values > found.members[0].cost.values
    assert made == ["start 0", "start 1"]  # none that nobody asked for
