// The tree of rides, drawn on a canvas: only what can be seen of it.

const tree = { zoom: 1, pan: 0, height: "loss", power: 1, hover: null, places: [], num: 1, low: 0, high: 1, depth: 1 };
const EDGE = { left: 58, right: 22, top: 26, bottom: 30 };

/** Give every leg its column; a subtree knows its first and last column and its lowest loss. */
function layOut() {
  let column = 0;
  const order = [], stack = legs.length ? [legs[0]] : [];
  while (stack.length) {
    const leg = stack.pop();
    order.push(leg);
    if (!leg.children.length) leg.column = leg.first = leg.last = column++;
    for (let i = leg.children.length - 1; i >= 0; i--) stack.push(leg.children[i]);
  }
  let low = Infinity, high = -Infinity;
  tree.depth = 1;
  for (let i = order.length - 1; i >= 0; i--) {
    const leg = order[i];
    const here = [leg.loss, lowest(leg)].filter((loss) => loss !== null);
    leg.lowest = Math.min(Infinity, ...here);
    leg.deepest = leg.depth;
    leg.size = 1;
    for (const child of leg.children) {
      leg.lowest = Math.min(leg.lowest, child.lowest);
      leg.deepest = Math.max(leg.deepest, child.deepest);
      leg.size += child.size;
    }
    if (leg.children.length) {
      leg.first = leg.children[0].first;
      leg.last = leg.children.at(-1).last;
      leg.column = (leg.children[0].column + leg.children.at(-1).column) / 2;
    }
    for (const loss of here) { low = Math.min(low, loss); high = Math.max(high, loss); }
    tree.depth = Math.max(tree.depth, leg.depth);
  }
  tree.num = Math.max(column, 1);
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  if (high - low < 1e-12 * Math.max(1, Math.abs(high))) [low, high] = [low - 0.5, high + 0.5];
  [tree.low, tree.high] = [low, high];
  // Where most legs lie close above the lowest one, the root of the height pulls them apart.
  const heights = legs.filter((leg) => leg.loss !== null).map((leg) => (leg.loss - low) / (high - low)).sort((one, two) => one - two);
  tree.power = heights.length > 6 && heights[heights.length >> 1] < 0.15 ? 0.4 : 1;
}

function unit(width) {
  return ((width - EDGE.left - EDGE.right) / Math.max(tree.num, 2)) * tree.zoom;
}

function xOf(leg, width) {
  const middle = (EDGE.left + width - EDGE.right) / 2;
  return middle + (leg.column - (tree.num - 1) / 2) * unit(width) + tree.pan;
}

function yAt(loss, depth, height) {
  const above = Math.min(Math.max(((loss ?? tree.high) - tree.low) / (tree.high - tree.low), 0), 1);
  const t = tree.height === "loss" ? 1 - above ** tree.power : depth / (tree.depth + 0.35);
  return EDGE.top + t * (height - EDGE.top - EDGE.bottom);
}

function drawTree() {
  paintTree(...sharp($("tree")));
}

function paintTree(context, width, height) {
  tree.places = [];
  tree.labels = [];
  drawScale(context, width, height);
  if (!legs.length) return;
  context.save();
  context.beginPath();
  context.rect(EDGE.left - 8, 0, width - EDGE.left + 8, height);
  context.clip();
  const marked = new Set();
  for (let leg = state.selected; leg; leg = leg.parent) marked.add(leg);
  const chosen = state.selected ? state.selected.group : undefined;
  const one = unit(width);
  const radius = Math.min(Math.max(one * 0.28, 1.6), 6);
  const nodes = [], stack = [legs[0]];
  while (stack.length) {
    const leg = stack.pop();
    const left = xOf(leg, width) + (leg.first - leg.column - 0.5) * one, right = xOf(leg, width) + (leg.last - leg.column + 0.5) * one;
    if (right < -40 || left > width + 40) continue;
    const x = xOf(leg, width), y = yAt(leg.loss, leg.depth, height);
    if (leg.parent) drawEdge(context, leg, x, y, width, height, marked.has(leg), one);
    if (right - left < 2.2 && leg.children.length && !marked.has(leg)) {
      // Too narrow to tell its rides apart: one line down to the lowest loss in it.
      context.strokeStyle = ridgeColor(leg);
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x, yAt(leg.lowest, leg.deepest, height));
      context.stroke();
      nodes.push([leg, x, y, true]);
      continue;
    }
    nodes.push([leg, x, y, false]);
    for (const child of leg.children) stack.push(child);
  }
  for (const [leg, x, y, isBundle] of nodes) drawEnd(context, leg, x, y, height, radius, isBundle, one, chosen, marked);
  drawLabels(context);
  context.restore();
}

