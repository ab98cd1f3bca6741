"""An atom on a surface: where it rests, and how it hops.

Gold on aluminium, with the effective medium theory of ASE; the lower two layers are fixed. All
hollows of the surface are one minimum, and gold hops from one to the next over the bridge between
them. The free energies are those of harmonic vibrations.
"""

from ase.build import add_adsorbate, fcc100
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.visualize.plot import plot_atoms
from matplotlib.figure import Figure

import ridgerider.ase

slab = fcc100("Al", size=(2, 2, 3))
add_adsorbate(slab, "Au", 1.7, "hollow")
slab.center(axis=2, vacuum=4.0)
slab.set_constraint(FixAtoms(mask=slab.get_tags() > 1))
slab.calc = EMT()

landscape = ridgerider.ase.explore(slab)
(hollow,), saddles = landscape.minima(), landscape.saddles()
points = [hollow, *saddles[:2]]
free = ridgerider.ase.free_energies(landscape, 300.0, points)
print(f"{len(saddles)} transition states, {landscape.cost.gradients} force calls")
for one, energy in zip(points[1:], free[1:], strict=True):
    height, at_300 = one.loss - hollow.loss, energy - free[0]
    print(f"barrier {height:.3f} eV, free energy at 300 K {at_300:.3f} eV")

figure = Figure(figsize=(7.2, 3.0), layout="constrained")
for ax, one in zip(figure.subplots(1, len(points)), points, strict=True):
    (atoms,) = ridgerider.ase.to_atoms(landscape, [one])
    atoms.wrap()
    plot_atoms(atoms.repeat((2, 2, 1)), ax, rotation="-30x", show_unit_cell=0)
    height = one.loss - hollow.loss
    ax.set_title(f"transition state, {height:.3f} eV" if height else "hollow, 0 eV", fontsize=10)
    ax.set_axis_off()
figure.savefig("adatom.png", dpi=120)
