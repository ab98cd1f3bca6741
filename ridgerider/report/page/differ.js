// The set of solutions: which one to take, how they differ, and two of them side by side.

const picks = { color: "loss", ticked: [], hover: null };

function standing() {
  return data.groups.map((name) => byName.get(name)).filter(Boolean);
}

function isStanding(leg) {
  return leg.group !== undefined && data.groups[leg.group] === leg.fingerprint;
}

function metricOf(leg, name) {
  const value = leg.metrics ? leg.metrics[name] : null;
  return Array.isArray(value) ? value[0] : value ?? null;
}

/** How far the mean over examples may be off, for all solutions at once. */
function boundOf(leg, name) {
  const value = leg.metrics ? leg.metrics[name] : null;
  return Array.isArray(value) ? Math.sqrt(Math.log(data.groups.length / 0.05) / (2 * value[1])) : null;
}

/** The loss where a leg led to; at infinity its limit. */
function levelAt(leg) {
  return leg.solution ? levelOf(leg.solution) ?? leg.solution.loss : leg.loss;
}

/** The place of a solution among those that are compared. */
function placeOf(leg) {
  return data.differ.groups.indexOf(leg.group);
}

function nearestOther(leg) {
  const place = placeOf(leg);
  if (place < 0 || data.differ.groups.length < 2) return null;
  return least(data.differ.distances[place].filter((_, j) => j !== place));
}

/** What it cost to come here: all legs on the way. */
function costOfWay(leg) {
  let total = 0;
  for (let one = leg; one; one = one.parent) total += one.cost[2];
  return total;
}

function pickColumns() {
  const number = (name, value, digits, of = {}) => ({ name, value, cell: (leg) => show(value(leg), digits), ...of });
  const columns = [
    { name: "compare", text: true, plain: true, value: (leg) => picks.ticked.includes(leg.fingerprint), cell: tickBox },
    fingerprintColumn,
    number("loss", levelAt, 6),
  ];
  for (const name of data.metrics) {
    columns.push(number(name, (leg) => metricOf(leg, name), 5, { term: "metric" }));
    if (legs.some((leg) => boundOf(leg, name) !== null)) columns.push(number(`± (${name})`, (leg) => boundOf(leg, name), 3, { term: "bound" }));
  }
  if (data.signature) columns.push({ name: "does", text: true, term: "signature", value: (leg) => data.labels[leg.group], cell: (leg) => data.labels[leg.group] });
  if (legs.some((leg) => leg.solution)) columns.push(number("least eigenvalue", (leg) => (leg.solution ? leg.solution.least_eigenvalue : null), 4),
    { name: "kind", text: true, value: (leg) => (leg.solution ? leg.solution.kind : "ride"), cell: (leg) => kindCell(leg) });
  columns.push(number("nearest", nearestOther, 4, { term: "nearest" }), number("legs", (leg) => groups[leg.group].length, 6, { term: "leg" }),
    { name: "HVPs of its way", term: "HVP", value: costOfWay, cell: (leg) => count(costOfWay(leg)) });
  return columns;
}

function tickBox(leg) {
  const box = make("input", { type: "checkbox", "aria-label": `Compare ${nameOf(leg)}`, disabled: placeOf(leg) < 0 });
  box.checked = picks.ticked.includes(leg.fingerprint);
  box.addEventListener("change", () => tick(leg));
  return box;
}

function tick(leg) {
  const name = leg.fingerprint;
  picks.ticked = picks.ticked.includes(name) ? picks.ticked.filter((one) => one !== name) : [...picks.ticked, name].slice(-2);
  tables.picks.draw();
  showFigure();
  showCompared();
}

function makePicks() {
  const key = JSON.stringify([data.metrics, data.signature, legs.some((leg) => leg.solution)]);
  if (picks.key === key) return;
  picks.key = key;
  const columns = pickColumns();
  tables.picks = new Table($("picks"), columns, isStanding, 2, "Which one?");
  putSaves("picks-bar", "solutions", { table: () => tables.picks.plain() });
  const choice = $("color-by");
  fill(choice, ["loss", ...data.metrics].map((name) => make("option", { value: name }, name)));
  choice.onchange = () => { picks.color = choice.value; showFigure(); };
}

function showDiffer() {
  makePicks();
  tables.picks.refresh();
  const num = data.groups.length, what = data.signature ? "solution" : "minimum", whats = data.signature ? "solutions" : "minima";
  $("differ-note").textContent = num === 0 ? `No ${what} was found${soFar()}.` : num === 1 ? `There is one ${what}${soFar()}: nothing to compare.`
    : `Tick two rows to compare them.${data.differ.groups.length < num ? ` The figure shows the ${data.differ.groups.length} ${whats} of lowest loss, of ${count(num)}.` : ""}`;
  picks.ticked = picks.ticked.filter((name) => byName.get(name) && isStanding(byName.get(name)));
  showFigure();
  showCompared();
}