function drawScale(context, width, height) {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  const bottom = tree.power < 1 ? ticks(tree.low, tree.low + 0.2 * (tree.high - tree.low), 4) : [];
  const marks = tree.height === "loss" ? [...ticks(tree.low, tree.high, tree.power < 1 ? 4 : 7), ...bottom] : ticks(0, tree.depth, Math.min(tree.depth, 12)).filter(Number.isInteger);
  for (const mark of marks) {
    const y = yAt(mark, mark, height);
    context.strokeStyle = paint.grid;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(EDGE.left - 4, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillStyle = paint.soft;
    context.fillText(show(mark, 4), EDGE.left - 10, y);
  }
  context.textAlign = "left";
  context.fillStyle = paint.soft;
  context.fillText(tree.height !== "loss" ? "turns" : tree.power < 1 ? "loss (low ones drawn apart)" : "loss", 10, 10);
}

function drawEdge(context, leg, x, y, width, height, isMarked, one) {
  const x0 = xOf(leg.parent, width), y0 = yAt(leg.parent.loss, leg.parent.depth, height);
  context.strokeStyle = ridgeColor(leg);
  context.globalAlpha = state.selected && state.selected.depth && !isMarked ? 0.62 : 1;
  context.lineWidth = isMarked ? Math.min(Math.max(one * 0.2, 3), 5) : Math.min(Math.max(one * 0.14, 0.9), 2.8);
  context.beginPath();
  context.moveTo(x0, y0);
  const bend = y0 + (y - y0) * 0.55 + (Math.abs(y - y0) < 24 ? 10 : 0);
  context.bezierCurveTo(x0, bend, x, y0 + (y - y0) * 0.4, x, y);
  context.stroke();
  context.globalAlpha = 1;
  if ((leg.last - leg.first + 1) * one > 14 || isMarked) tree.labels.push([leg.turn, x + (x < x0 ? -3 : 3), y - (y - y0) * 0.3 - 3, x < x0 ? "right" : "left", isMarked]);
}

/** Those of the way to the selected leg first; none over another. */
function drawLabels(context) {
  const taken = [];
  for (const [text, x, y, align, isMarked] of tree.labels.sort((one, two) => two[4] - one[4])) {
    const width = 7.2 * text.length, left = align === "right" ? x - width : x;
    if (taken.some(([l, r, at]) => left < r + 3 && left + width > l - 3 && Math.abs(at - y) < 13)) continue;
    taken.push([left, left + width, y]);
    label(context, text, x, y, align, isMarked);
  }
}

function label(context, text, x, y, align, isStrong) {
  context.font = `${isStrong ? "600 " : ""}11.5px ui-monospace, Menlo, Consolas, monospace`;
  context.textAlign = align;
  context.textBaseline = "middle";
  context.lineWidth = 3.5;
  context.strokeStyle = paint.card;
  context.strokeText(text, x, y);
  context.fillStyle = isStrong ? paint.ink : paint.soft;
  context.fillText(text, x, y);
}

/** The end of a leg: where descent led from there, and what the point is. */
function drawEnd(context, leg, x, y, height, radius, isBundle, one, chosen, marked) {
  const solution = leg.solution, isSelected = leg === state.selected;
  let bottom = y;
  if (solution && !isBundle && (!leg.children.length || isSelected) && tree.height === "loss" && solution.loss !== null) {
    bottom = yAt(solution.loss, leg.depth, height);
    context.strokeStyle = paint[solution.kind] || paint.faint;
    context.lineWidth = 1.2;
    context.setLineDash([1.5, 2.5]);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x, bottom);
    context.stroke();
    context.setLineDash([]);
  }
  tree.places.push({ leg, x, y, bottom });
  const isEnd = solution && (!leg.children.length || isSelected);
  if (numOpen(leg) && one > 9 && !isBundle) {
    context.strokeStyle = paint.faint;
    context.lineWidth = 1;
    context.setLineDash([2, 3]);
    for (const side of [-1, 1]) {
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + side * Math.min(one * 0.3, 9), y + 16);
      context.stroke();
    }
    context.setLineDash([]);
  }
  if (isEnd && chosen !== undefined && leg.group === chosen) ring(context, x, bottom, radius + 4, paint.minimum, 1.5);
  if (isSelected) ring(context, x, y, radius + 5, paint.accent, 2.5);
  if (leg === tree.hover) ring(context, x, y, radius + 3, paint.ink, 1.2);
  if (!leg.parent) mark(context, "start", x, y, radius + 2);
  else if (isEnd) {
    if (bottom !== y || isSelected) mark(context, leg.num_ridges ? "branch" : "end", x, y, Math.max(radius * 0.45, 1.2));
    mark(context, solution.kind, x, bottom, radius);
  } else if (leg.ended_by.some((reason) => reason === "RidgeLost" || reason === "not_finite")) mark(context, "lost", x, y, radius * 0.8);
  else if (!isBundle) mark(context, leg.num_ridges ? "branch" : "end", x, y, Math.max(radius * 0.6, marked.has(leg) ? 2.5 : 1.2));
}

