// The loss in the plane of two rides, with the tree projected into it.

const scenery = { shown: 0, busy: false };
const PATHS = ["#ffffff", "#ffb000"]; // of the two rides, with a dark rim: seen on every shade

function landscapeControls() {
  const rides = legs.filter((leg) => leg.parent);
  const options = (list) => make("datalist", { id: list }, rides.slice(0, 2000).map((leg) => make("option", { value: leg.fingerprint })));
  const field = (id, label, value) => make("label", { class: "field" }, label, make("input", { id, type: "search", list: "rides", value, autocomplete: "off", spellcheck: "false" }));
  const [one, two] = data.landscapes.length ? data.landscapes[0].rides : [rides[0], rides.find((leg) => leg.turn.split("+")[0] !== rides[0].turn.split("+")[0] && !leg.turn.startsWith(rides[0].turn.slice(0, -1))) || rides[1]].map((leg) => (leg ? leg.fingerprint : ""));
  const parts = [];
  if (data.landscapes.length > 1) {
    const choice = make("select", { "aria-label": "Which landscape" }, data.landscapes.map((scene, i) => make("option", { value: i }, scene.rides.join("  and  "))));
    choice.addEventListener("input", () => { scenery.shown = Number(choice.value); showLandscape(); });
    choice.value = String(scenery.shown);
    parts.push(choice);
  }
  if ($("ride-one")) { // somebody may be typing
    $("rides").replaceWith(options("rides"));
    if (data.landscapes.length === scenery.listed) return;
  }
  scenery.listed = data.landscapes.length;
  if (rides.length > 1) parts.push(options("rides"), field("ride-one", "rides", one), field("ride-two", "and", two), make("button", { id: "ask", onclick: askForLandscape }, data.token ? "compute" : "how to compute"));
  fill($("landscape-controls"), parts);
}

async function askForLandscape() {
  const names = ["ride-one", "ride-two"].map((id) => $(id).value.trim().replaceAll("−", "-"));
  const missing = names.find((name) => !byName.get(name));
  if (missing !== undefined) return say(`No leg ${missing || "with an empty name"} in this run`);
  const known = data.landscapes.findIndex((scene) => scene.rides.join() === names.join());
  if (known >= 0) { scenery.shown = known; return showLandscape(); }
  if (!data.token) return showCommand(names);
  if (scenery.busy) return undefined;
  scenery.busy = true;
  $("ask").disabled = true;
  const busy = make("span", { class: "busy", id: "landscape-busy", role: "status" }, "computing the loss in this plane …");
  $("landscape-controls").append(busy);
  try {
    const answer = await fetch(`landscape?${new URLSearchParams({ one: names[0], two: names[1] })}`, { headers: { "X-Ridgerider": data.token } });
    const found = await answer.json();
    if (found.error) say(found.error);
    else { scenery.shown = data.landscapes.push(found) - 1; landscapeControls(); showLandscape(); }
  } catch { say("The search's page is no longer served"); }
  scenery.busy = false;
  busy.remove();
  if ($("ask")) $("ask").disabled = false;
  return undefined;
}

function showCommand(names) {
  const command = `ridgerider report ${quoted(data.path)} --landscape ${names.map(quoted).join(" ")}`;
  const box = make("div", { class: "command", id: "landscape-command" }, make("code", {}, command), make("button", { onclick: () => copy(command) }, "copy"));
  const old = $("landscape-command");
  if (old) old.replaceWith(box);
  else $("landscape").append(box);
}

function showLandscape() {
  const scene = data.landscapes[scenery.shown], box = $("landscape");
  if (!scene) {
    const how = data.token ? "Choose two rides: the loss in their plane is computed when you ask for it." : "The loss between rides is not in a run file. With the problem at hand it can be computed and put into this page:";
    fill(box, make("p", { class: "quiet" }, how));
    const rides = legs.filter((leg) => leg.parent);
    if (!data.token && rides.length > 1 && $("ride-one")) showCommand([$("ride-one").value, $("ride-two").value]);
    return undefined;
  }
  const canvas = make("canvas", { role: "img", id: "scene", "aria-label": `Loss in the plane of the rides ${scene.rides.join(" and ")}` });
  // The same scale across and up.
  const shape = (scene.b[1] - scene.b[0]) / (scene.a[1] - scene.a[0]), room = box.clientWidth - FIELD.left - FIELD.right;
  const inner = Math.min(room * shape, Math.max(340, 0.62 * window.innerHeight));
  canvas.style.height = `${inner + FIELD.top + FIELD.bottom}px`;
  const exact = scene.paths.filter((path) => path.points.length > 2).length, left = legs.length - 1 - scene.paths.length;
  const where = make("p", { class: "caption", id: "scene-where", role: "status" }, "Point into the picture for the loss there.");
  fill(box, make("div", { class: "figure" }, canvas), where, make("p", { class: "caption" },
    `Loss in the plane through the fork of ${short(scene.rides[0])} (white, across) and ${short(scene.rides[1])} (amber) and through both ends; both axes have the same scale, in units of the parameters. `,
    `Darker is lower. ${exact === scene.paths.length ? "Rides are drawn step by step" : `${plural(exact, "ride is", "rides are")} drawn step by step, the others as straight lines between their ends`}${left > 0 ? `; of the others only the ${scene.paths.length} nearest to the plane` : ""}. `,
    descents(scene.paths), "Paths leave the plane: the loss under them is the plane's."));
  drawScene(...sharp(canvas), scene);
  canvas.addEventListener("pointermove", (event) => {
    const value = sceneAt(scene, canvas.clientWidth, canvas.clientHeight, event.offsetX, event.offsetY);
    where.textContent = value ? `loss ${show(value.loss, 5)} at ${show(value.a, 4)} along, ${show(value.b, 4)} across` : "Point into the picture for the loss there.";
  });
  putSaves("landscape-bar", "landscape", { picture: () => recorded(canvas, (...onto) => drawScene(...onto, scene)), table: () => sceneRows(scene) });
  return undefined;
}

