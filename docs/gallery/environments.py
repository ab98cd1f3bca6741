"""Learn what holds in every hospital, not what holds in one.

Two hospitals, five measurements. The first predicts the label alike in both; the second predicts it
better, but not everywhere. A ridge on which both hospitals agree uses the first alone.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider.environments import Agree, consistent_ridge, from_groups

jax.config.update("jax_enable_x64", True)

random = np.random.default_rng(0)
hospital = np.repeat(["north", "south"], 1000)
y = random.integers(0, 2, 2000)
x = random.normal(size=(2000, 5))
x[:, 0] += 1.0 * (y - 0.5)
x[:, 1] += np.where(hospital == "north", 3.0, 1.0) * (y - 0.5)


def loss(params, x, y):
    logits = jnp.tanh(x @ params["weights"]) @ params["out"]
    return jnp.mean(jax.nn.softplus(logits) - y.astype(x.dtype) * logits)


start = {"weights": jnp.zeros((5, 2)), "out": jnp.zeros(2)}
both = from_groups(loss, start, (jnp.asarray(x), jnp.asarray(y)), hospital)
found = consistent_ridge(both)
print("curvature in each hospital:", np.round(found.eigenvalues, 4))


def used(rider, ridge):
    """How much each measurement is used after a ride."""
    ride = eqx.filter_jit(rider.ride)(both.pooled(), both.x0, ridge, jax.random.key(0))
    return np.abs(np.asarray(both.with_ridden(start, ride.x)["weights"])).sum(axis=1)


steps = {"step": rr.FixedStep(0.1), "max_steps": 9}
steepest = rr.DenseSpectrum()(both.pooled(), both.x0, jax.random.key(0)).ridge(0, 1)
weights = {
    "steepest ridge of the mean": used(rr.Rider(**steps), steepest),
    "ridge that both share": used(rr.Rider(update=Agree(), **steps), found.ridge),
}
for name, row in weights.items():
    print(f"{name}: {np.round(row, 2)}")

figure = Figure(figsize=(6.4, 3.4), layout="constrained")
ax = figure.subplots()
for number, (name, row) in enumerate(weights.items()):
    color = ("#9AA3AD", "#D55E00")[number]
    ax.bar(np.arange(5) + 0.38 * number - 0.19, row, 0.36, label=name, color=color)
ax.set_xticks(range(5), ["alike in both", "better in one", "noise", "noise", "noise"])
ax.set(ylabel="sum of |weights|", title="what each ride uses")
ax.legend(frameon=False, fontsize=8)
figure.savefig("environments.png", dpi=120)
