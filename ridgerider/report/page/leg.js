// One leg: its story, its ride step by step, and the spectrum at its end.

function turnInWords(turn) {
  const { below, index, member, up, sign } = partsOf(turn);
  const which = member ? `member ${member} of ridge ${index}` : `ridge ${index}`;
  return `${which} ${up ? "upwards, " : ""}${sign === "+" ? "forwards" : "backwards"}${below ? " from the saddle below" : ""}`;
}

function strong(text) {
  return make("b", {}, text);
}

function jump(leg, text = nameOf(leg)) {
  return make("button", { class: "link fp", title: short(text) === text ? null : text, onclick: () => select(leg, "link") }, short(text));
}

/** What happened on this leg, in sentences. */
function story(leg, trace) {
  const parts = [];
  if (!leg.parent) {
    parts.push("The search started here, at loss ", strong(show(leg.loss)), ". ");
  } else {
    const steps = trace ? trace.step.length - 1 : 0;
    parts.push("From ", jump(leg.parent), " this ride took ", strong(turnInWords(leg.turn)));
    if (leg.eigenvalue !== null) parts.push(`, eigenvalue ${show(leg.eigenvalue, 4)}`);
    parts.push(". In ", strong(plural(leg.num_steps, "step", "steps")));
    if (steps) parts.push(` the loss went from ${show(trace.loss[0])} to `, strong(show(leg.loss)), ` and the eigenvalue to ${show(trace.eigenvalue[steps], 4)}`);
    parts.push(`. It ended because ${leg.ended_by.map((reason) => REASONS[reason] || `the rule ${reason} fired`).join(", and ")}. `);
    if (steps) parts.push(certificate(trace, leg), " ");
  }
  if (leg.linked_to !== undefined) parts.push("It reached the point that ", jump(byName.get(leg.linked_to) || legs[0]), " had reached before, and continues from there. ");
  else if (leg.num_ridges) parts.push(`${plural(leg.num_ridges, "ridge leads", "ridges lead")} on from here. `);
  else parts.push("No ridge leads on from here. ");
  const end = leg.solution;
  if (end) {
    const solution = leg.group, others = solution === undefined ? 0 : groups[solution].length - 1;
    parts.push("Descent from its end reached ", strong(ENDS[end.kind]), ` of loss ${show(levelOf(end))}, least eigenvalue ${show(end.least_eigenvalue, 4)}`,
      end.num_flat ? ` beside ${plural(end.num_flat, "flat direction", "flat directions")}. ` : ". ");
    if (end.doubt) parts.push(`Not verified: ${end.doubt}. `);
    if (others) parts.push(`${plural(others, "other leg leads", "other legs lead")} to ${data.signature ? `an equivalent solution (${data.labels[solution]})` : "the same one"}. `);
  }
  return make("p", { class: "story" }, parts);
}

function traceRows(trace) {
  const names = Object.keys(trace);
  return { names, rows: Array.from(trace.step, (_, i) => names.map((name) => trace[name][i])) };
}

/** Whether overlap and residual show that the ride stayed on its ridge. */
function certificate(trace, leg) {
  let weakest = Infinity, where = 0;
  for (let i = 1; i < trace.overlap.length; i++) if (trace.overlap[i] < weakest) [weakest, where] = [trace.overlap[i], trace.step[i]];
  if (!Number.isFinite(weakest)) return "";
  if (weakest < 0.7072) return `At step ${where} its overlap was ${show(weakest, 4)}, below 0.7072: there it may have changed to another ridge.`;
  const never = `Its overlap was never below ${show(weakest, 4)} (step ${where})`;
  return leg.certificate === "complete" ? `${never}, so it stayed on its ridge.` : `${never}, but its residual is not small against its gap, or the gap is unknown: nothing proves that it stayed on its ridge.`;
}

