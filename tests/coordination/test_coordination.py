import dataclasses
import importlib
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider import dice
from ridgerider.coordination import (
    RIDER,
    PayoffGame,
    card_game,
    coordinate,
    equilibria,
    hanabi,
    other_play,
    play_alone,
    signalling,
    symmetry_report,
)
from ridgerider.coordination._coordinate import CLUSTER_TOLERANCE, index_confidence
from ridgerider.coordination._game import (
    cross_play,
    game_problem,
    means,
)
from ridgerider.problems import Levers, levers
from ridgerider.problems.levers import ORIGINAL, PAPER, lever_eigenvalues, lever_saddle
from ridgerider_experiments.levers import deployed, greedy


@pytest.fixture(scope="module")
def paper():
    return coordinate(Levers(PAPER), num_runs=8, members="all")


@eqx.filter_jit
def look(problem):
    return problem.value(problem.x0), problem.grad(problem.x0), problem.hessian(problem.x0)


# --- the games


@pytest.mark.parametrize(("payoffs", "num_players"), [(PAPER, 2), (ORIGINAL, 2), (PAPER[5:], 3)])
def test_saddle_and_spectrum_in_closed_form(payoffs, num_players):
    problem = levers(payoffs, num_players)
    value, grad, hessian = look(problem)
    assert np.abs(grad).max() < 1e-15 and value < 0
    expected = lever_eigenvalues(payoffs, num_players)
    np.testing.assert_allclose(np.linalg.eigvalsh(hessian), expected, atol=1e-14)


def worn_levers(first=(1.0, 1.0, 0.9), worn=0.7):
    """Two rounds of levers, of which the one that paid first is worn; both see which one paid."""

    def play(draw, act):
        one, two = act(0, "first", 3), act(1, "first", 3)
        paid = one if one == two else None
        again, other = act(0, paid, 3), act(1, paid, 3)
        second = (worn if again == paid else 1.0) if again == other else 0.0
        return second + (first[one] if one == two else 0.0)

    return PayoffGame.from_play(play)


def two_rounds(game, first, second):
    """Logits of a game of two rounds; `second` has a row for each lever that paid, and for none."""
    return tuple(
        jnp.stack(
            [
                first[k] if seen == "first" else second[k][-1 if seen is None else seen]
                for seen in row
            ]
        )
        for k, row in enumerate(game.payoff.observations)
    )


def test_the_game_of_two_rounds_by_counting():
    # Every joint choice of pure policies, against the formula on nearly pure softmax policies.
    payoffs = (1.0, 0.8, 0.6)
    game, random = worn_levers(payoffs, worn=0.5), np.random.default_rng(0)
    play = eqx.filter_jit(lambda a, b: game.cross_play(a, b))
    for _ in range(20):
        first, second = random.integers(3, size=2), random.integers(3, size=(2, 4))
        params = two_rounds(game, 60 * jnp.eye(3)[first], 60 * jnp.eye(3)[second])
        is_match = first[0] == first[1]
        seen = first[0] if is_match else 3
        payoff = payoffs[first[0]] if is_match else 0.0
        if second[0, seen] == second[1, seen]:
            payoff += 0.5 if second[0, seen] == seen else 1.0
        assert float(play(params, params)) == pytest.approx(float(payoff), abs=1e-12)


def test_the_saddle_of_two_rounds():
    """In closed form: in each round and after each history that of a lever game.

    A lever's payoff in the first round counts with what it makes of the second.
    """
    game, payoffs = worn_levers(), jnp.array([1.0, 1.0, 0.9])
    paid = jnp.ones((4, 3)) - 0.3 * jnp.eye(4, 3)
    value = 1 / jnp.sum(1 / paid, axis=1)
    first = lever_saddle(payoffs + value[:-1] - value[-1])
    saddle = two_rounds(game, first, jnp.stack([-jnp.log(paid)] * 2))
    assert float(game.self_play(saddle)) == pytest.approx(0.6408, abs=1e-4)
    _, grad, hessian = look(game_problem(game).with_start(saddle))
    assert np.abs(grad).max() < 1e-15 and np.linalg.eigvalsh(hessian)[0] < -0.1


