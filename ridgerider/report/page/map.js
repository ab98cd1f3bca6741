// The page of a map: disconnectivity graph, the chosen point, and tables.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = (name) => document.getElementById(name);
const short = (value) => String(Number(Number(value).toPrecision(7)));
const minus = (text) => text.replace(/(^|e)-/g, "$1−");
const color = () => getComputedStyle(document.body).color;
const paint = (kind) => getComputedStyle(document.documentElement).getPropertyValue(`--${kind}`);
let recorder = null; // in place of a canvas, while a picture is saved as SVG
let chosen = { kind: "minimum", number: 0 }, before = null, turn = [0.5, 0.3];

at("title").textContent = data.name;
at("claim").textContent = data.claim;
at("claim").hidden = !data.claim;
at("notes").append(...data.notes.map((note) => Object.assign(document.createElement("p"), { className: "note", textContent: note })));
if (data.index) at("back").append(Object.assign(document.createElement("a"), { href: data.index, id: "to-index", textContent: "‹ all reports" }));
at("subtitle").textContent =
  `${data.minima.length} minima, ${data.saddles.length} transition states. ${data.completeness}`;

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
  pen.fillText("loss", 4, 12);
  for (let tick = 0; tick <= 4; tick++) {
    const loss = low + (span * tick) / 4, y = 32 + (1 - tick / 4) * (height - 62);
    pen.fillText(minus(short(loss.toPrecision(4))), 4, y + 4);
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
  at("what").textContent =
    `${chosen.kind === "minimum" ? "Minimum" : "Transition state"} ${chosen.number}`;
  let text = `Loss ${minus(short(one.loss))}, least eigenvalue ${minus(short(one.least))}, found by ${one.visits}` +
    ` leg${one.visits === 1 ? "" : "s"}; fingerprint ${one.fingerprint || "start"}.`;
  if (one.ends) text += ` Between minima ${one.ends.map((end) => end ?? "none").join(" and ")}.`;
  if (chosen.kind === "minimum" && before !== null && before !== chosen.number) {
    const over = way(before, chosen.number);
    text += over === null ? ` No way joins it and minimum ${before}.`
      : ` The lowest way from minimum ${before} goes over transition states ${over.join(", ")},` +
        ` highest ${minus(short(Math.max(...over.map((saddle) => data.saddles[saddle].loss))))}.`;
  }
  at("about").textContent = text;
  drawGraph();
  drawShape(one);
}

function drawShape(one) {
  const canvas = at("shape");
  canvas.hidden = at("shape-bar").hidden = !one.points;
  if (!one.points) return;
  const [pen, width, height] = fit(canvas);
  const [cu, su, cv, sv] = [Math.cos(turn[0]), Math.sin(turn[0]), Math.cos(turn[1]), Math.sin(turn[1])];
  const turned = one.points.map(([x, y, z]) => {
    const a = cu * x + su * z, c = -su * x + cu * z;
    return [a, cv * y - sv * c, sv * y + cv * c];
  });
  const size = Math.max(...turned.map((p) => Math.hypot(...p))) + 0.6, unit = height / (2 * size);
  const spot = (p) => [width / 2 + unit * p[0], height / 2 - unit * p[1]];
  const parts = turned.map((p) => ({ depth: p[2], p }));
  for (let i = 0; i < turned.length; i++) {
    for (let j = 0; j < i; j++) {
      const apart = Math.hypot(...turned[i].map((v, k) => v - turned[j][k]));
      if (apart < one.bond) parts.push({ depth: (turned[i][2] + turned[j][2]) / 2 - 0.01, i, j });
    }
  }
  parts.sort((a, b) => a.depth - b.depth);
  for (const part of parts) {
    const light = 0.35 + 0.55 * (part.depth / (2 * size) + 0.5);
    pen.globalAlpha = Math.min(1, light + 0.2);
    pen.beginPath();
    if (part.p) {
      pen.arc(...spot(part.p), 0.28 * unit, 0, 7);
      for (const [style, alpha] of [[paint("card"), 1], [paint(chosen.kind), pen.globalAlpha]]) {
        pen.globalAlpha = alpha; // nothing shines through
        pen.fillStyle = style;
        pen.fill();
      }
    } else {
      pen.strokeStyle = color();
      pen.lineWidth = 2;
      // From rim to rim, as far as it can be seen from here.
      const [a, b] = [turned[part.i], turned[part.j]], rim = 0.28 / Math.hypot(...a.map((v, k) => v - b[k]));
      const between = (from, to) => spot(from.map((v, k) => v + rim * (to[k] - v)));
      pen.moveTo(...between(a, b));
      pen.lineTo(...between(b, a));
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

const isText = (title) => ["minimum", "transition state", "fingerprint"].includes(title);

/** A table, its first 200 rows; all of them are saved. */
function fill(name, kind, points, titles, row) {
  const rows = points.map((one, number) => ({ [kind]: number, loss: one.loss, "least eigenvalue": one.least, "found by": one.visits,
    ...(one.ends ? { between: one.ends.join(" ") } : {}), fingerprint: one.fingerprint }));
  const quoted = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const csv = () => [Object.keys(rows[0] || {}), ...rows.map((one) => Object.values(one))].map((line) => line.map(quoted).join(",")).join("\r\n");
  saves(`${name}-bar`, { [`${name}.csv`]: async () => new Blob([csv()], { type: "text/csv" }), [`${name}.json`]: async () => new Blob([JSON.stringify(rows)], { type: "application/json" }) });
  const table = at(name), head = table.insertRow();
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
fill("minima", "minimum", data.minima, ["minimum", "loss", "found by", "fingerprint"],
  (one, number) => [number, minus(short(one.loss)), one.visits, one.fingerprint || "start"]);
fill("saddles", "saddle", data.saddles, ["transition state", "loss", "between", "fingerprint"],
  (one, number) => [number, minus(short(one.loss)), one.ends.every((end) => end === null) ? "not known" : one.ends.map((end) => end ?? "–").join(", "), one.fingerprint]);
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
