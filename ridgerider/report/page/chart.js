// Small charts: lines, steps and dots over one axis; what was found over the cost; rules in words.

/** Of legs in turn: after which cost how many different solutions were found, and the least value so far. */
function overCost(rows) {
  const seen = new Set(), x = [0], found = [0], best = [NaN];
  let total = 0, lowestValue = Infinity;
  rows.forEach(({ spent, solution = null, value = null }, i) => {
    total += spent;
    const isNew = solution !== null && !seen.has(solution), isLower = (value ?? Infinity) < lowestValue;
    if (isNew) seen.add(solution);
    if (isLower) lowestValue = value;
    if (isNew || isLower || i === rows.length - 1) { x.push(total); found.push(seen.size); best.push(Number.isFinite(lowestValue) ? lowestValue : NaN); }
  });
  return { x, found, best };
}

/** Rules by their short names, with their settings in brackets. */
function inWords(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.map(inWords).join(", ");
  if (typeof value !== "object") return typeof value === "number" ? show(value) : String(value);
  const short = (name) => name.split(":").at(-1);
  if (value.function) return short(value.function);
  if (value.array !== undefined) return inWords(value.array);
  if (value.partial) return `${inWords(value.partial)}(${[...(value.args || []), ...Object.entries(value.keywords || {}).map(([name, one]) => `${name} ${inWords(one)}`)].join(", ")})`;
  if (value.type) {
    const set = Object.entries(value.fields || {}).filter(([, one]) => one !== null).map(([name, one]) => `${name} ${inWords(one)}`);
    return set.length ? `${short(value.type)} (${set.join(", ")})` : short(value.type);
  }
  return JSON.stringify(value);
}

const PLOT = { left: 52, right: 10, top: 6, bottom: 18 };

/** One small chart. `series`: name, values, how drawn; `rules`: horizontal lines; `log`: the scale. */
function chart({ title, x, series, height = 112, log = false, rules = [], band = null, width, xTitle = null, unit = () => "" }) {
  const seen = [...series.flatMap((one) => [...one.values]), ...rules.map((rule) => rule.at)].filter((value) => Number.isFinite(value) && (!log || value > 0));
  const scale = log ? Math.log10 : (value) => value;
  let low = least(seen.map(scale)), high = most(seen.map(scale));
  if (!seen.length) [low, high] = [0, 1];
  if (!log && low === 0 && high === 0) high = 1;
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = log ? [low - 1, high + 1] : [low - Math.abs(low) * 0.05 - 1e-9, high + Math.abs(high) * 0.05 + 1e-9];
  const x0 = x[0], x1 = x.at(-1) > x[0] ? x.at(-1) : x[0] + 1;
  const px = (value) => PLOT.left + ((value - x0) / (x1 - x0)) * (width - PLOT.left - PLOT.right);
  const py = (value) => PLOT.top + ((high - scale(value)) / (high - low)) * (height - PLOT.top - PLOT.bottom);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title });
  // Of a range without a whole power of ten its ends are told.
  const powers = Math.ceil(low) <= Math.floor(high) ? ticks(Math.ceil(low), Math.floor(high), 3).filter(Number.isInteger) : [low, high];
  const marks = log ? powers.map((power) => 10 ** power) : ticks(low, high, 3);
  for (const mark of marks) {
    svg.append(make("line", { class: "grid", x1: PLOT.left, x2: width - PLOT.right, y1: py(mark), y2: py(mark) }),
      make("text", { x: PLOT.left - 6, y: py(mark) + 4, "text-anchor": "end" }, log ? show(mark, 2) : show(mark, 4)));
  }
  for (const mark of ticks(x0, x1, Math.max(2, Math.floor(width / 90)))) {
    if (xTitle !== null) svg.append(make("text", { x: px(mark), y: height - 4, "text-anchor": "middle" }, show(mark, 4)));
  }
  if (xTitle) svg.append(make("text", { x: width - PLOT.right, y: height - 4 + 13, "text-anchor": "end" }, xTitle));
  for (const rule of rules) {
    svg.append(make("line", { x1: PLOT.left, x2: width - PLOT.right, y1: py(rule.at), y2: py(rule.at), stroke: "var(--faint)", "stroke-dasharray": "4 4" }));
    if (rule.text) svg.append(make("text", { x: width - PLOT.right, y: py(rule.at) - 4, "text-anchor": "end" }, rule.text));
  }
  const inside = (value) => Math.min(Math.max(value, PLOT.top), height - PLOT.bottom);
  if (band) {
    const up = band.map(([, top], i) => `${px(x[i])},${inside(py(top))}`), down = band.map(([bottom], i) => `${px(x[i])},${inside(py(bottom))}`).reverse();
    if (![...up, ...down].some((point) => point.includes("NaN"))) svg.append(make("path", { d: `M${[...up, ...down].join("L")}Z`, fill: "var(--band)" }));
  }
  for (const one of series) svg.append(...drawn(one, x, px, py, log));
  const cursor = make("line", { y1: PLOT.top, y2: height - PLOT.bottom, stroke: "var(--soft)", "stroke-width": 1, visibility: "hidden" });
  const dot = make("circle", { r: 4, fill: series[0].color, stroke: "var(--card)", "stroke-width": 1.5, visibility: "hidden" });
  svg.append(cursor, dot);
  const readout = make("span", {}, "");
  const box = make("div", { class: "chart" }, make("div", { class: "head" }, make("b", {}, title), readout), svg);
  const at = (i) => {
    const value = series[0].values[i];
    cursor.setAttribute("x1", px(x[i]));
    cursor.setAttribute("x2", px(x[i]));
    cursor.setAttribute("visibility", "visible");
    const isThere = Number.isFinite(value) && (!log || value > 0);
    dot.setAttribute("visibility", isThere ? "visible" : "hidden");
    if (isThere) { dot.setAttribute("cx", px(x[i])); dot.setAttribute("cy", py(value)); }
    const said = series[0].name ? series.map((one) => `${one.name} ${show(one.values.slice(0, i + 1).findLast(Number.isFinite), 6)}`).join(", ") : `${show(value, 6)}${unit(value)}`;
    readout.textContent = `${said} at ${show(x[i], 6)}`;
  };
  const find = (event) => {
    const frame = svg.getBoundingClientRect();
    const wanted = x0 + ((((event.clientX - frame.left) / frame.width) * width - PLOT.left) / (width - PLOT.left - PLOT.right)) * (x1 - x0);
    let best = 0;
    for (let i = 1; i < x.length; i++) if (Math.abs(x[i] - wanted) < Math.abs(x[best] - wanted)) best = i;
    return best;
  };
  return { box, svg, at, find };
}

function drawn(one, x, px, py, log) {
  const isThere = (value) => Number.isFinite(value) && (!log || value > 0);
  if (one.dots) {
    let d = "";
    one.values.forEach((value, i) => { if (isThere(value)) d += `M${px(x[i]).toFixed(1)},${py(value).toFixed(1)}h.01`; });
    return [make("path", { d, stroke: one.color, "stroke-width": 3.6, "stroke-linecap": "round", opacity: 0.75, fill: "none" })];
  }
  let d = "", last = null;
  one.values.forEach((value, i) => {
    if (!isThere(value)) { last = null; return; }
    const point = `${px(x[i]).toFixed(1)},${py(value).toFixed(1)}`;
    d += last === null ? `M${point}` : one.steps ? `H${px(x[i]).toFixed(1)}V${py(value).toFixed(1)}` : `L${point}`;
    last = value;
  });
  return [make("path", { d, stroke: one.color, "stroke-width": 2, "stroke-linejoin": "round", fill: "none" })];
}
