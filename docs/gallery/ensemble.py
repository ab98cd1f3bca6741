"""An ensemble whose members differ.

Networks from different random starts often make the same mistakes. Here each member sets out along
another ridge of one saddle, and where members disagree the ensemble is unsure.
"""

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider.data import digits
from ridgerider.problems import classifier

jax.config.update("jax_enable_x64", True)

images = digits().some(512, 256)
problem = classifier(images.train_images, images.train_labels, widths=(12,), init_scale=1e-3)
train = rr.Train(optax.adam(0.02), rr.Batches(64), epochs=40, target=0.2)
members = rr.ensemble(problem, 4, finish=train)

apart = np.asarray(members.disagreement(images.test_images))
print(
    f"{len(members)} members; they disagree on {apart[np.triu_indices(4, 1)].mean():.1%} of digits"
)

figure = Figure(figsize=(4.6, 3.8), layout="constrained")
ax = figure.subplots()
shown = ax.imshow(100 * apart, cmap="Blues", vmin=0)
ax.set(title="how often two members disagree", xlabel="member", ylabel="member")
ax.set(xticks=range(len(members)), yticks=range(len(members)))
figure.colorbar(shown, label="% of unseen digits")
figure.savefig("ensemble.png", dpi=120)