function ring(context, x, y, radius, color, width) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.stroke();
}

/** Each kind of point has its shape as well as its colour. */
function mark(context, kind, x, y, r) {
  context.lineWidth = Math.min(1.8, Math.max(r * 0.4, 1));
  context.beginPath();
  if (kind === "saddle") { context.moveTo(x, y - r * 1.2); context.lineTo(x + r * 1.1, y + r * 0.8); context.lineTo(x - r * 1.1, y + r * 0.8); context.closePath(); }
  else if (kind === "at infinity") { context.moveTo(x, y + r * 1.2); context.lineTo(x + r * 1.1, y - r * 0.8); context.lineTo(x - r * 1.1, y - r * 0.8); context.closePath(); }
  else if (kind === "unverified") { context.moveTo(x, y - r * 1.2); context.lineTo(x + r * 1.2, y); context.lineTo(x, y + r * 1.2); context.lineTo(x - r * 1.2, y); context.closePath(); }
  else if (kind === "unconverged") context.rect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7);
  else if (kind === "lost") { context.moveTo(x - r, y - r); context.lineTo(x + r, y + r); context.moveTo(x + r, y - r); context.lineTo(x - r, y + r); }
  else context.arc(x, y, r, 0, 7);
  const color = { minimum: paint.minimum, "at infinity": paint.minimum, saddle: paint.saddle, unverified: paint.soft, unconverged: paint.soft, lost: paint.lost }[kind] || paint.ink;
  context.strokeStyle = color;
  if (kind !== "lost") {
    context.fillStyle = kind === "minimum" || kind === "at infinity" || kind === "branch" ? color : paint.card;
    context.fill();
  }
  context.stroke();
}

// --- moving about

function clampPan(width) {
  const over = Math.max(0, (unit(width) * tree.num - (width - EDGE.left - EDGE.right)) / 2);
  tree.pan = Math.min(Math.max(tree.pan, -over - 60), over + 60);
}

function zoomBy(factor, at = null) {
  const width = $("tree").clientWidth;
  const middle = (EDGE.left + width - EDGE.right) / 2, anchor = at ?? middle;
  const before = tree.zoom;
  tree.zoom = Math.min(Math.max(tree.zoom * factor, 1), Math.max(tree.num / 3, 1));
  tree.pan = anchor - middle - (anchor - middle - tree.pan) * (tree.zoom / before);
  if (tree.zoom === 1) tree.pan = 0;
  clampPan(width);
  drawTree();
}

