// The page of a map: disconnectivity graph, the chosen point, and tables.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = (name) => document.getElementById(name);
const short = (value) => String(Number(Number(value).toPrecision(7)));
const minus = (text) => text.replace(/(^|e)-/g, "$1−");
const color = () => getComputedStyle(document.body).color;
const paint = (kind) => getComputedStyle(document.documentElement).getPropertyValue(`--${kind}`);
let recorder = null; // in place of a canvas, while a picture is saved as SVG
// Of atoms: energies above the lowest minimum, in a unit that the reader chooses.
const about = data.about, quantity = about ? about.quantity : "loss";
const UNITS = { eV: 1, "kcal/mol": 23.0605, "kJ/mol": 96.4853, "1/cm": 8065.544 };
let unit = about ? about.unit : "", started = null;
const above = (loss) => (loss - data.minima[0].loss) * (UNITS[unit] || 1);
const amount = (loss) => (about ? `${minus(String(Number(above(loss).toFixed(unit === "eV" ? 4 : 2))))} ${unit}` : minus(short(loss)));
let chosen = { kind: "minimum", number: 0 }, before = null, turn = [0.5, 0.3];

at("title").textContent = data.name;
at("joins").textContent = `Which minima join at which ${quantity}`;
at("claim").textContent = data.claim;
at("claim").hidden = !data.claim;
at("notes").append(...data.notes.map((note) => Object.assign(document.createElement("p"), { className: "note", textContent: note })));
if (data.index) at("back").append(Object.assign(document.createElement("a"), { href: data.index, id: "to-index", textContent: "‹ all reports" }));
at("subtitle").textContent =
  `${data.minima.length} ${data.minima.length === 1 ? "minimum" : "minima"}, ` +
  `${data.saddles.length} transition state${data.saddles.length === 1 ? "" : "s"}. ${data.completeness}`;

function fit(canvas, least = 0) {
  const scale = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const ratio = canvas.dataset.ratio || (canvas.dataset.ratio = canvas.height / canvas.width);
  const height = Math.max(box.width * ratio, least);
  if (recorder) return [recorder, box.width, height];
  canvas.width = box.width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = paint("card");
  pen.fillRect(0, 0, box.width, height);
  return [pen, box.width, height];
}

// --- the graph

const heights = data.minima.map((one) => one.loss).concat(data.junctions.map((one) => one.loss));
const low = Math.min(...heights), high = Math.max(...heights), span = high - low || 1;
let spots = [];

function place(number, width, height) {
  const columns = Math.max(1, ...data.places);
  return [80 + (data.places[number] / columns) * (width - 100),
    32 + (1 - (heights[number] - low) / span) * (height - 62)];
}

function drawGraph() {
  const [pen, width, height] = fit(at("graph"), 320);
  const count = data.minima.length, joined = new Set(), marked = onWay();
  spots = [];
  pen.font = "12px sans-serif";
  pen.fillStyle = color();
  pen.fillText(about ? `${quantity} (${unit})` : "loss", 4, 12);
  for (let tick = 0; tick <= 4; tick++) {
    const loss = low + (span * tick) / 4, y = 32 + (1 - tick / 4) * (height - 62);
    const shown = about ? above(loss) : loss;
    pen.fillText(minus(short(shown.toPrecision(about ? 3 : 4))), 4, y + 4);
  }
  data.junctions.forEach((one, index) => {
    const [x, y] = place(count + index, width, height);
    for (const part of one.parts) {
      joined.add(part);
      const [a, b] = place(part, width, height), bend = b + 0.85 * (y - b);
      pen.strokeStyle = marked.has(one.saddle) ? paint("minimum") : color();
      pen.lineWidth = marked.has(one.saddle) ? 2 : 1;
      pen.beginPath();
      pen.moveTo(a, b);
      pen.lineTo(a, bend);
      pen.lineTo(x, y);
      pen.stroke();
    }
    spots.push({ kind: "saddle", number: one.saddle, x, y });
  });
  heights.forEach((_, number) => {
    const [x, y] = place(number, width, height);
    if (!joined.has(number)) {
      pen.strokeStyle = color();
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x, 4);
      pen.stroke();
    }
    if (number < count) spots.push({ kind: "minimum", number, x, y });
  });
  for (const spot of spots) {
    const is = spot.kind === chosen.kind && spot.number === chosen.number;
    pen.fillStyle = paint(spot.kind);
    pen.beginPath();
    pen.arc(spot.x, spot.y, is ? 7 : spot.kind === "minimum" ? 4 : 3, 0, 7);
    pen.fill();
  }
}

