"""Different functions that a small network can learn.

Two hidden units, six weights. Many sets of weights compute the same function; the signature,
what a network answers on a probe set, tells the functions apart.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ridgerider as rr

jax.config.update("jax_enable_x64", True)


def network(params, inputs):
    return jnp.tanh(inputs @ params["in"] + params["bias"]) @ params["out"]


def loss(params, inputs, targets):
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean((network(params, inputs) - targets) ** 2) + 1e-3 * penalty


inputs = jnp.linspace(-2, 2, 24)[:, None]
targets = jnp.sin(2.5 * inputs[:, 0])
start = {"in": jnp.zeros((1, 2)), "bias": jnp.zeros(2), "out": jnp.zeros(2)}
problem = rr.Problem(loss, start, inputs, targets)
result = rr.search(problem, order="best_first", max_rides=40)

probe = jnp.linspace(-2.5, 2.5, 101)[:, None]
functions = result.minima(signature=lambda params: network(params, probe))
print(len(result.minima()), "sets of weights,", len(functions), "functions")
print(functions)

figure = Figure(figsize=(6.4, 4), layout="constrained")
ax = figure.subplots()
ax.plot(inputs[:, 0], targets, "o", color="#9AA3AD", markersize=4, label="data")
for one in functions[:4]:
    answers = np.asarray(network(one.params, probe))
    ax.plot(probe[:, 0], answers, label=f"{one.fingerprint}: loss {one.loss:.3g}")
ax.set(xlabel="input", ylabel="output", title=f"{len(functions)} functions of one network")
ax.legend(frameon=False, fontsize=8)
figure.savefig("own_network.png", dpi=120)