// --- the figure

function colorValues() {
  const rows = data.differ.groups.map((group) => byName.get(data.groups[group]));
  const values = rows.map((leg) => (picks.color === "loss" ? levelAt(leg) : metricOf(leg, picks.color)));
  const known = values.filter((value) => Number.isFinite(value));
  const low = least(known), highest = most(known);
  const high = highest - low > 1e-6 * Math.max(Math.abs(low), Math.abs(highest)) ? highest : low; // equal but for rounding
  return { rows, values, low, high, color: (value) => (Number.isFinite(value) ? strength(high > low ? 1 - (value - low) / (high - low) : 0.5) : paint.faint) };
}

function showFigure() {
  const box = $("differ-figure"), num = data.differ.groups.length, columns = data.differ.columns.length;
  if (num < 2) return fill(box);
  const { low, high } = colorValues();
  const isFew = columns <= 12;
  const canvas = make("canvas", { id: "differ-canvas", role: "img", tabindex: "0", "aria-label": isFew ? `Parallel coordinates of ${num} solutions in ${columns} parameters` : `Heat map of ${num} solutions and ${columns} parameters` });
  const height = isFew ? 300 : Math.min(Math.max(num * 16, 60), 520) + 64;
  canvas.style.height = `${height}px`;
  const where = make("p", { class: "caption", id: "differ-where" }, " ");
  fill(box, make("div", { class: "figure" }, canvas), where, make("p", { class: "caption" },
    isFew ? "Parallel coordinates: a line for each solution, an axis for each parameter with its own scale. "
      : `A row for each solution, a column for each parameter, both ordered so that neighbours are alike${columns < data.differ.num_parameters ? `; of ${count(data.differ.num_parameters)} parameters the ${columns} that differ most` : ""}. Blue is negative, orange positive. `,
    low < high ? `Colour of the ${isFew ? "lines" : "stripe at the left"}: ${picks.color}, from ${show(low, 4)} (strong) to ${show(high, 4)} (faint).` : ""));
  const draw = isFew ? drawParallel : drawHeat;
  const [context, width, tall] = sharp(canvas);
  draw(context, width, tall);
  canvas.addEventListener("pointermove", (event) => {
    const found = (isFew ? lineAt : cellAt)(event, canvas);
    if (found !== picks.hover) { picks.hover = found; if (isFew) { const [again] = sharp(canvas); draw(again, width, tall); } }
    where.textContent = found === null ? " " : figureWords(found);
  });
  canvas.addEventListener("pointerleave", () => { picks.hover = null; const [again] = sharp(canvas); draw(again, width, tall); });
  canvas.addEventListener("click", (event) => { const found = (isFew ? lineAt : cellAt)(event, canvas); if (found !== null) select(byName.get(data.groups[data.differ.groups[Math.floor(found / 1000)]]), "link"); });
  putSaves("differ-bar", "solutions-compared", { picture: () => recorded(canvas, draw), table: differTable });
  return undefined;
}

/** The row and column that are pointed at are one number: 1000 row + column. */
function figureWords(found) {
  const row = Math.floor(found / 1000), column = found % 1000, leg = byName.get(data.groups[data.differ.groups[row]]);
  return `${short(nameOf(leg))}: ${data.differ.columns[column]} = ${show(valueAt(row, column), 5)}, loss ${show(levelAt(leg), 6)}`;
}

function differTable() {
  const { rows } = colorValues();
  return { names: ["fingerprint", "loss", ...data.differ.columns], rows: rows.map((leg, i) => [leg.fingerprint, levelAt(leg), ...data.differ.columns.map((_, j) => valueAt(i, j))]) };
}

function valueAt(row, column) {
  if (picks.packed !== data.differ.values) { picks.packed = data.differ.values; picks.values = floats(data.differ.values); }
  return picks.values[row * data.differ.columns.length + column];
}

const FRAME = { left: 40, right: 40, top: 26, bottom: 30 };

function axes(width, height) {
  const num = data.differ.columns.length, rows = data.differ.groups.length;
  const px = (column) => (num === 1 ? width / 2 : FRAME.left + (column / (num - 1)) * (width - FRAME.left - FRAME.right));
  const ranges = data.differ.columns.map((_, j) => {
    const values = Array.from({ length: rows }, (__, i) => valueAt(i, j));
    const low = least(values), high = most(values);
    return high - low > 1e-12 * Math.max(1, Math.abs(high)) ? [low, high] : [low - 1, high + 1];
  });
  const py = (value, column) => FRAME.top + ((ranges[column][1] - value) / (ranges[column][1] - ranges[column][0])) * (height - FRAME.top - FRAME.bottom);
  return { px, py, ranges };
}