function facts(pairs) {
  return make("dl", { class: "facts" }, pairs.filter((pair) => pair).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function showLeg(leg) {
  const box = $("leg"), trace = traceOf(leg), details = detailsOf(leg);
  const run = quoted(data.path), command = `ridgerider replay ${run} ${quoted(leg.fingerprint)}`;
  const crumbs = [];
  for (let one = leg; one; one = one.parent) crumbs.unshift(one === leg ? make("span", { class: "fp" }, one.turn || "start") : jump(one, one.turn || "start"), one === leg ? "" : " › ");
  const end = leg.solution;
  fill(box,
    make("nav", { class: "crumbs", "aria-label": "Path" }, crumbs),
    make("div", { class: "bar" }, make("h2", { tabindex: "-1" }, leg.parent ? "Leg " : "", make("span", { class: "fp", id: "leg-name", title: nameOf(leg) }, nameOf(leg))),
      leg.parent && make("button", { onclick: () => copy(leg.fingerprint) }, "copy"),
      make("button", { id: "copy-link", onclick: () => copy(location.href), title: "Copy the address of this page at this leg" }, "copy link"),
      leg.parent && make("button", { onclick: () => copy(command), title: command }, "copy replay")),
    story(leg, trace),
    facts([
      ["loss at its end", show(leg.loss, 7)],
      leg.parent && ["ended by", leg.ended_by.join(", ")],
      leg.parent && ["steps", count(leg.num_steps)],
      leg.linked_to !== undefined && ["ends at the end of", leg.linked_to || "start"],
      end && [`${end.kind}: loss`, show(levelOf(end), 7)],
      end && ["least eigenvalue", show(end.least_eigenvalue)],
      end && ["gradient norm", show(end.grad_norm, 3)],
      leg.certificate && [term("certificate"), { complete: "complete", overlap: "overlap too small", gap: "gap too small or unknown" }[leg.certificate]],
      data.signature && leg.group !== undefined && [term("signature"), data.labels[leg.group]],
      ...data.metrics.map((name) => leg.metrics && [name, show(metricOf(leg, name), 5)]),
      [term("HVP", "HVPs"), count(leg.cost[2])], ["gradients", count(leg.cost[1])], ["seconds", show(leg.cost[5], 3)],
    ]),
    leadsOn(leg),
    trace && trace.step.length > 1 && make("div", { class: "bar tight" }, make("h3", {}, "Along the ride"), saves("ride", { picture: () => stacked($("ride")), table: () => traceRows(trace) })),
    trace && trace.step.length > 1 && rideCharts(trace, leg),
    make("div", { class: "bar tight" }, make("h3", {}, leg.parent ? "Spectrum at its end" : "Spectrum"), saves("spectrum", { picture: () => stacked($("spectrum")), table: () => ({ names: ["eigenvalue", "multiplicity", "spread", "gap", "is complete"], rows: details.clusters }) })),
    spectrumChart(details),
    clusterTable(details));
  box.scrollTop = 0;
}

function leadsOn(leg) {
  const open = numOpen(leg);
  if (!leg.children.length && !open) return null;
  const chips = leg.children.slice(0, 60).map((child) => make("button", { class: "chip fp", onclick: () => select(child, "link") }, child.turn));
  if (leg.children.length > 60) chips.push(make("span", { class: "chip open" }, `and ${leg.children.length - 60} more`));
  if (open) chips.push(make("span", { class: "chip open" }, `${count(open)} not followed`));
  return make("div", {}, make("h3", {}, "Rides that lead on"), make("div", { class: "chips" }, chips));
}

/** Charts that share their steps, with one cursor for all of them. */
function rideCharts(trace, leg) {
  const width = Math.max(280, $("leg").clientWidth - 40), x = Array.from(trace.step);
  const near = Object.keys(trace).filter((name) => name.startsWith("neighbour"));
  const gap = trace.gap && !near.length ? x.map((_, i) => [trace.eigenvalue[i] - trace.gap[i], trace.eigenvalue[i] + trace.gap[i]]) : null;
  const eigenTitle = near.length ? "eigenvalue, with its neighbours (dots)" : gap ? "eigenvalue, with its gap (band)" : "eigenvalue";
  const all = [
    chart({ title: "loss", x, width, series: [{ values: Array.from(trace.loss), color: "var(--minimum)" }] }),
    chart({ title: eigenTitle, x, width, height: 150, rules: [{ at: 0 }], band: gap,
      series: [{ values: Array.from(trace.eigenvalue), color: "var(--accent)" }, ...near.map((name) => ({ values: Array.from(trace[name]), color: "var(--faint)", dots: true }))] }),
    chart({ title: "overlap with the ridge before", x, width, rules: [{ at: 0.7072, text: "certificate 0.7072" }], series: [{ values: Array.from(trace.overlap), color: "var(--accent)" }] }),
    chart({ title: "residual", x, width, log: true, series: [{ values: Array.from(trace.residual), color: "var(--accent)" }] }),
    chart({ title: "step size", x, width, log: true, xTitle: "", series: [{ values: Array.from(trace.step_size), color: "var(--accent)", steps: true }] }),
  ];
  const slider = make("input", { type: "range", class: "slider", min: 0, max: x.length - 1, value: x.length - 1, "aria-label": "Step of the ride" });
  const move = (i) => {
    slider.value = i;
    slider.setAttribute("aria-valuetext", `step ${x[i]}, loss ${show(trace.loss[i])}, eigenvalue ${show(trace.eigenvalue[i])}`);
    for (const one of all) one.at(i);
  };
  slider.addEventListener("input", () => move(Number(slider.value)));
  for (const one of all) one.svg.addEventListener("pointermove", (event) => move(one.find(event)));
  move(x.length - 1);
  const kept = x.length < leg.num_steps + 1 ? ` (${x.length} of ${leg.num_steps + 1} steps are kept in this page)` : "";
  return make("div", { id: "ride" }, all.map((one) => one.box), slider, lazily(`Every value${kept}`, () => traceTable(trace)));
}

function lazily(title, build) {
  const box = make("details", {}, make("summary", {}, title));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(build()); });
  return box;
}

