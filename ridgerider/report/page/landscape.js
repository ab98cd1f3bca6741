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
  say("Computing the loss in this plane …");
  try {
    const answer = await fetch(`landscape?${new URLSearchParams({ one: names[0], two: names[1] })}`, { headers: { "X-Ridgerider": data.token } });
    const found = await answer.json();
    if (found.error) say(found.error);
    else { scenery.shown = data.landscapes.push(found) - 1; landscapeControls(); showLandscape(); }
  } catch { say("The search's page is no longer served"); }
  scenery.busy = false;
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
  // The same scale across and up, unless that makes it too flat or too high.
  const shape = (scene.b[1] - scene.b[0]) / (scene.a[1] - scene.a[0]);
  canvas.style.height = `${Math.min(box.clientWidth * Math.min(Math.max(shape, 0.4), 0.9), Math.max(360, 0.62 * window.innerHeight))}px`;
  const exact = scene.paths.filter((path) => path.is_exact).length;
  fill(box, make("div", { class: "figure" }, canvas), make("p", { class: "caption" },
    `Loss in the plane through the fork of ${scene.rides[0]} (white, across) and ${scene.rides[1]} (amber) and through both ends; `,
    `darker is lower. ${exact === scene.paths.length ? "Rides are drawn step by step" : `${plural(exact, "ride is", "rides are")} drawn step by step, the others as straight lines between their ends`}; dotted: descent. `,
    "Paths leave the plane: the loss under them is the plane's."));
  drawScene(canvas, scene);
  return undefined;
}

function drawScene(canvas, scene) {
  const [context, width, height] = sharp(canvas);
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
  const frame = { left: 8, right: 8, top: 8, bottom: 8 };
  const px = (a) => frame.left + ((a - scene.a[0]) / (scene.a[1] - scene.a[0])) * (width - frame.left - frame.right);
  const py = (b) => height - frame.bottom - ((b - scene.b[0]) / (scene.b[1] - scene.b[0])) * (height - frame.top - frame.bottom);
  context.imageSmoothingQuality = "high";
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, width - frame.left - frame.right, height - frame.top - frame.bottom);
  context.clip();
  context.drawImage(small, frame.left, frame.top, width - frame.left - frame.right, height - frame.top - frame.bottom);
  contours(context, loss, columns, rows, low, high, (j) => px(scene.a[0] + (j / (columns - 1)) * (scene.a[1] - scene.a[0])), (i) => py(scene.b[0] + (i / (rows - 1)) * (scene.b[1] - scene.b[0])));
  // A leg on the way to both belongs to the first.
  const own = new Map(scene.rides.flatMap((name, i) => turnsOf(name).map((_, k, all) => [all.slice(0, k + 1).join(" "), i])).reverse());
  const order = [...scene.paths].sort((one, two) => own.has(one.fingerprint) - own.has(two.fingerprint));
  for (const path of order) drawPath(context, path, own.get(path.fingerprint), px, py);
  const start = scene.paths.find((path) => path.is_exact) || scene.paths[0];
  if (start) mark(context, "start", px(start.points[0][0]), py(start.points[0][1]), 5);
  context.restore();
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
  if (path.end) line([path.points.at(-1), path.end], isOwn ? 1.8 : 1, isOwn ? color : "rgba(255,255,255,.4)", [2, 3]);
  if (isOwn) line(path.points, 5.5, "rgba(0,0,0,.65)");
  line(path.points, isOwn ? 3 : 1.2, color);
  if (path.end) mark(context, path.kind, px(path.end[0]), py(path.end[1]), isOwn ? 6 : 3.5);
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