function drawParallel(context, width, height) {
  const { px, py, ranges } = axes(width, height), { rows, values, color } = colorValues();
  const hovered = picks.hover === null ? -1 : Math.floor(picks.hover / 1000);
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  data.differ.columns.forEach((name, j) => {
    context.strokeStyle = paint.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(px(j), FRAME.top);
    context.lineTo(px(j), height - FRAME.bottom);
    context.stroke();
    context.fillStyle = paint.soft;
    context.fillText(show(ranges[j][1], 3), px(j), FRAME.top - 14);
    context.fillText(show(ranges[j][0], 3), px(j), height - FRAME.bottom + 13);
    context.fillStyle = paint.ink;
    context.fillText(short(name, 14), px(j), height - 4);
  });
  const order = rows.map((_, i) => i).sort((one, two) => isMarked(one) - isMarked(two));
  function isMarked(i) { return (picks.ticked.includes(rows[i].fingerprint) ? 2 : 0) + (i === hovered ? 1 : 0); }
  for (const i of order) {
    context.strokeStyle = color(values[i]);
    context.globalAlpha = isMarked(i) || !picks.ticked.length ? 0.95 : 0.35;
    context.lineWidth = isMarked(i) ? 3.4 : rows.length > 24 ? 1.2 : 2;
    context.beginPath();
    data.differ.columns.forEach((_, j) => { const y = py(valueAt(i, j), j); if (j) context.lineTo(px(j), y); else context.moveTo(px(j) - (data.differ.columns.length === 1 ? 30 : 0), y); });
    if (data.differ.columns.length === 1) context.lineTo(px(0) + 30, py(valueAt(i, 0), 0));
    context.stroke();
  }
  context.globalAlpha = 1;
}

function lineAt(event, canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, { px, py } = axes(width, height), num = data.differ.columns.length;
  let best = null, shortest = 14;
  for (let i = 0; i < data.differ.groups.length; i++) for (let j = 0; j < Math.max(num - 1, 1); j++) {
    const x0 = px(j), x1 = num > 1 ? px(j + 1) : x0 + 30;
    if (event.offsetX < x0 - 8 || event.offsetX > x1 + 8) continue;
    const t = Math.min(Math.max((event.offsetX - x0) / (x1 - x0), 0), 1), k = num > 1 ? j + 1 : j;
    const away = Math.abs(event.offsetY - ((1 - t) * py(valueAt(i, j), j) + t * py(valueAt(i, k), k)));
    if (away < shortest) [best, shortest] = [1000 * i + (t < 0.5 ? j : k), away];
  }
  return best;
}

const HEAT = { left: 16, right: 4, top: 6, bottom: 20 };

function drawHeat(context, width, height) {
  const { rows, values, color } = colorValues(), order = data.differ.order, columns = data.differ.columns.length;
  const w = (width - HEAT.left - HEAT.right) / columns, h = (height - HEAT.top - HEAT.bottom) / rows.length;
  // A few huge ones would leave the rest without colour: the logarithm beyond the middle one.
  const sizes = rows.flatMap((_, i) => data.differ.columns.map((__, j) => Math.abs(valueAt(i, j)))).filter((size) => size > 0).sort((one, two) => one - two);
  const largest = sizes.at(-1) || 1, middle = sizes[sizes.length >> 1] || 1;
  const shade = (value) => Math.sign(value) * (Math.log1p(Math.abs(value) / middle) / Math.log1p(largest / middle));
  order.forEach((row, place) => {
    const y = HEAT.top + place * h;
    context.fillStyle = color(values[row]);
    context.fillRect(2, y, 9, Math.max(h - 1, 1));
    for (let j = 0; j < columns; j++) {
      context.fillStyle = diverging(shade(valueAt(row, j)));
      context.fillRect(HEAT.left + j * w, y, Math.max(w - (w > 6 ? 1 : 0), 0.6), Math.max(h - (h > 6 ? 1 : 0), 0.6));
    }
    if (picks.ticked.includes(rows[row].fingerprint)) { context.strokeStyle = paint.accent; context.lineWidth = 2; context.beginPath(); context.rect(1, y - 0.5, width - 2, h); context.stroke(); }
  });
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.fillStyle = paint.soft;
  context.fillText(`values from ${show(-largest, 3)} to ${show(largest, 3)}`, HEAT.left, height - 5);
}