/** Pan, and zoom in if need be, so that a leg can be seen. */
function reveal(leg) {
  const width = $("tree").clientWidth;
  if (unit(width) < 7 && tree.num > 3) {
    const wanted = Math.min((tree.zoom * 14) / unit(width), Math.max(tree.num / 3, 1));
    tree.pan *= wanted / tree.zoom;
    tree.zoom = wanted;
  }
  const x = xOf(leg, width);
  if (x < EDGE.left + 48 || x > width - EDGE.right - 48) tree.pan += (EDGE.left + width - EDGE.right) / 2 - x;
  clampPan(width);
}

function nearest(event) {
  const box = $("tree").getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let best = null, shortest = 18 ** 2;
  for (const place of tree.places) {
    const dy = y < place.y ? place.y - y : y > place.bottom ? y - place.bottom : 0;
    const distance = (place.x - x) ** 2 + Math.min(dy ** 2, (place.y - y) ** 2);
    if (distance < shortest) [best, shortest] = [place, distance];
  }
  return best;
}

function describe(leg) {
  const parts = [short(nameOf(leg), 40), `loss ${show(leg.loss)}`];
  if (leg.eigenvalue !== null) parts.push(`eigenvalue ${show(leg.eigenvalue, 4)}`);
  if (leg.solution) parts.push(`${leg.solution.kind} at ${show(levelOf(leg.solution))}`);
  if (leg.linked_to !== undefined) parts.push(`ends where ${leg.linked_to || "the start"} ended`);
  if (leg.size > 1) parts.push(`${plural(leg.size - 1, "leg", "legs")} lead on`);
  return parts;
}

function sideways(leg, way) {
  const siblings = leg.parent ? leg.parent.children : [leg];
  const found = siblings[siblings.indexOf(leg) + way];
  if (found) return found;
  // Past the last sibling: the next leg of the same depth, wherever it is.
  const same = legs.filter((one) => one.depth === leg.depth).sort((one, two) => one.column - two.column);
  return same[same.indexOf(leg) + way] || leg;
}

function onTreeKey(event) {
  const leg = state.selected || legs[0];
  if (!leg) return;
  const moves = {
    ArrowUp: () => leg.parent || leg,
    ArrowDown: () => leg.children[0] || leg,
    ArrowLeft: () => sideways(leg, -1),
    ArrowRight: () => sideways(leg, 1),
    Home: () => legs[0],
    End: () => legs.reduce((best, one) => ((lowest(one) ?? Infinity) < (lowest(best) ?? Infinity) ? one : best)),
  };
  if (moves[event.key]) select(moves[event.key](), "keyboard");
  else if (event.key === "Enter" || event.key === " ") $("leg").querySelector("h2").focus();
  else if (event.key === "+" || event.key === "=") zoomBy(1.5, xOf(leg, $("tree").clientWidth));
  else if (event.key === "-") zoomBy(1 / 1.5);
  else if (event.key === "0" || event.key === "f") { tree.zoom = 1; tree.pan = 0; drawTree(); }
  else return;
  event.preventDefault();
}