def test_cross_play_is_a_loop_over_runs():
    game = Levers((1.0, 0.7, 0.4), num_players=3)
    policies = jax.random.normal(jax.random.key(0), (3, *game.start.shape))
    scores = np.asarray(cross_play(game, policies))
    p = np.asarray(jax.nn.softmax(policies))
    for i, j, k in np.ndindex(3, 3, 3):
        expected = np.sum(p[i, 0] * p[j, 1] * p[k, 2] * np.asarray(game.payoffs))
        assert scores[i, j, k] == pytest.approx(expected, abs=1e-14)
    mixed = [scores[i, j, k] for i, j, k in np.ndindex(3, 3, 3) if len({i, j, k}) == 3]
    alone = [scores[i, i, i] for i in range(3)]
    found = means(scores)
    assert found["with_strangers"] == pytest.approx(np.mean(mixed))
    assert found["self_play"] == pytest.approx(np.mean(alone))


# --- the paper's game


def test_all_runs_find_the_saddle(paper):
    for saddle in paper.saddles:
        found = [c.eigenvalue for c in saddle.clusters for _ in range(c.multiplicity)]
        np.testing.assert_allclose(found, lever_eigenvalues(PAPER), atol=1e-8)


def test_ridge_0_is_deployed(paper):
    assert [one.fingerprint for one in paper.candidates[:5]] == ["0", "1", "2", "3", "3.1"]
    best = paper.best
    assert best.fingerprint == "0" and best.multiplicity == 1 and best.confidence > 0.999
    assert best.cross_play == pytest.approx(0.6, abs=1e-3)
    assert set(greedy(best).ravel()) == {9} and best.sign_confidence > 0.999
    assert np.argmax(paper.params, axis=1).tolist() == [9, 9]


def test_symmetric_ridges_are_recognised(paper):
    pair, group = paper.candidates[1], paper.candidates[3:]
    assert set(greedy(pair).ravel()) == {7, 8} and pair.sign_confidence == 0
    assert pair.self_play == pytest.approx(0.8, abs=1e-3) and pair.cross_play < 0.7
    assert [one.multiplicity for one in group] == [6] * 6
    assert all(one.confidence == 0 and one.cross_play < 0.5 for one in group)
    assert all(one.self_play == pytest.approx(1.0, abs=1e-3) for one in group)
    # Players of one run agree, whatever lever it is.
    assert all((actions[:, 0] == actions[:, 1]).all() for actions in map(greedy, group))


def test_the_scores_are_those_of_the_policies(paper):
    assert len(paper.candidates) == 9
    for k, one in enumerate(paper.candidates):
        p = np.asarray(jax.nn.softmax(one.policies))
        expected = np.einsum("al,bl,l->ab", p[:, 0], p[:, 1], np.asarray(PAPER))
        np.testing.assert_allclose(paper.candidates[k].scores, expected, atol=1e-14)
        assert one.cross_play == pytest.approx(expected.mean())
        assert one.self_play == pytest.approx(np.trace(expected) / 8)
    assert paper.cost.hvps > 0 and paper.cost.gradients > 0


def test_the_symmetry_report(paper):
    report = paper.symmetry
    assert report.unique == (0, 2) and [one.index for one in report.groups] == [1, 3]
    # Lever i is the parameters i and 10 + i: two of them swap, seven permute.
    assert report.groups[0].sets == ((7, 17), (8, 18))
    assert report.groups[1].sets == tuple((i, 10 + i) for i in range(7))
    # n - m (N - 2) = 20 - 2 * 5, and the two zero eigenvalues coincide as well.
    assert report.max_distinct == 10 and report.num_distinct == 9


def test_equal_looking_parameters_that_are_no_symmetry():
    # Two levers: every eigenvector is (1, -1), but the payoffs differ.
    report = symmetry_report(levers((1.0, 0.5)))
    assert report.unique == (0,) and report.groups == () and report.max_distinct == 4


# --- what can go wrong, and does


@pytest.fixture
def rides_from_the_start(monkeypatch):
    """Without a search for the saddle."""
    module = importlib.import_module("ridgerider.coordination._saddles")

    def stay(*args, **settings):
        return rr.find_saddle(*args, **{**settings, "noise": 0.0, "max_steps": 0})

    monkeypatch.setattr(module, "find_saddle", stay)


def test_the_uniform_policy_is_no_saddle(rides_from_the_start):
    # So there is a bonus for entropy, with which some mixed policies are one.
    assert coordinate(Levers((1.0, 1.0, 0.8)), num_runs=2).bonus > 0


