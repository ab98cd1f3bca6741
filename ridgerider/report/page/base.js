// What the page knows, and small things that all of it uses.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const COSTS = ["values", "gradients", "Hessian-vector products", "Hessians", "eigendecompositions", "seconds"];
const REASONS = {
  curvature_gone: "the curvature along the ridge is no longer negative",
  RidgeLost: "the ridge was lost: the direction overlaps its eigenspace too little",
  Stalled: "the loss hardly changed over its last steps",
  not_finite: "the next step led to NaN or infinity",
  max_steps: "it was as long as a ride may be",
  start: "here the search set out",
};
const ENDS = { minimum: "a minimum", "at infinity": "a minimum at infinity", saddle: "a saddle", unverified: "a stationary point", unconverged: "no stationary point" };

/** A text with its middle left out, where the ends tell more. */
function short(text, most = 26) {
  const half = Math.floor((most - 1) / 2);
  return text.length <= most ? text : `${text.slice(0, most - 1 - half)}…${text.slice(text.length - half)}`;
}

/** A run that has ended has no "so far". */
function soFar() {
  return data.verdict && data.verdict.state === "open" ? " so far" : "";
}

/** The loss of a solution; at infinity what it falls to. */
const levelOf = (end) => (end.kind === "at infinity" ? end.limit : end.loss);

const SHAPES = { minimum: "●", "at infinity": "▼", saddle: "△", unverified: "◇", unconverged: "□" };

/** An element; strings become text and never markup. */
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "circle", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A number with at most `digits` significant digits, as short as it can be. */
function show(value, digits = 5) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? Number(value.toPrecision(Math.max(digits - 2, 2))).toExponential() : String(Number(value.toPrecision(digits)));
  return text.replace("e+", "e").replaceAll("-", "−");
}

/** The least of a list that may be too long to be arguments of Math.min. */
function least(values) {
  return values.reduce((one, two) => Math.min(one, two), Infinity);
}

function most(values) {
  return values.reduce((one, two) => Math.max(one, two), -Infinity);
}

function count(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ","); // a tenth of a second sooner than by locale
}

function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

function say(text) {
  const toast = $("toast");
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => toast.classList.remove("shown"), 2200);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { class: "hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`Copied ${text}`);
}

/** Quoted for a shell. */
function quoted(text) {
  return /^[\w./+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function nameOf(leg) {
  return leg.fingerprint || "start";
}

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// --- the tree of legs

const legs = [];
const byName = new Map();
const groups = []; // of each solution: the legs that lead to it, in the order they landed

/** Cut `0+ 3.2-` into turns. */
function turnsOf(fingerprint) {
  return fingerprint ? fingerprint.split(" ") : [];
}

/** `3.2-`, `v1+` at the saddle below, `2^+` upwards: all parts of a turn. */
function partsOf(turn) {
  const [, below = "", index = "0", member = "0", up = "", sign = "+"] = /^(v?)(\d+)(?:\.(\d+))?(\^?)([+-])$/.exec(turn) || [];
  return { below: below !== "", index: Number(index), member: Number(member), up: up !== "", sign };
}

/** Both ways along a ridge mirror each other, so a symmetric loss makes a symmetric tree. */
function rank(turn) {
  const { below, index, member, sign } = partsOf(turn);
  const place = index + member / 1e4 + (below ? 1e5 : 0);
  return sign === "+" ? place - 1e6 : 1e6 - place;
}

function addLegs(rows) {
  const grown = new Set();
  for (const row of rows) {
    if (byName.has(row.fingerprint)) continue;
    const turns = turnsOf(row.fingerprint);
    const parent = turns.length ? byName.get(turns.slice(0, -1).join(" ")) || byName.get("") || null : null;
    const leg = { ...row, number: legs.length, turns, depth: turns.length, turn: turns.at(-1) || "", parent, children: [] };
    leg.rank = leg.turn ? rank(leg.turn) : 0;
    legs.push(leg);
    byName.set(leg.fingerprint, leg);
    if (parent) parent.children.push(leg);
    if (parent) grown.add(parent);
    if (leg.group !== undefined) (groups[leg.group] ??= []).push(leg);
  }
  for (const parent of grown) parent.children.sort((one, two) => one.rank - two.rank);
}

/** The leg that stands for a solution. */
function standsFor(number) {
  return byName.get(data.groups[number]) || groups[number][0];
}

function numOpen(leg) {
  if (leg.linked_to !== undefined) return 0;
  const limit = data.meta.settings && data.meta.settings.max_depth;
  return limit && leg.depth >= limit ? 0 : Math.max(0, leg.num_branches - leg.children.length);
}

/** The lowest loss that is known of a leg; at infinity its limit, as the verdict has it. */
function lowest(leg) {
  const end = leg.solution && leg.solution.kind !== "unconverged" ? leg.solution : null;
  return (end && (levelOf(end) ?? end.loss)) ?? leg.loss;
}

let detailLines = null;
const lateDetails = [];

/** Traces and spectra are unpacked when a leg is looked at, not before. */
function detailsOf(leg) {
  if (leg.number >= data.num_details) return lateDetails[leg.number - data.num_details];
  detailLines ??= $("details").textContent.split("\n");
  return JSON.parse(detailLines[leg.number]);
}

function traceOf(leg) {
  const packed = detailsOf(leg).trace;
  if (!packed) return null;
  const table = floats(packed.data);
  const trace = {};
  packed.columns.forEach((name, column) => {
    trace[name] = table.subarray(column * packed.num_points, (column + 1) * packed.num_points);
  });
  return trace;
}

// --- what is looked at

const state = { selected: null, listeners: [] };

function select(leg, by = "page") {
  state.selected = leg;
  for (const listener of state.listeners) listener(leg, by);
}

// --- colours

const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"].map((color) =>
  [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
let paint = {};

function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "faint", "line", "grid", "card", "back", "accent", "minimum", "saddle", "lost", "wash", "band"]) {
    paint[name] = style.getPropertyValue(`--${name}`).trim();
  }
  paint.dark = style.getPropertyValue("--dark").trim() === "1";
}

/** The colour map at `t` from 0 to 1. */
function viridis(t) {
  const at = Math.min(Math.max(t, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((value, i) => Math.round(value + (at - low) * (VIRIDIS[low + 1][i] - value)));
}

/** Strength from 0 to 1 as a colour that stands out from the background. */
function strength(t) {
  return `rgb(${viridis(paint.dark ? 0.38 + 0.62 * t : 0.8 * (1 - t)).join(",")})`;
}

function steepest() {
  if (steepest.for !== legs.length) {
    steepest.value = legs.reduce((least, leg) => Math.min(least, leg.eigenvalue ?? 0), 0) || -1;
    steepest.for = legs.length;
  }
  return steepest.value;
}

function ridgeColor(leg) {
  return leg.eigenvalue === null ? paint.faint : strength(Math.min(Math.max(leg.eigenvalue / steepest(), 0), 1));
}

/** A canvas as sharp as the screen; returns its context, width and height. */
function sharp(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

/** Round numbers that cut a range into about `num` parts. */
function ticks(low, high, num) {
  if (!(high > low)) return [low];
  const raw = (high - low) / num, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}