function descents(paths) {
  const all = paths.filter((path) => path.descent), stored = all.filter((path) => path.descent.length > 2).length;
  if (!all.length) return "";
  const few = "through at most 24 of its points";
  if (stored === all.length) return `A dotted line is the descent from the end of a ride to where it came to rest, ${few}. `;
  return `A dotted line leads from the end of a ride to where the descent from there came to rest: ${stored ? `${stored} of ${all.length} as they went, ${few}, the others` : "it is"} straight, as the way is stored only by a rider that keeps paths. `;
}

const FIELD = { left: 58, right: 78, top: 12, bottom: 42 };

/** The picture's place on the canvas, as large as the same scale both ways allows. */
function placeScene(scene, width, height) {
  const [a0, a1] = scene.a, [b0, b1] = scene.b;
  const scale = Math.min((width - FIELD.left - FIELD.right) / (a1 - a0), (height - FIELD.top - FIELD.bottom) / (b1 - b0));
  const w = scale * (a1 - a0), h = scale * (b1 - b0), left = FIELD.left + Math.max(0, (width - FIELD.left - FIELD.right - w) / 2), top = FIELD.top;
  return { left, top, w, h, px: (a) => left + scale * (a - a0), py: (b) => top + h - scale * (b - b0), a: (x) => a0 + (x - left) / scale, b: (y) => b0 + (top + h - y) / scale };
}

function sceneAt(scene, width, height, x, y) {
  const place = placeScene(scene, width, height), a = place.a(x), b = place.b(y), loss = floats(scene.loss);
  if (a < scene.a[0] || a > scene.a[1] || b < scene.b[0] || b > scene.b[1]) return null;
  const column = Math.round(((a - scene.a[0]) / (scene.a[1] - scene.a[0])) * (scene.num_columns - 1)), row = Math.round(((b - scene.b[0]) / (scene.b[1] - scene.b[0])) * (scene.num_rows - 1));
  return { a, b, loss: loss[row * scene.num_columns + column] };
}

function sceneRows(scene) {
  const loss = floats(scene.loss), at = ([low, high], i, num) => low + ((high - low) * i) / (num - 1);
  return { names: ["along", "across", "loss"], rows: Array.from(loss, (value, k) => [at(scene.a, k % scene.num_columns, scene.num_columns), at(scene.b, Math.floor(k / scene.num_columns), scene.num_rows), value]) };
}

function drawScene(context, width, height, scene) {
  const loss = floats(scene.loss), { num_columns: columns, num_rows: rows } = scene;
  const sorted = Array.from(loss).filter(Number.isFinite).sort((one, two) => one - two);
  const low = sorted[0], high = sorted[Math.floor(sorted.length * 0.92)] || low + 1;
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const value = loss[i * columns + j], t = Number.isFinite(value) ? (value - low) / (high - low || 1) : 1;
    image.data.set([...viridis(0.92 * Math.sqrt(Math.min(Math.max(t, 0), 1))), 255], 4 * ((rows - 1 - i) * columns + j));
  }
  const small = make("canvas", { width: columns, height: rows });
  small.getContext("2d").putImageData(image, 0, 0);
  const place = placeScene(scene, width, height), { px, py } = place;
  context.imageSmoothingQuality = "high";
  context.save();
  context.beginPath();
  context.rect(place.left, place.top, place.w, place.h);
  context.clip();
  context.drawImage(small, place.left, place.top, place.w, place.h);
  contours(context, loss, columns, rows, low, high, (j) => px(scene.a[0] + (j / (columns - 1)) * (scene.a[1] - scene.a[0])), (i) => py(scene.b[0] + (i / (rows - 1)) * (scene.b[1] - scene.b[0])));
  // A leg on the way to both belongs to the first.
  const own = new Map(scene.rides.flatMap((name, i) => turnsOf(name).map((_, k, all) => [all.slice(0, k + 1).join(" "), i])).reverse());
  const order = [...scene.paths].sort((one, two) => own.has(one.fingerprint) - own.has(two.fingerprint));
  for (const path of order) drawPath(context, path, own.get(path.fingerprint), px, py);
  const start = scene.paths[0];
  if (start) mark(context, "start", px(start.points[0][0]), py(start.points[0][1]), 5);
  context.restore();
  sceneAxes(context, scene, place);
  colorBar(context, place.left + place.w + 14, place.top, 12, place.h, low, high);
}

