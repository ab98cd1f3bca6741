"""Every good policy of a decision tree.

An agent walks left or right at each node, to a leaf worth 10 or -1. Each positive leaf is a policy
of its own, so it can be counted which of them a search finds.
"""

import jax
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider.problems.tree import make_tree

jax.config.update("jax_enable_x64", True)

tree = make_tree(depth=4, seed=0)
rider = rr.Rider(step=rr.Backtracking(0.5), finish=rr.Descend(max_steps=50))
result = rr.search(tree.problem(), rider, max_rides=40)

policies = {}
for one in result.solutions():
    for leaf in tree.solutions(one.params):
        policies.setdefault(leaf, one)
print(f"{len(policies)} of {tree.num_solutions} positive leaves are reached:")
for leaf, one in policies.items():
    print(f"  {leaf:6} by ride {one.fingerprint}, return {-one.loss:.3f}")

figure = Figure(figsize=(7.2, 3.4), layout="constrained")
for ax, (leaf, one) in zip(figure.subplots(1, len(policies)), policies.items(), strict=True):
    tree.draw(ax, one.params)
    ax.set_title(f"{leaf}: {one.fingerprint}", fontsize=9)
figure.savefig("policies.png", dpi=120)