function way(a, b) {
  // The edges are those of a minimum spanning tree: there is one way, or none.
  const from = new Map([[a, null]]), queue = [a];
  while (queue.length) {
    const here = queue.shift();
    for (const edge of data.junctions.map((one) => ({ saddle: one.saddle, minima: data.saddles[one.saddle].ends }))) {
      const next = edge.minima[0] === here ? edge.minima[1] : edge.minima[1] === here ? edge.minima[0] : null;
      if (next !== null && !from.has(next)) {
        from.set(next, [here, edge.saddle]);
        queue.push(next);
      }
    }
  }
  if (!from.has(b)) return null;
  const saddles = [];
  for (let step = from.get(b); step; step = from.get(step[0])) saddles.unshift(step[1]);
  return saddles;
}

function onWay() {
  if (before === null || chosen.kind !== "minimum" || before === chosen.number) return new Set();
  return new Set(way(before, chosen.number) || []);
}

// --- the point

function choose(kind, number) {
  if (chosen.kind === "minimum") before = chosen.number;
  chosen = { kind, number };
  const leg = encodeURIComponent(pointOf(chosen).fingerprint).replaceAll("%2B", "+");
  try { history.replaceState(null, "", `#leg=${leg}`); } catch { /* where the address may not change */ }
  show();
}

function pointOf({ kind, number }) {
  return (kind === "minimum" ? data.minima : data.saddles)[number];
}

