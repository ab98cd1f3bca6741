// What it cost, what was found for it, how far the minima are apart, and what was run.

function totals() {
  const total = COSTS.map(() => 0), descents = COSTS.map(() => 0);
  for (const leg of legs) {
    leg.cost.forEach((value, i) => { total[i] += value; });
    if (leg.solution) leg.solution.cost.forEach((value, i) => { descents[i] += value; });
  }
  return { total, descents };
}

function showLedger() {
  const { total, descents } = totals();
  const row = (name, values) => make("tr", {}, make("th", { scope: "row", class: "text" }, name), values.map((value, i) => make("td", {}, i === 5 ? show(value, 4) : count(value))));
  // The seconds of a descent are not kept apart from those of its leg.
  const rides = total.map((value, i) => (i === 5 ? NaN : value - descents[i]));
  descents[5] = NaN;
  const head = make("tr", {}, ["part", ...COSTS].map((name) => make("th", { scope: "col" }, name)));
  fill($("ledger"), make("div", { class: "scroll", tabindex: "0" }, make("table", { class: "plain-table" }, make("thead", {}, head),
    make("tbody", {}, row("rides and spectra", rides), row("descents", descents), row("in total", total)))), make("p", { class: "caption" }, compilation(total[5])));
  putSaves("ledger-bar", "ledger", { table: () => ({ names: ["what", ...COSTS], rows: [["rides and spectra", ...rides], ["descents", ...descents], ["in total", ...total]] }) });
}

/** Seconds of compilation are part of the seconds of the legs that waited for it. */
function compilation(seconds) {
  const compiling = data.meta.seconds_compiling;
  return Number.isFinite(compiling) ? `Of ${show(seconds, 3)} seconds, ${show(Math.min(compiling, seconds), 3)} went into compiling programs, which a second search need not repeat, and ${show(Math.max(seconds - compiling, 0), 3)} into riding.` : " ";
}

function showOverCost() {
  const axis = Number($("cost-axis").value || 2);
  const { x, found: minima, best } = overCost(legs.map((leg) => ({ spent: axis === 6 ? (leg.parent ? 1 : 0) : leg.cost[axis], solution: leg.group, value: lowest(leg) })));
  const width = Math.max(280, $("over-cost").clientWidth);
  const name = axis === 6 ? "rides" : COSTS[axis];
  const all = [
    chart({ title: data.signature ? "different solutions" : "different minima", x, width, height: 170, xTitle: null, series: [{ values: minima, color: "var(--minimum)", steps: true }], unit: (value) => (data.signature ? [" solution", " solutions"] : [" minimum", " minima"])[Number(value !== 1)] }),
    chart({ title: `lowest loss${soFar()}`, x, width, height: 130, xTitle: name, series: [{ values: best, color: "var(--accent)", steps: true }] }),
  ];
  for (const one of all) {
    one.at(x.length - 1);
    one.svg.addEventListener("pointermove", (event) => { const i = one.find(event); for (const other of all) other.at(i); });
  }
  fill($("over-cost"), all.map((one) => one.box), make("p", { class: "caption" }, " "));
  putSaves("over-cost-bar", "over-cost", { picture: () => stacked($("over-cost")), table: () => ({ names: [name, data.signature ? "solutions" : "minima", "lowest loss"], rows: x.map((one, i) => [one, minima[i], best[i]]) }) });
}