function cellAt(event, canvas) {
  const num = data.differ.groups.length, columns = data.differ.columns.length;
  const place = Math.floor(((event.offsetY - HEAT.top) / (canvas.clientHeight - HEAT.top - HEAT.bottom)) * num);
  const column = Math.floor(((event.offsetX - HEAT.left) / (canvas.clientWidth - HEAT.left - HEAT.right)) * columns);
  if (place < 0 || place >= num || column < 0 || column >= columns) return null;
  return 1000 * data.differ.order[place] + column;
}

/** Negative to positive, through the colour of the card. */
function diverging(t) {
  const from = paint.dark ? [24, 30, 38] : [255, 255, 255], to = t < 0 ? (paint.dark ? [100, 160, 235] : [33, 102, 172]) : paint.dark ? [255, 157, 87] : [194, 80, 10];
  const s = Math.min(Math.abs(t), 1) ** 0.6;
  return `rgb(${from.map((one, i) => Math.round(one + s * (to[i] - one))).join(",")})`;
}

// --- two of them

function showCompared() {
  const box = $("compared"), [one, two] = picks.ticked.map((name) => byName.get(name));
  box.hidden = !two;
  if (!two) return fill(box);
  const [i, j] = [placeOf(one), placeOf(two)], [high, low] = i > j ? [i, j] : [j, i];
  const apart = data.differ.distances[i][j], pair = (high * (high - 1)) / 2 + low;
  let shared = 0;
  while (shared < one.turns.length && shared < two.turns.length && one.turns[shared] === two.turns[shared]) shared++;
  const fork = byName.get(one.turns.slice(0, shared).join(" "));
  const turn = (leg) => leg.turns[shared] ?? "no further turn";
  const longest = most(data.differ.leaves.map((leaf) => leaf.apart[pair])) || 1;
  const bar = (part) => { const inner = make("i"); inner.style.width = `${Math.round(100 * part)}%`; return make("span", { class: "meter" }, inner); };
  fill(box, make("div", { class: "bar", id: "compared-bar" }, make("h3", {}, jump(one), " and ", jump(two))),
    make("p", { class: "story" }, `They are ${show(apart, 5)} apart in parameters and ${show(Math.abs(levelAt(one) - levelAt(two)), 4)} in loss. `,
      fork ? ["Their paths parted at ", jump(fork), `: one took ${turn(one)}, the other ${turn(two)}.`] : ""),
    make("h4", {}, "Difference in each part of the parameters"),
    make("div", { class: "scroll", tabindex: "0" }, make("table", { class: "plain-table", id: "leaves" }, make("thead", {}, make("tr", {}, ["part", "size", "distance", "per parameter", "share"].map((name, k) => make("th", { scope: "col", class: k ? null : "text" }, name)))),
      make("tbody", {}, data.differ.leaves.map((leaf) => make("tr", {}, make("th", { scope: "row", class: "text fp" }, leaf.name), make("td", {}, count(leaf.size)), make("td", {}, show(leaf.apart[pair], 4)), make("td", {}, show(leaf.apart[pair] / Math.sqrt(leaf.size || 1), 3)), make("td", {}, bar(leaf.apart[pair] / longest))))))),
    data.differ.columns.length === data.differ.num_parameters && data.differ.columns.length <= 128 && lazily("Every parameter", () => parameterTable(i, j, one, two)));
  $("compared-bar").append(saves("two-solutions", { table: () => comparedTable(i, j, pair) }));
  return undefined;
}

function comparedTable(i, j, pair) {
  const isWhole = data.differ.columns.length === data.differ.num_parameters;
  return isWhole ? { names: ["parameter", "first", "second", "difference"], rows: data.differ.columns.map((name, k) => [name, valueAt(i, k), valueAt(j, k), valueAt(j, k) - valueAt(i, k)]) }
    : { names: ["part", "size", "distance"], rows: data.differ.leaves.map((leaf) => [leaf.name, leaf.size, leaf.apart[pair]]) };
}

function parameterTable(i, j, one, two) {
  const head = make("tr", {}, ["parameter", short(nameOf(one)), short(nameOf(two)), "difference"].map((name) => make("th", { scope: "col" }, name)));
  const rows = data.differ.columns.map((name, k) => make("tr", {}, make("th", { scope: "row", class: "text fp" }, name), [valueAt(i, k), valueAt(j, k), valueAt(j, k) - valueAt(i, k)].map((value) => make("td", {}, show(value, 5)))));
  return make("div", { class: "scroll", tabindex: "0" }, make("table", { class: "plain-table", id: "parameters" }, make("thead", {}, head), make("tbody", {}, rows)));
}
