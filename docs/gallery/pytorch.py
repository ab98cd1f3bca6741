"""Search a PyTorch module as it is.

The module and its data stay with PyTorch; gradients and Hessian-vector products are its own. What
comes back is a state dictionary for each solution.
"""

import jax
import torch
from matplotlib.figure import Figure

import ridgerider as rr
import ridgerider.torch

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

inputs = torch.linspace(-2, 2, 24)[:, None]
targets = torch.sin(2.5 * inputs)
module = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
for parameter in module.parameters():
    torch.nn.init.zeros_(parameter)  # a saddle

problem = ridgerider.torch.problem(module, torch.nn.functional.mse_loss, inputs, targets)
result = rr.search(problem, max_rides=8, max_depth=2)


def outputs(params):
    module.load_state_dict({name: torch.as_tensor(leaf) for name, leaf in params.items()})
    with torch.no_grad():
        return module(inputs)[:, 0].numpy()


functions = {f"{one.loss:.2g}": one for one in result.solutions()[::-1]}
for loss, one in functions.items():
    print(one.fingerprint, one.kind, loss, one.doubt)

figure = Figure(figsize=(6.4, 4), layout="constrained")
ax = figure.subplots()
ax.plot(inputs[:, 0], targets[:, 0], "o", color="#9AA3AD", markersize=4, label="data")
for loss, one in functions.items():
    ax.plot(inputs[:, 0], outputs(one.params), label=f"{one.fingerprint}: loss {loss}")
ax.set(xlabel="input", ylabel="output", title="solutions of a PyTorch module")
ax.legend(frameon=False, fontsize=8)
figure.savefig("pytorch.png", dpi=120)