/** Distances as shades; the same in numbers below. */
function showDistances() {
  const { groups: order, distances } = data.differ, num = order.length, box = $("distances");
  if (num < 2) return fill(box, make("p", { class: "quiet" }, num ? `There is one${soFar()}: nothing to compare.` : `There is nothing to compare${soFar()}.`));
  const names = order.map((number) => byName.get(data.groups[number]));
  const farthest = most(distances.flat()) || 1;
  const canvas = make("canvas", { role: "img", "aria-label": `Distances between ${num} solutions, at most ${show(farthest)}` });
  const side = Math.min(box.clientWidth, 380);
  canvas.style.width = canvas.style.height = `${side}px`;
  const where = make("p", { class: "caption", id: "distance" }, "Lowest loss first. Point at a field for its two solutions.");
  fill(box, make("div", { class: "figure" }, canvas), where, num < data.groups.length && make("p", { class: "caption" }, `The ${num} lowest of ${data.groups.length}.`),
    lazily("As numbers", () => make("div", { class: "scroll", tabindex: "0" }, make("table", { class: "plain-table" },
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "solution"), names.map((leg) => make("th", { scope: "col", class: "fp" }, short(nameOf(leg), 14))))),
      make("tbody", {}, names.map((leg, i) => make("tr", {}, make("th", { scope: "row", class: "text fp" }, short(nameOf(leg))), distances[i].map((value) => make("td", {}, show(value, 4))))))))));
  const [context, width] = sharp(canvas);
  const draw = (onto, across) => drawDistances(onto, across / num, distances, farthest);
  draw(context, width);
  putSaves("distances-bar", "distances", { picture: () => recorded(canvas, draw), table: () => ({ names: ["fingerprint", ...names.map((leg) => leg.fingerprint)], rows: names.map((leg, i) => [leg.fingerprint, ...distances[i]]) }) });
  const at = (event) => [event.offsetY, event.offsetX].map((offset) => Math.min(Math.max(Math.floor((offset / side) * num), 0), num - 1));
  canvas.addEventListener("pointermove", (event) => {
    const [i, j] = at(event);
    where.textContent = `${short(nameOf(names[i]))} and ${short(nameOf(names[j]))}: ${show(distances[i][j])} apart`;
  });
  canvas.addEventListener("click", (event) => select(names[at(event)[0]], "link"));
  return undefined;
}

function drawDistances(context, one, distances, farthest) {
  distances.forEach((row, i) => row.forEach((value, j) => {
    context.fillStyle = i === j ? paint.grid : `rgb(${viridis(1 - value / farthest).join(",")})`;
    context.fillRect(j * one, i * one, Math.ceil(one) - (one > 6 ? 1 : 0), Math.ceil(one) - (one > 6 ? 1 : 0));
  }));
  if (one > 30) {
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    distances.forEach((row, i) => row.forEach((value, j) => {
      if (i === j) return;
      context.fillStyle = value / farthest < 0.45 ? "#111" : "#fff";
      context.fillText(show(value, 2), (j + 0.5) * one, (i + 0.5) * one);
    }));
  }
}

function showTiles() {
  const { total } = totals();
  const losses = legs.map(lowest).filter((loss) => loss !== null);
  const kinds = legs.filter((leg) => leg.solution).map((leg) => leg.solution.kind);
  const has = kinds.length > 0 || !data.signature; // of rides without descents only what they do is known
  const points = groups.reduce((sum, members) => sum + (members ? members.length : 0), 0);
  const tile = (name, value, id, isStrong) => make("div", { class: isStrong ? "strong" : null }, make("dt", {}, name), make("dd", { id }, value));
  fill($("tiles"),
    data.signature ? tile([term("solution", "different solutions"), ` by ${data.signature}`], [count(data.groups.length), make("small", {}, ` of ${plural(points, "point", "points")}`)], "num-solutions", true)
      : tile(term("minimum", "different minima"), count(data.groups.length), "num-minima", true), tile("lowest loss", losses.length ? show(least(losses), 6) : "–", "lowest-loss"),
    tile(term("leg", "legs ridden"), count(legs.filter((leg) => leg.parent).length), "num-legs"), tile(term("open branch", "branches open"), count(data.num_open), "num-open"),
    has && tile(term("saddle", "ends at saddles"), count(kinds.filter((kind) => kind === "saddle").length), "num-saddles"),
    tile(term("HVP", "HVPs"), compact(total[2])), tile("gradients", compact(total[1])), tile("seconds", show(total[5], 3)));
}

function compact(value) {
  return value >= 1e6 ? `${show(value / 1e6, 3)} M` : value >= 1e5 ? `${show(value / 1e3, 3)} k` : count(value);
}

function showSettings() {
  const list = (title, pairs) => make("div", {}, make("h3", {}, title), make("dl", {}, pairs.map(([name, value]) => [make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, value)])));
  const { problem = {}, rider = {}, settings = {}, budget = {}, versions = {} } = data.meta;
  const params = (problem.params || []).slice(0, 40).map(([path, shape, dtype]) => [path || "x", `${shape.join(" × ") || "scalar"} ${dtype}`]);
  fill($("settings"),
    list("Problem", [["name", data.name], ["parameters", count(data.size)], ...params, ["start", problem.start || "–"], ["data", problem.data || "–"]]),
    list("Rider", Object.entries(rider.fields || {}).map(([name, value]) => [name, inWords(value)])),
    list("Search", Object.entries({ ...settings, ...budget }).map(([name, value]) => [name, value === null ? "no limit" : String(value)])),
    list("Versions", Object.entries(versions).map(([name, value]) => [name, String(value)])));
}