function traceTable(trace) {
  const names = Object.keys(trace).filter((name) => !name.startsWith("neighbour"));
  const head = make("tr", {}, names.map((name) => make("th", { scope: "col" }, name.replace("_", " "))));
  const rows = Array.from(trace.step, (_, i) => make("tr", {}, names.map((name) => make("td", {}, show(trace[name][i], 6)))));
  return make("div", { class: "scroll", tabindex: "0" }, make("table", { class: "plain-table", id: "trace-table" }, make("thead", {}, head), make("tbody", {}, rows)));
}

/** Eigenvalues as stems, as high as they are repeated. */
function spectrumChart(details) {
  const width = Math.max(280, $("leg").clientWidth - 40), height = 120;
  const found = details.clusters.filter(([eigenvalue]) => eigenvalue !== null);
  if (!found.length) return make("p", { class: "quiet" }, details.clusters.length ? "The spectrum here is not finite." : "There is no spectrum here.");
  let low = Math.min(0, ...found.map(([eigenvalue]) => eigenvalue)), high = Math.max(0, ...found.map(([eigenvalue]) => eigenvalue));
  const pad = (high - low || 1) * 0.04;
  [low, high] = [low - pad, high + pad];
  const highest = most(found.map(([, multiplicity]) => multiplicity));
  const px = (value) => PLOT.left / 2 + ((value - low) / (high - low)) * (width - PLOT.left / 2 - PLOT.right);
  const py = (value) => height - PLOT.bottom - (value / highest) * (height - PLOT.bottom - 20);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Spectrum of ${details.num_clusters} clusters` });
  svg.append(make("line", { class: "axis", x1: 0, x2: width, y1: py(0), y2: py(0) }), make("line", { x1: px(0), x2: px(0), y1: 8, y2: py(0), stroke: "var(--faint)", "stroke-dasharray": "4 4" }));
  for (const mark of ticks(low, high, Math.max(2, Math.floor(width / 90)))) svg.append(make("text", { x: px(mark), y: height - 3, "text-anchor": "middle" }, show(mark, 3)));
  const tolerance = 1e-8 * Math.max(...found.map(([eigenvalue]) => Math.abs(eigenvalue)));
  for (const [eigenvalue, multiplicity] of found) {
    const color = eigenvalue < -tolerance ? "var(--minimum)" : "var(--accent)";
    svg.append(make("line", { x1: px(eigenvalue), x2: px(eigenvalue), y1: py(0), y2: py(multiplicity), stroke: color, "stroke-width": 2.4, "stroke-linecap": "round" }));
    if (eigenvalue < -tolerance) svg.append(make("path", { d: `M${px(eigenvalue) - 4},${py(multiplicity)}h8l-4,6z`, fill: color }));
    else svg.append(make("circle", { cx: px(eigenvalue), cy: py(multiplicity), r: 3, fill: color }));
    if (multiplicity > 1) svg.append(make("text", { x: px(eigenvalue), y: py(multiplicity) - 6, "text-anchor": "middle" }, `×${multiplicity}`));
  }
  return make("div", { class: "chart", id: "spectrum" }, svg, make("p", { class: "caption" }, "▼ leads downhill, ● does not; height and × say how often an eigenvalue is repeated."));
}

function clusterTable(details) {
  const head = make("tr", {}, ["eigenvalue", "multiplicity", "spread", "gap"].map((name) => make("th", { scope: "col" }, name)));
  const rows = details.clusters.map(([eigenvalue, multiplicity, spread, gap, complete]) =>
    make("tr", {}, [show(eigenvalue, 6), `${multiplicity}${complete ? "" : " or more"}`, show(spread, 2), show(gap, 4)].map((text) => make("td", {}, text))));
  const more = details.num_clusters > details.clusters.length ? `, the first ${details.clusters.length}` : "";
  return lazily(`${plural(details.num_clusters, "cluster", "clusters")}${more}`, () => make("div", { class: "scroll", tabindex: "0" }, make("table", { class: "plain-table" }, make("thead", {}, head), make("tbody", {}, rows))));
}