/** The point that the address names: `#leg=0^+`; `#leg=` is where descent from the start ended. */
function named() {
  let leg = null;
  try { leg = decodeURIComponent(/^#leg=(.*)$/.exec(location.hash)[1]); } catch { /* no address */ }
  for (const [kind, points] of [["minimum", data.minima], ["saddle", data.saddles]]) {
    const number = points.findIndex((one) => one.fingerprint === leg);
    if (number >= 0) return { kind, number };
  }
  return chosen;
}

function show() {
  const one = pointOf(chosen);
  if (!one) { // a map that has just begun
    at("about").textContent = "No minimum is known yet.";
    at("shape").hidden = at("shape-bar").hidden = true;
    return;
  }
  const kind = `${chosen.kind === "minimum" ? "Minimum" : "Transition state"} ${chosen.number}`;
  at("what").textContent = about ? `${kind}: ${about.formula}, +${amount(one.loss)}` : kind;
  let text = (about ? `Energy ${amount(one.loss)} above minimum 0 (${minus(one.loss.toFixed(4))} eV)${waves(one)}` : `Loss ${minus(short(one.loss))}, least eigenvalue ${minus(short(one.least))}`) + `, found by ${one.visits}` +
    ` leg${one.visits === 1 ? "" : "s"}; fingerprint ${one.fingerprint || "start"}.`;
  if (one.ends) text += ` Between minima ${one.ends.map((end) => end ?? "none").join(" and ")}.`;
  if (chosen.kind === "minimum" && before !== null && before !== chosen.number) {
    const over = way(before, chosen.number);
    text += over === null ? ` No way joins it and minimum ${before}.`
      : ` The lowest way from minimum ${before} goes over transition states ${over.join(", ")},` +
        ` highest ${amount(Math.max(...over.map((saddle) => data.saddles[saddle].loss)))}.`;
  }
  at("about").textContent = text;
  drawGraph();
  drawShape(one);
  drawProfile();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (one.mode && !still && started === null) { started = 0; requestAnimationFrame(swing); }
}

/** Wave numbers: the imaginary one of a transition state, the lowest and highest of all others. */
function waves(one) {
  if (!one.waves) return "";
  const real = one.waves.filter((wave) => wave > 1), below = one.waves.filter((wave) => wave < -1);
  return `${below.length ? `, imaginary ${below.map((wave) => `${Math.round(-wave)}i`).join(", ")} 1/cm` : ""}` +
    (real.length ? `, vibrations ${Math.round(Math.min(...real))} to ${Math.round(Math.max(...real))} 1/cm` : "");
}

/** The mode of a transition state, to and fro. */
function swing(time) {
  const one = pointOf(chosen);
  if (!one || !one.mode) { started = null; return; }
  started = started || time;
  if (!recorder) drawShape(one, 0.4 * Math.sin((time - started) / 400));
  requestAnimationFrame(swing);
}

/** Energies along the way: minima and transition states in turn, with the barriers both ways. */
function drawProfile() {
  const canvas = at("profile"), stops = [];
  if (about && chosen.kind === "saddle") {
    const [a, b] = pointOf(chosen).ends;
    if (a !== null && b !== null) stops.push(["minimum", a], ["saddle", chosen.number], ["minimum", b]);
  } else if (about && before !== null && before !== chosen.number) {
    let here = before;
    for (const saddle of way(before, chosen.number) || []) {
      if (!stops.length) stops.push(["minimum", here]);
      const [a, b] = data.saddles[saddle].ends;
      here = a === here ? b : a;
      stops.push(["saddle", saddle], ["minimum", here]);
    }
  }
  canvas.hidden = !stops.length;
  if (!stops.length) return;
  const [pen, width, height] = fit(canvas, 220), points = stops.map(([kind, number]) => pointOf({ kind, number }));
  const losses = points.map((one) => one.loss), bottom = Math.min(...losses), range = Math.max(...losses) - bottom || 1;
  const x = (i) => 50 + (i + 0.5) * (width - 60) / stops.length, y = (loss) => 34 + (1 - (loss - bottom) / range) * (height - 90);
  const half = Math.min(34, (width - 60) / stops.length / 3);
  pen.font = "12px sans-serif";
  pen.textAlign = "center";
  stops.forEach(([kind, number], i) => {
    pen.strokeStyle = paint(kind);
    pen.lineWidth = 3;
    pen.beginPath(); pen.moveTo(x(i) - half, y(losses[i])); pen.lineTo(x(i) + half, y(losses[i])); pen.stroke();
    pen.fillStyle = color();
    const up = kind === "saddle";
    pen.fillText(`${up ? "transition state" : "minimum"} ${number}`, x(i), y(losses[i]) + (up ? -20 : 18));
    pen.fillText(amount(losses[i]), x(i), y(losses[i]) + (up ? -6 : 32));
    if (!i) return;
    pen.strokeStyle = color();
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(x(i - 1) + half, y(losses[i - 1])); pen.lineTo(x(i) - half, y(losses[i])); pen.stroke();
    const barrier = amount(data.minima[0].loss + Math.abs(losses[i] - losses[i - 1]));
    pen.textAlign = up ? "end" : "start";
    pen.fillText(`${up ? "→" : "←"} ${barrier}`, (x(i) + x(i - 1)) / 2 + (up ? -8 : 8), (y(losses[i]) + y(losses[i - 1])) / 2 - 4);
    pen.textAlign = "center";
  });
  pen.textAlign = "start";
}

function drawShape(one, shift = 0) {
  const canvas = at("shape");
  canvas.hidden = at("shape-bar").hidden = !one.points;
  if (!one.points) return;
  const [pen, width, height] = fit(canvas);
  const [cu, su, cv, sv] = [Math.cos(turn[0]), Math.sin(turn[0]), Math.cos(turn[1]), Math.sin(turn[1])];
  const radii = about ? about.radii.map((radius) => 0.25 + 0.3 * radius) : one.points.map(() => 0.28);
  const moved = shift && one.mode ? one.points.map((p, i) => p.map((v, k) => v + shift * one.mode[i][k])) : one.points;
  const turned = moved.map(([x, y, z]) => {
    const a = cu * x + su * z, c = -su * x + cu * z;
    return [a, cv * y - sv * c, sv * y + cv * c];
  });
  const size = Math.max(...one.points.map((p) => Math.hypot(...p))) + 0.6, scale = height / (2 * size);
  const spot = (p) => [width / 2 + scale * p[0], height / 2 - scale * p[1]];
  const parts = turned.map((p, atom) => ({ depth: p[2], p, atom }));
  for (let i = 0; i < turned.length; i++) {
    for (let j = 0; j < i; j++) {
      const apart = Math.hypot(...turned[i].map((v, k) => v - turned[j][k]));
      if (apart < (about ? 1.25 * (about.radii[i] + about.radii[j]) : one.bond)) parts.push({ depth: (turned[i][2] + turned[j][2]) / 2 - 0.01, i, j });
    }
  }
  parts.sort((a, b) => a.depth - b.depth);
  for (const part of parts) {
    const light = 0.35 + 0.55 * (part.depth / (2 * size) + 0.5);
    pen.globalAlpha = Math.min(1, light + 0.2);
    pen.beginPath();
    if (part.p) {
      pen.arc(...spot(part.p), radii[part.atom] * scale, 0, 7);
      const own = about ? about.colors[part.atom] : paint(chosen.kind);
      for (const [style, alpha] of [[paint("card"), 1], [own, pen.globalAlpha]]) {
        pen.globalAlpha = alpha; // nothing shines through
        pen.fillStyle = style;
        pen.fill();
      }
      if (about) { // white atoms on white paper
        pen.strokeStyle = color();
        pen.lineWidth = 0.6;
        pen.stroke();
        pen.globalAlpha = 1;
        pen.fillStyle = "#222";
        pen.font = `${Math.max(9, 0.3 * scale)}px sans-serif`;
        pen.textAlign = "center";
        pen.fillText(about.symbols[part.atom], spot(part.p)[0], spot(part.p)[1] + 0.1 * scale);
        pen.textAlign = "start";
      }
    } else {
      pen.strokeStyle = color();
      pen.lineWidth = 2;
      // From rim to rim, as far as it can be seen from here.
      const [a, b] = [turned[part.i], turned[part.j]], apart = Math.hypot(...a.map((v, k) => v - b[k]));
      const rim = (from, to, atom) => spot(from.map((v, k) => v + (radii[atom] / apart) * (to[k] - v)));
      pen.moveTo(...rim(a, b, part.i));
      pen.lineTo(...rim(b, a, part.j));
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

const isText = (title) => ["minimum", "transition state", "fingerprint"].includes(title);

/** A table, its first 200 rows; all of them are saved. */
function fill(name, kind, points, titles, row) {
  const rows = points.map((one, number) => ({ [kind]: number, [about ? "energy (eV)" : "loss"]: one.loss, "least eigenvalue": one.least, "found by": one.visits,
    ...(one.ends ? { between: one.ends.join(" ") } : {}), fingerprint: one.fingerprint }));
  const quoted = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const csv = () => [Object.keys(rows[0] || {}), ...rows.map((one) => Object.values(one))].map((line) => line.map(quoted).join(",")).join("\r\n");
  at(`${name}-bar`).replaceChildren();
  saves(`${name}-bar`, { [`${name}.csv`]: async () => new Blob([csv()], { type: "text/csv" }), [`${name}.json`]: async () => new Blob([JSON.stringify(rows)], { type: "application/json" }) });
  const table = at(name);
  table.replaceChildren();
  const head = table.insertRow();
  for (const title of titles) {
    const cell = document.createElement("th");
    cell.textContent = title;
    if (isText(title)) cell.className = "text";
    head.append(cell);
  }
  points.slice(0, 200).forEach((one, number) => {
    const line = table.insertRow();
    row(one, number).forEach((text, column) => {
      const cell = line.insertCell();
      if (isText(titles[column])) cell.className = "text";
      if (column) {
        cell.textContent = text;
        return;
      }
      const button = document.createElement("button");
      button.textContent = text;
      button.addEventListener("click", () => choose(kind, number));
      cell.append(button);
    });
  });
}

function saves(bar, files) {
  for (const [name, content] of Object.entries(files)) {
    const button = document.createElement("button");
    button.textContent = name.split(".").at(-1).toUpperCase();
    button.dataset.save = name;
    button.title = `save as ${name}`;
    button.addEventListener("click", async () => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await content()), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
    at(bar).append(button);
  }
}

const picture = (name) => () => new Promise((done) => { at(name).toBlob(done); });

const vector = (name, draw) => async () => {
  const { width, height } = at(name).getBoundingClientRect();
  recorder = new Recorder();
  draw();
  const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`, drawn = recorder.parts.join("");
  recorder = null;
  const text = `<svg xmlns="http://www.w3.org/2000/svg" ${size}><rect width="100%" height="100%" fill="${paint("card")}"/>${drawn}</svg>`;
  return new Blob([text], { type: "image/svg+xml" });
};

// --- what the reader does

at("graph").addEventListener("click", (event) => {
  const box = at("graph").getBoundingClientRect();
  const near = (spot) => Math.hypot(spot.x - event.clientX + box.left, spot.y - event.clientY + box.top);
  if (!spots.length) return;
  const best = spots.reduce((one, two) => (near(two) < near(one) ? two : one));
  if (near(best) < 20) choose(best.kind, best.number);
});
at("graph").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || !data.minima.length) return;
  event.preventDefault();
  const order = data.minima.map((_, number) => number).sort((a, b) => data.places[a] - data.places[b]);
  const now = chosen.kind === "minimum" ? order.indexOf(chosen.number) : 0;
  choose("minimum", order[(now + step + order.length) % order.length]);
});
at("shape").addEventListener("pointermove", (event) => {
  if (!event.buttons) return;
  turn = [turn[0] + event.movementX / 100, turn[1] + event.movementY / 100];
  drawShape(pointOf(chosen));
});
saves("graph-bar", { "graph.png": picture("graph"), "graph.svg": vector("graph", drawGraph) });
saves("shape-bar", { "shape.png": picture("shape"), "shape.svg": vector("shape", () => drawShape(pointOf(chosen))) });
function tables() {
  const title = about ? `energy (${unit})` : "loss", number = (loss) => amount(loss).replace(` ${unit}`, "");
  const barriers = (one) => one.ends.map((end) => (end === null ? "–" : number(data.minima[0].loss + one.loss - data.minima[end].loss))).join(", ");
  fill("minima", "minimum", data.minima, ["minimum", title, "found by", "fingerprint"],
    (one, row) => [row, number(one.loss), one.visits, one.fingerprint || "start"]);
  fill("saddles", "saddle", data.saddles, ["transition state", title, "between", ...(about ? ["barriers"] : []), "fingerprint"],
    (one, row) => [row, number(one.loss), one.ends.every((end) => end === null) ? "not known" : one.ends.map((end) => end ?? "–").join(", "),
      ...(about ? [barriers(one)] : []), one.fingerprint]);
}
tables();
if (about) {
  const units = Object.assign(document.createElement("select"), { id: "unit", title: "unit of energy" });
  units.append(...Object.keys(UNITS).map((name) => new Option(name, name)));
  units.addEventListener("change", () => { unit = units.value; tables(); show(); });
  at("graph-bar").prepend(units);
}
window.addEventListener("resize", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
chosen = named();
show();

// --- a map that grows

async function poll() {
  let text = "watching";
  try {
    const asked = { headers: { "X-Ridgerider": data.token }, cache: "no-store" };
    const news = await (await fetch(`data?after=${data.num_legs}`, asked)).json();
    if (news.token !== data.token || news.legs.length) { location.reload(); return; }
    if (!news.num_open) text = "finished";
  } catch { text = "no longer served"; }
  at("live").textContent = text;
  at("live").classList.toggle("quietly", text !== "watching");
  setTimeout(poll, 3000);
}

if (data.token) { at("live").hidden = false; poll(); }
document.documentElement.dataset.ready = "";