def test_a_basis_that_all_runs_share_is_an_accident(rides_from_the_start):
    # At the same saddle to the last bit, all runs project the same fixed vectors onto the six-fold
    # eigenspace: they agree on a 1.0 lever, as strangers never would.
    game = StartsAtSaddle(jnp.asarray(PAPER), 2)
    settings = {"num_runs": 4}
    spectrum = rr.DenseSpectrum(gauge="gradient", cluster_tolerance=CLUSTER_TOLERANCE)
    accident = coordinate(game, rider=dataclasses.replace(RIDER, spectrum=spectrum), **settings)
    assert accident.candidates[3].cross_play == pytest.approx(1.0, abs=1e-3)
    assert accident.best.fingerprint == "3"
    honest = coordinate(game, **settings)
    assert honest.candidates[3].cross_play < 0.7


class StartsAtSaddle(Levers):
    @property
    def start(self):
        return lever_saddle(self.payoffs)


def test_confidence_is_gap_against_spread():
    def clusters(*eigenvalues):
        return [rr.types.Cluster(one, 1, 0.0, gap=0.3) for one in eigenvalues]

    assert index_confidence(clusters(-1.0, -1.0)) == 1
    assert index_confidence(clusters(-1.0, -1.1)) == pytest.approx(0.75)
    assert index_confidence([rr.types.Cluster(-1.0, 2, 0.0, gap=0.3)]) == 0


# --- other games


def test_the_original_game():
    result = coordinate(Levers(ORIGINAL), num_runs=4)
    assert result.best.cross_play == pytest.approx(0.9, abs=1e-3)
    assert [one.multiplicity for one in result.candidates] == [1, 8]
    alone = play_alone(Levers(ORIGINAL), num_runs=50)
    # Chance is 1/50 + (49/50)/9 = 0.129; 50 throws of nine levers spread by about 0.007. A start
    # may happen to lie in the valley of the 0.9 lever.
    assert alone.self_play > 0.99 and 0.11 < alone.cross_play < 0.17


def test_other_play_knows():
    game = Levers((1.0, 1.0, 1.0, 0.8, 0.8, 0.6))
    told = other_play(game, game.symmetries(), num_runs=4)
    assert told.cross_play == pytest.approx(0.6, abs=1e-2)
    permutation = game.symmetries()[3]
    params = jax.random.normal(jax.random.key(0), game.start.shape)
    moved = params.ravel()[permutation].reshape(params.shape)
    assert float(game.self_play(moved)) == pytest.approx(float(game.self_play(params)), abs=1e-15)


@pytest.mark.long
def test_two_rounds_need_two_ridges():
    result = coordinate(worn_levers(), num_runs=3, max_depth=2, max_ridges=1)
    one, two = result.candidates
    assert (one.fingerprint, two.fingerprint) == ("0", "0 0")
    assert two.cross_play == pytest.approx(1.6, abs=2e-3) == two.self_play
    assert {path.depth for path in two.ridden} == {2} and two.confidence > 0.999


@pytest.mark.long
def test_payoff_lists_with_ties():
    random = np.random.default_rng(7)
    allowed = {"best", "best reached", "tied levers pay more even by chance"}
    for seed in range(8):
        payoffs = np.append(random.choice([0.6, 0.8, 1.0], size=4), 0.5 + 0.01 * seed)
        outcome = deployed({"payoffs": payoffs.tolist(), "num_runs": 6, "seed": seed})
        if outcome["kind"] not in allowed:  # six runs may coincide by luck, 25 hardly
            outcome = deployed({"payoffs": payoffs.tolist(), "num_runs": 25, "seed": seed})
        assert outcome["kind"] in allowed, outcome


@pytest.mark.parametrize(
    ("payoffs", "best"),
    [((0.2, 0.3, 0.6, 0.6, 1.0), 1.0), ((0.2, 0.3, 0.3, 0.4, 0.5, 0.9, 0.9), 0.5)],
)
def test_lists_whose_best_untied_lever_was_missed(payoffs, best):
    found = coordinate(Levers(payoffs), num_runs=10).best  # with few, tied levers meet by luck
    assert found.with_strangers == pytest.approx(best, abs=1e-3) == found.self_play


def test_a_seed_decides_everything():
    small = {"num_runs": 2}
    one, two, three = (coordinate(Levers(PAPER), seed=seed, **small) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.best.policies, two.best.policies)
    assert not np.allclose(one.best.policies, three.best.policies)