function sceneAxes(context, scene, place) {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = context.strokeStyle = paint.soft;
  context.lineWidth = 1;
  const line = (x0, y0, x1, y1) => { context.beginPath(); context.moveTo(x0, y0); context.lineTo(x1, y1); context.stroke(); };
  const bottom = place.top + place.h;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  for (const mark of ticks(...scene.a, Math.max(2, Math.floor(place.w / 80)))) { line(place.px(mark), bottom, place.px(mark), bottom + 4); context.fillText(show(mark, 3), place.px(mark), bottom + 16); }
  context.fillText(`along ride ${short(scene.rides[0])}`, place.left + place.w / 2, bottom + 33);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const mark of ticks(...scene.b, Math.max(2, Math.floor(place.h / 50)))) { line(place.left - 4, place.py(mark), place.left, place.py(mark)); context.fillText(show(mark, 3), place.left - 7, place.py(mark)); }
  const x = place.left - 44, y = place.top + place.h / 2, words = `across, towards ${short(scene.rides[1], 16)}`;
  context.textAlign = "center";
  if (context.turnAt) { context.turnAt(x, y); context.fillText(words, 0, 0); context.turnBack(); return; }
  context.save();
  context.translate(x, y);
  context.rotate(-Math.PI / 2);
  context.fillText(words, 0, 0);
  context.restore();
}

/** From the lowest loss up; the root of the height, as in the picture. */
function colorBar(context, x, top, width, height, low, high) {
  for (let i = 0; i < height; i++) { context.fillStyle = `rgb(${viridis(0.92 * (1 - i / height)).join(",")})`; context.fillRect(x, top + i, width, 1.5); }
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = paint.soft;
  for (const t of height > 120 ? [0, 0.25, 0.5, 0.75, 1] : [0, 1]) context.fillText(`${t === 1 ? "≥ " : ""}${show(low + t * t * (high - low), 3)}`, x + width + 5, top + height * (1 - t));
}

function drawPath(context, path, which, px, py) {
  const line = (points, width, color, dash = []) => {
    context.beginPath();
    points.forEach(([a, b], i) => (i ? context.lineTo(px(a), py(b)) : context.moveTo(px(a), py(b))));
    context.setLineDash(dash);
    context.strokeStyle = color;
    context.lineWidth = width;
    context.lineJoin = "round";
    context.stroke();
    context.setLineDash([]);
  };
  const isOwn = which !== undefined, color = isOwn ? PATHS[which] : "rgba(255,255,255,.55)";
  const end = path.descent && path.descent.at(-1);
  if (end) line(path.descent, isOwn ? 1.8 : 1, isOwn ? color : "rgba(255,255,255,.4)", [2, 3]);
  if (isOwn) line(path.points, 5.5, "rgba(0,0,0,.65)");
  line(path.points, isOwn ? 3 : 1.2, color);
  if (end) mark(context, path.kind, px(end[0]), py(end[1]), isOwn ? 6 : 3.5);
}

/** Lines of equal loss, by marching squares. */
function contours(context, loss, columns, rows, low, high, px, py) {
  context.strokeStyle = "rgba(255,255,255,.28)";
  context.lineWidth = 0.8;
  context.beginPath();
  for (let k = 1; k < 14; k++) {
    const level = low + (high - low) * (k / 14) ** 2;
    for (let i = 0; i + 1 < rows; i++) for (let j = 0; j + 1 < columns; j++) {
      const corners = [[i, j], [i, j + 1], [i + 1, j + 1], [i + 1, j]], cuts = [];
      for (let s = 0; s < 4; s++) {
        const [i0, j0] = corners[s], [i1, j1] = corners[(s + 1) % 4];
        const one = loss[i0 * columns + j0], two = loss[i1 * columns + j1];
        if ((one < level) === (two < level)) continue;
        const t = (level - one) / (two - one);
        cuts.push([px(j0 + t * (j1 - j0)), py(i0 + t * (i1 - i0))]);
      }
      for (let s = 0; s + 1 < cuts.length; s += 2) { context.moveTo(...cuts[s]); context.lineTo(...cuts[s + 1]); }
    }
  }
  context.stroke();
}
