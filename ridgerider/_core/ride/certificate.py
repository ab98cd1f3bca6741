"""How surely a ridge that was followed to a new point is the same one."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ridgerider._core.problem.problem import Scalar


class Certificate(eqx.Module):
    """What a followed ridge can show for itself; goes whole from the update to the trace.

    - `overlap`: the cosine between the new direction and the old eigenspace; less than 0.7072 where
      errors leave open which eigenspace overlaps most, and 0 where nothing is certified;
    - `residual`: |H e - eigenvalue e| at the new point. The direction is within asin(residual / d)
      of the span of the eigenvectors whose eigenvalues are at most d away, for every d;
    - `gap`: from the eigenvalue to the nearest one outside its cluster; NaN where it is unknown;
    - `neighbours`: the eigenvalues next to its cluster, ascending, half of them below and half
      above, NaN where there are no more; or None. An update from products gives those that it saw.
      For the trace alone: crossings show in it.

    >>> certificate = Certificate(overlap=jnp.array(0.99), residual=jnp.array(1e-12))
    >>> float(certificate.overlap), bool(jnp.isnan(certificate.gap))
    (0.99, True)
    """

    overlap: Scalar
    residual: Scalar
    gap: Scalar
    neighbours: Float[Array, " k"] | None

    def __init__(
        self,
        overlap: Scalar,
        residual: Scalar,
        gap: Scalar | None = None,
        neighbours: Float[Array, " k"] | None = None,
    ):
        self.overlap, self.residual, self.neighbours = overlap, residual, neighbours
        self.gap = jnp.full_like(residual, jnp.nan) if gap is None else gap


class Certified:
    """Whatever carries a certificate has its parts by their own names, too."""

    certificate: Certificate

    @property
    def overlap(self) -> Scalar:
        return self.certificate.overlap

    @property
    def residual(self) -> Scalar:
        return self.certificate.residual

    @property
    def gap(self) -> Scalar:
        return self.certificate.gap

    @property
    def neighbours(self) -> Float[Array, " k"] | None:
        return self.certificate.neighbours