# --- bad input


class Slope(Levers):
    def cross_play(self, *params):
        return jnp.sum(params[0][0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Levers((1.0,)), "`payoffs` must be a list of at least two numbers"),
        (lambda: Levers((1.0, np.inf)), "`payoffs` must be .* finite and positive"),
        (lambda: Levers((1.0, np.nan)), "`payoffs` must be .* finite and positive"),
        (lambda: Levers((1.0, 0.5), num_players=1), "`num_players` must be a whole number"),
        (lambda: coordinate(Levers(), num_runs=1), "`num_runs` must be .* at least 2, not 1"),
        (lambda: coordinate(Levers(num_players=3), num_runs=2), "at least 3, not 2"),
        (lambda: coordinate(3, num_runs=2), "`game` must be a Game with start"),  # type: ignore[arg-type]
        (
            lambda: coordinate(Slope(jnp.asarray(PAPER), 2), num_runs=2),
            "run 0 found none, nor did any with a bonus for entropy. No stationary point",
        ),
        (lambda: coordinate(Levers(), max_depth=0), "`max_depth` must be a whole number"),
        (
            lambda: other_play(Levers(), np.zeros((2, 20), int)),
            "`symmetries` must hold permutations of 0 to 19",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("payoffs", [(0.1, 0.5, 0.6, 0.8), (0.2, 0.5, 0.9, 1.0)])
def test_a_lever_that_pays_far_less_hides_no_saddle(payoffs):
    """On the way to high entropy the gradient is least where it is not zero."""
    game = Levers(payoffs)
    for seed in range(3):
        saddle = rr.find_saddle(
            game_problem(game),
            lambda params: -game.entropy(params),
            noise=0.01,
            num_starts=1,
            seed=seed,
        )
        assert saddle.is_strict, saddle


# --- payoff functions


def test_a_game_that_is_played_against_counting():
    table = np.random.default_rng(1).normal(size=(2, 2, 3, 2))
    game, random = card_game(table), np.random.default_rng(0)
    one, two = (
        tuple(jnp.asarray(random.normal(size=shape)) for shape in game.shapes) for _ in "ab"
    )
    first, second = np.asarray(jax.nn.softmax(one[0])), np.asarray(jax.nn.softmax(two[1]))
    (cards, seen), paid = (list(rows) for rows in game.payoff.observations), 0.0
    for card, other, action, reply in np.ndindex(table.shape):
        chance = first[cards.index(card), action] * second[seen.index((other, action)), reply] / 4
        paid += chance * table[card, other, action, reply]
    assert float(game.cross_play(one, two)) == pytest.approx(paid)
    assert float(game.self_play(one)) == pytest.approx(float(game.cross_play(one, one)))
    assert float(game.entropy(game.start)) == pytest.approx(2 * np.log(3) + 6 * np.log(2))


def bluff(draw, act):
    """A player may stop at once, or another one replies; payoffs of their own."""
    card = draw(3)
    if act(0, card, 2):
        return 0.5, -0.5
    return (1.0, -1.0) if act(1, "called", 3) == card else (-1.0, 1.0)


def test_samples_agree_with_all_episodes():
    exact = PayoffGame.from_play(bluff)
    params = (jnp.array([[0.3, -0.2], [0.0, 0.1], [0.5, 0.0]]), jnp.array([[0.2, 0.0, -0.4]]))
    order = [exact.payoff.observations[0].index(card) for card in range(3)]
    expected = np.asarray(exact.self_play((params[0][jnp.argsort(jnp.asarray(order))], params[1])))
    for seed in range(3):
        some = PayoffGame.from_play(bluff, num_samples=4000, seed=seed)
        rows = np.array([some.payoff.observations[0].index(card) for card in range(3)])
        given = (params[0][np.argsort(rows)], params[1])
        error = np.asarray(some.standard_error(given))
        assert (np.abs(some.self_play(given) - expected) < 4 * error).all()
        assert (error < 0.03).all()


def test_derivatives_of_samples_are_those_of_dice():
    """At uniform policies, from which the samples are drawn."""
    game = PayoffGame.from_play(lambda draw, act: bluff(draw, act)[0], num_samples=500)
    moves, paid = game.payoff.moves, game.payoff.payoffs
    starts, widths = jnp.array([0, 6]), jnp.array([2, 3])

    class Tables:
        sample = None  # what is estimated from trajectories asks for none

        def log_probabilities(self, params, trajectories):
            logs = jnp.concatenate(
                [
                    jax.nn.log_softmax(params[:6].reshape(3, 2)).ravel(),
                    jax.nn.log_softmax(params[6:]),
                    jnp.zeros(1),
                ]
            )
            player, row, action = jnp.moveaxis(trajectories.states, 2, 0)
            place = starts[player % 2] + row * widths[player % 2] + action
            return logs[jnp.where(player == 2, 9, place)]

    rewards = jnp.zeros(moves.shape[:2]).at[:, -1].set(paid)
    paths = dice.Trajectories(moves, moves[..., 2], rewards, jnp.ones(moves.shape[:2]))
    advantages = dice.Dice().advantages(paths, jnp.zeros(moves.shape[:2]))
    for derivative in (jax.grad, jax.hessian):
        found = dice.estimate(derivative, jnp.zeros(9), Tables(), paths, advantages)
        flat, unravel = jax.flatten_util.ravel_pytree(game.start)
        ours = derivative(lambda x, unravel=unravel: -game.self_play(unravel(x)))(flat)
        np.testing.assert_allclose(ours, found.mean, atol=1e-12)


def test_hanabi_by_a_search_of_its_tree():
    """The best reply of the second player to each policy of the first, by plain Python."""
    game, best = hanabi(), 0.0
    for policy in itertools.product(range(3), repeat=4):  # by the card that is seen
        worlds = {}  # by what the second player sees, what its actions pay
        for first, second, third, _ in itertools.permutations(range(4)):
            action = policy[second]
            if action == 0 and first % 2:
                continue  # a 2 does not fit: nothing
            fits = second % 2 == 0 or (action == 0 and second // 2 == first // 2)
            hand = third if action == 0 else first
            event = first if action == 0 else divmod(second, 2)[action - 1]
            earned = float(action == 0)
            pays = np.array([(earned + 1) * fits, earned, earned])
            seen = (hand, action, event)
            worlds[seen] = worlds.get(seen, 0) + pays / 24
        best = max(best, sum(pays.max() for pays in worlds.values()))
    assert game.optimum() == pytest.approx(best)


def test_a_game_with_nothing_to_choose():
    """One action is best whatever the other does: no bonus for entropy makes a saddle."""
    game = PayoffGame(lambda one, two: one[0, 0] * two[0, 1], ((1, 2), (1, 2)))
    result = coordinate(game, num_runs=3)
    assert [one.fingerprint for one in result.candidates] == ["none"] and result.bonus > 0
    assert result.best.with_strangers == pytest.approx(1, rel=1e-2)


@pytest.mark.long
def test_hanabi_is_played_alike_by_all_runs():
    game = hanabi()
    result = coordinate(game, num_runs=3)
    assert result.best.with_strangers > 0.98 * game.optimum()


def bimatrix(one, two):
    one, two = jnp.asarray(one, float), jnp.asarray(two, float)
    return PayoffGame(
        lambda p, q: jnp.stack([p[0] @ one @ q[0], p[0] @ two @ q[0]]),
        ((1, one.shape[0]), (1, one.shape[1])),
    )


PAPER_WINS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])


@pytest.mark.parametrize(
    ("game", "expected"),
    [
        (  # the battle of the sexes
            bimatrix([[2, 0], [0, 1]], [[1, 0], [0, 2]]),
            [("stable", 2, 1), ("stable", 1, 2), ("unstable", 2 / 3, 2 / 3)],
        ),
        (bimatrix([[3, 0], [5, 1]], [[3, 5], [0, 1]]), [("stable", 1, 1)]),  # prisoners
        (bimatrix([[1, -1], [-1, 1]], [[-1, 1], [1, -1]]), [("neutral", 0, 0)]),  # pennies
        (
            bimatrix([[4, 1], [3, 3]], [[4, 3], [1, 3]]),  # the stag hunt
            [("stable", 4, 4), ("stable", 3, 3), ("unstable", 3, 3)],
        ),
        (bimatrix(PAPER_WINS, PAPER_WINS.T), [("neutral", 0, 0)]),
    ],
)
def test_equilibria_of_textbooks(game, expected):
    found = equilibria(game)
    assert [one.kind for one in found] == [kind for kind, *_ in expected]
    for one, (_, *payoffs) in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.payoffs, payoffs, atol=1e-9)


