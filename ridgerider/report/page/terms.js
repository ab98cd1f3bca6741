// What words mean: on hover, and in a list at the end of the page.

const TERMS = {
  leg: "One ride along a ridge from a point where another ended, with the descent from its end if there was one.",
  ride: "Following one ridge in small steps, while its direction changes.",
  ridge: "A direction of negative curvature: an eigenvector of the Hessian whose eigenvalue is below zero.",
  turn: "The choice of a ridge where a ride ended: its number, most negative eigenvalue first, and + or − for the way along it.",
  fingerprint: "The path to a leg: all turns from the start, such as 0+ 3− 1+.",
  HVP: "Hessian-vector product, the unit of cost: about as much work as two gradients. A dense Hessian of n parameters counts as n.",
  overlap: "The cosine between a ridge and itself at the step before. Above 0.7072 it cannot be another one.",
  residual: "How far a direction is from an exact eigenvector: |H e − eigenvalue e|.",
  gap: "From the eigenvalue of a ridge to the nearest other one: the larger it is, the more certain is the ridge.",
  certificate: "Evidence that a ride stayed on its ridge. Complete: overlap at least 0.7072 and residual below a tenth of the gap, at every step.",
  multiplicity: "How often an eigenvalue is repeated: its ridges form a space of so many dimensions.",
  class: "Ends of descents that are equivalent: the same point within their errors, or connected along flat directions.",
  solution: "A class of ends with equal signatures, if the run has a signature; otherwise one minimum.",
  signature: "A function of the parameters that is equal for equivalent solutions.",
  metric: "A number for each solution, computed by a function of the user.",
  minimum: "A point whose gradient vanishes and from which the loss falls in no direction, both verified there.",
  "at infinity": "The loss falls to a limit while the parameters grow without end.",
  saddle: "A point whose gradient vanishes and from which the loss falls in some direction.",
  unverified: "The gradient vanishes, but a check did not finish; the row says why.",
  unconverged: "The descent ended before the gradient vanished.",
  flat: "Directions with zero curvature within rounding, such as rotations.",
  nearest: "The distance in parameters to the nearest other solution.",
  bound: "How far a mean over examples may be from its expectation with probability 0.95, whichever solution is chosen (Hoeffding, for all of them at once).",
  "open branch": "A ridge that was found and not yet followed.",
};

/** A word with its meaning on hover, focus and touch. */
function term(name, text = name) {
  return make("abbr", { title: TERMS[name], tabindex: "0" }, text);
}

function showGlossary() {
  fill($("glossary"), make("dl", { class: "glossary" }, Object.entries(TERMS).map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)))));
}
