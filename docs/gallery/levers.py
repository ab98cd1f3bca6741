"""Coordinate with a stranger, without having agreed on anything.

Two players pull one of four levers and are paid if they pull the same. Three pay 1.0 and one 0.8:
the least is the only one of its kind, and the ridge that leads to it has a rank that every player
can find alone.
"""

import jax
import numpy as np
from matplotlib.figure import Figure

from ridgerider.coordination import coordinate, play_alone
from ridgerider.problems import Levers

jax.config.update("jax_enable_x64", True)

game = Levers((1.0, 1.0, 1.0, 0.8))
result = coordinate(game, num_runs=6)
alone = play_alone(game, num_runs=6)
print(result)
print(f"players who trained alone: {alone.cross_play:.2f} with one another")

names = [one.fingerprint for one in result.candidates]
places = np.arange(len(names))
figure = Figure(figsize=(6.4, 3.6), layout="constrained")
ax = figure.subplots()
ax.bar(places, [one.cross_play for one in result.candidates], 0.6, color="#0072B2")
ax.plot(places, [one.self_play for one in result.candidates], "_", color="#D55E00", ms=22, mew=2.5)
ax.axhline(alone.cross_play, color="gray", linestyle=":", label="trained alone, with a stranger")
ax.plot([], [], "_", color="#D55E00", ms=14, mew=2.5, label="with oneself")
ax.set_xticks(places, names)
ax.set(xlabel="ridge", ylabel="average payoff", title="what each ridge earns with a stranger")
ax.legend(frameon=False, fontsize=8)
figure.savefig("levers.png", dpi=120)