def test_equilibria_of_a_game_with_private_observations():
    """Nobody gains by any pure policy of its own, and both conventions are among them."""
    game = signalling()
    found = equilibria(game)
    for one in found:
        for number, (observations, actions) in enumerate(game.shapes):
            for rows in itertools.product(np.eye(actions), repeat=observations):
                policies = list(map(jnp.asarray, one.policies))
                policies[number] = jnp.asarray(rows)
                assert float(game.payoff(*policies)) <= one.payoffs[number] + 1e-9
    stable = [one.payoffs[0] for one in found if one.kind == "stable"]
    np.testing.assert_allclose(stable, [0.96, 0.94])
    with pytest.raises(ValueError, match="at most 10000 choices of the actions"):
        equilibria(card_game())


def test_payoffs_of_their_own_are_another_question():
    with pytest.raises(ValueError, match=r"must pay all players alike.*equilibria\(game\)"):
        coordinate(PayoffGame.from_play(bluff), num_runs=2)


def test_optima_by_enumeration():
    assert card_game().optimum() == pytest.approx(10)
    # The cheap signal for the likely state; with costs of 2 nobody signals.
    assert signalling((0.7, 0.3), (0.0, 0.1)).optimum() == pytest.approx(0.97)
    assert signalling((0.7, 0.3), (0.0, 2.0)).optimum() == pytest.approx(0.7)
    levers = PayoffGame(
        lambda one, two: jnp.sum(one * two * jnp.array([[1.0, 0.4]])), ((1, 2), (1, 2))
    )
    assert levers.optimum() == pytest.approx(1)
    with pytest.raises(ValueError, match="at most 1048576 joint policies"):
        PayoffGame(lambda one, two: jnp.sum(one) * jnp.sum(two), ((9, 9), (9, 9))).optimum()


