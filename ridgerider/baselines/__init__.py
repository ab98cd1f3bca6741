"""What Ridge Rider has to beat, and its ablations, under one budget.

A *method* is a value that is called as

    method(problem, max_steps=..., max_seconds=..., seed=..., until=...) -> Ends

and works on any `Problem`. It makes run after run until the budget is used up or `until(x)`, called
with the points where new runs ended, reads true. A *step* is one move that was tried: a gradient of
a descent, a try of a ride together with its spectrum, a line search of
`EigenvectorDescent`. What it computes is counted in the same ledger as a search, `Ends.cost`.

================================================  ===========================================
method                                            the paper's name
================================================  ===========================================
`GradientDescent(spread=1.0)`                     gradient descent from random starts
`GradientDescent(spread=1e-3)`                    gradient descent from the saddle
`RandomVectors()`                                 random norm-one vectors from the saddle
`RidgeRider(rider)`                               Ridge Rider itself, without a run file
`RidgeRider(fixed_ridge(rider))`                  Fixed-EV
`RidgeRider(random_ridge(rider))`                 Rand-Ridge+
`RidgeRider(fixed_step(rider))`                   fixed alpha + UpdateRidge
`RidgeRider(fixed_step(fixed_ridge(rider)))`      fixed alpha + fixed ridge
`EigenvectorDescent()`                            EVD
================================================  ===========================================
"""

from ridgerider.baselines._descents import EigenvectorDescent as EigenvectorDescent
from ridgerider.baselines._descents import Ends as Ends
from ridgerider.baselines._descents import GradientDescent as GradientDescent
from ridgerider.baselines._rides import RandomVectors as RandomVectors
from ridgerider.baselines._rides import RidgeRider as RidgeRider
from ridgerider.baselines._rides import fixed_ridge as fixed_ridge
from ridgerider.baselines._rides import fixed_step as fixed_step
from ridgerider.baselines._rides import random_ridge as random_ridge