function listenToTree() {
  const canvas = $("tree"), pointers = new Map();
  let moved = 0, spread = 0;
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    moved = 0;
    spread = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return hover(event);
    const dx = event.clientX - before.clientX;
    moved += Math.abs(dx) + Math.abs(event.clientY - before.clientY);
    pointers.set(event.pointerId, event);
    if (pointers.size === 2) {
      const [one, two] = [...pointers.values()];
      const now = Math.abs(one.clientX - two.clientX) + Math.abs(one.clientY - two.clientY);
      if (spread) zoomBy(now / spread, (one.clientX + two.clientX) / 2 - canvas.getBoundingClientRect().left);
      spread = now;
    } else if (moved > 4) {
      if (!canvas.hasPointerCapture(event.pointerId)) canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragging");
      tree.pan += dx;
      clampPan(canvas.clientWidth);
      drawTree();
    }
    return undefined;
  });
  const done = (event) => {
    pointers.delete(event.pointerId);
    canvas.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", (event) => {
    const place = moved < 6 && nearest(event);
    done(event);
    if (place) select(place.leg, "tree");
  });
  canvas.addEventListener("pointercancel", done);
  canvas.addEventListener("pointerleave", () => { tree.hover = null; $("tip").hidden = true; drawTree(); });
  canvas.addEventListener("wheel", (event) => {
    // The wheel belongs to the page; only with Ctrl (and by pinching, which comes as that) it zooms.
    if (event.ctrlKey || event.metaKey) zoomBy(Math.exp(-event.deltaY * 0.002), event.offsetX);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && tree.zoom > 1) { tree.pan -= event.deltaX; clampPan(canvas.clientWidth); drawTree(); }
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("keydown", onTreeKey);
  $("zoom-in").addEventListener("click", () => zoomBy(1.6));
  $("zoom-out").addEventListener("click", () => zoomBy(1 / 1.6));
  $("zoom-fit").addEventListener("click", () => { tree.zoom = 1; tree.pan = 0; drawTree(); });
  for (const height of ["loss", "turns"]) {
    $(`by-${height}`).addEventListener("click", () => {
      tree.height = height;
      for (const one of ["loss", "turns"]) $(`by-${one}`).setAttribute("aria-pressed", String(one === height));
      drawTree();
    });
  }
  putSaves("tree-bar", "tree", { picture: () => recorded(canvas, paintTree), table: () => ({ names: ["fingerprint", "parent", "loss", "eigenvalue", "steps", "ended by", "kind", "loss of descent"], rows: legs.map((leg) => [leg.fingerprint, leg.parent ? leg.parent.fingerprint : null, leg.loss, leg.eigenvalue, leg.num_steps, leg.ended_by.join(" "), leg.solution ? leg.solution.kind : null, leg.solution ? levelOf(leg.solution) : null]) }) });
  $("go").addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = $("go-to").value.trim().split(/\s+/).join(" ").replaceAll("−", "-");
    const leg = byName.get(wanted === "start" ? "" : wanted);
    if (leg) select(leg, "search");
    else say(`No leg ${wanted} in this run`);
  });
  state.listeners.push((leg, by) => {
    if (by !== "tree" && by !== "page") reveal(leg);
    drawTree();
    const item = $("tree-item"), siblings = leg.parent ? leg.parent.children : [leg];
    item.textContent = describe(leg).join(", ");
    for (const [name, value] of Object.entries({ level: leg.depth + 1, setsize: siblings.length, posinset: siblings.indexOf(leg) + 1, selected: true })) {
      item.setAttribute(`aria-${name}`, value);
    }
  });
}

function hover(event) {
  const place = nearest(event), tip = $("tip");
  const leg = place ? place.leg : null;
  if (leg !== tree.hover) { tree.hover = leg; drawTree(); }
  tip.hidden = !leg;
  if (!leg) return;
  tip.textContent = describe(leg).join("\n");
  const right = place.x > $("tree").clientWidth - 230;
  tip.style.left = right ? "" : `${place.x + 14}px`;
  tip.style.right = right ? `${$("tree").clientWidth - place.x + 14}px` : "";
  tip.style.top = `${Math.min(place.y + 10, $("tree").clientHeight - 80)}px`;
}

function drawLegend() {
  const shape = (kind, text) => {
    const canvas = make("canvas", { width: 32, height: 32, "aria-hidden": "true" });
    canvas.style.width = canvas.style.height = "16px";
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    mark(context, kind, 8, 8, kind === "branch" ? 2.5 : 4.5);
    return make("span", {}, canvas, text);
  };
  const ramp = make("canvas", { width: 90, height: 8, "aria-hidden": "true" });
  const context = ramp.getContext("2d");
  for (let x = 0; x < 90; x++) { context.fillStyle = strength(1 - x / 89); context.fillRect(x, 0, 1, 8); }
  fill($("legend"), make("span", {}, "eigenvalue ", show(steepest(), 3), ramp, "0"), shape("start", "start"), shape("branch", "ride ended, ridges lead on"),
    shape("minimum", "minimum"), shape("at infinity", "at infinity"), shape("saddle", "saddle"), shape("unverified", "unverified"), shape("unconverged", "unconverged"), shape("lost", "ridge lost"), make("span", {}, "┄ descent"), make("span", {}, "Ctrl + wheel zooms"));
}