def test_the_optimum_by_all_policies_of_both():
    game, random = card_game(np.random.default_rng(0).normal(size=(2, 2, 2, 2))), []
    for one in itertools.product(np.eye(2), repeat=2):
        for two in itertools.product(np.eye(2), repeat=4):
            random.append(float(game.payoff(jnp.asarray(one), jnp.asarray(two))))
    assert game.optimum() == pytest.approx(max(random))


def test_a_costly_signal_needs_no_argument():
    """The plain game has no saddle inside; with a bonus for entropy all runs find the same one."""
    game = signalling()
    result = coordinate(game, num_runs=3)
    assert result.bonus > 0 and "entropy bonus" in str(result)
    assert result.best.with_strangers > 0.98 * game.optimum()
    assert all(saddle.is_strict for saddle in result.saddles)
    again = coordinate(game, num_runs=2, seed=7)
    assert again.bonus == result.bonus and again.best.fingerprint == result.best.fingerprint


def test_a_costly_signal_in_single_precision():
    """Where an action is about to be given up the gradient looks like zero, and is none."""
    with jax.enable_x64(False):
        result = coordinate(signalling(), num_runs=3)
    assert result.bonus > 0 and result.best.with_strangers > 0.98 * 0.96


@pytest.mark.long
def test_the_card_game_reaches_its_optimum():
    game = card_game()
    best = coordinate(game, num_runs=6).best
    assert best.with_strangers == pytest.approx(game.optimum(), rel=1e-3)


def endless(draw, act):
    return float(sum(act(0, turn, 2) for turn in range(20)) + act(1, 0, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PayoffGame(3, ((1, 2), (1, 2))),  # type: ignore[arg-type]
            r"`payoff` must be callable as payoff\(policy_1",
        ),
        (
            lambda: PayoffGame(jnp.add, ((1, 3), (1, 3))),
            "`payoff` must return a number, or one for",
        ),
        (
            lambda: PayoffGame.from_play(lambda draw, act: act(0, 1, 2) + act(0, 1, 3)),
            "not 2 and 3",
        ),
        (lambda: PayoffGame.from_play(endless), "at most 100000 episodes to enumerate"),
        (lambda: PayoffGame(jnp.add, ((1, 2),)), "`shapes` must be those of two players or more"),
        (
            lambda: card_game(np.zeros((2, 2))),
            "`table` must be an array of numbers of shape .card_1, card_2, action_1",
        ),
    ],
)
def test_bad_payoff_functions(make, message):
    with pytest.raises(ValueError, match=message):
        make()
