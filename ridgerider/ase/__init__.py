"""Atoms with any calculator of ASE: `pip install 'ridgerider[ase]'`.

`explore` maps minima and transition states; `problem` is for `rr.search` and everything else.
Energies and forces are the calculator's. An error of the calculator ends the leg that it happens
on, and the run continues.
"""

from ridgerider.ase._bonds import Connected as Connected
from ridgerider.ase._energy import EnergyAndForces as EnergyAndForces
from ridgerider.ase._explore import connect as connect
from ridgerider.ase._explore import explore as explore
from ridgerider.ase._explore import resume as resume
from ridgerider.ase._files import movie as movie
from ridgerider.ase._files import path_movie as path_movie
from ridgerider.ase._files import read_pathsample as read_pathsample
from ridgerider.ase._files import read_pele as read_pele
from ridgerider.ase._files import save as save
from ridgerider.ase._files import to_atoms as to_atoms
from ridgerider.ase._files import write_pathsample as write_pathsample
from ridgerider.ase._files import write_pele as write_pele
from ridgerider.ase._kinetics import free_energies as free_energies
from ridgerider.ase._kinetics import normal_modes as normal_modes
from ridgerider.ase._kinetics import rate as rate
from ridgerider.ase._kinetics import rate_matrix as rate_matrix
from ridgerider.ase._kinetics import symmetry_order as symmetry_order
from ridgerider.ase._motions import CellMotions as CellMotions
from ridgerider.ase._motions import CellSignature as CellSignature
from ridgerider.ase._problem import problem as problem
