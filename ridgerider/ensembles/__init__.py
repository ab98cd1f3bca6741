"""Ensembles whose members differ: each starts along a different ridge, and is then trained.

    spectrum at the start -> a step or ride along each ridge, both ways -> choose -> train

A deep ensemble owes its variety to random starts. Ridges give it by design: members that leave a
saddle in different directions learn other things first, and much of that lasts.
"""

from ridgerider.ensembles._begin import AlongRidges as AlongRidges
from ridgerider.ensembles._begin import Beginning as Beginning
from ridgerider.ensembles._begin import Fresh as Fresh
from ridgerider.ensembles._begin import RandomDirections as RandomDirections
from ridgerider.ensembles._ensemble import Ensemble as Ensemble
from ridgerider.ensembles._ensemble import Member as Member
from ridgerider.ensembles._ensemble import ensemble as ensemble
from ridgerider.ensembles._scores import Scores as Scores
from ridgerider.ensembles._scores import auroc as auroc
from ridgerider.ensembles._scores import disagreement as disagreement
