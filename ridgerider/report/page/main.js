// Put the page together, and keep it up to date while a search runs.

function showHead() {
  $("title").textContent = data.name;
  document.title = `${data.name} · Ridge Rider`;
  const settings = data.meta.settings || {}, versions = data.meta.versions || {};
  $("subtitle").textContent = [`${plural(data.size, "parameter", "parameters")}`, settings.order && `${settings.order.replace("_", " ")}, seed ${settings.seed}`,
    versions.ridgerider && `ridgerider ${versions.ridgerider}`, data.path].filter(Boolean).join(" · ");
  fill($("notes"), data.notes.map((note) => make("p", { class: "note" }, note)));
}

function showAll() {
  layOut();
  showHead();
  showTiles();
  drawLegend();
  refreshTables();
  showLedger();
  showOverCost();
  showDistances();
  showSettings();
}

function redraw() {
  readColors();
  drawLegend();
  drawTree();
  showDistances();
  if (state.selected) showLeg(state.selected);
  showOverCost();
  showLandscape();
}

/** The leg to begin with: the shallowest way to the lowest minimum. */
function bestLeg() {
  const ends = legs.filter((leg) => leg.solution && leg.solution.class !== undefined && leg.solution.loss !== null);
  if (!ends.length) return legs.reduce((best, leg) => ((lowest(leg) ?? Infinity) < (lowest(best) ?? Infinity) ? leg : best));
  const low = least(ends.map((leg) => leg.solution.loss));
  const near = ends.filter((leg) => leg.solution.loss <= low + 1e-6 * Math.max(1e-12, Math.abs(low)));
  return near.reduce((best, leg) => (leg.depth < best.depth ? leg : best));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("ridgerider-theme", theme); } catch { /* a page need not remember */ }
  redraw();
}

// --- a run that grows

const live = { lastLeg: null, wait: 1000 };

async function poll() {
  let text = "no longer served", isQuiet = true;
  try {
    const answer = await fetch(`data?${new URLSearchParams({ after: String(legs.length) })}`, { headers: { "X-Ridgerider": data.token }, cache: "no-store" });
    const news = await answer.json();
    if (news.token !== data.token) { location.reload(); return; }
    if (news.legs.length) land(news);
    else if (news.num_open !== data.num_open || news.notes.join() !== data.notes.join()) { data.num_open = news.num_open; data.notes = news.notes; showHead(); showTiles(); }
    isQuiet = Date.now() - (live.lastLeg || 0) > 30000;
    text = live.lastLeg ? `live · last leg ${plural(Math.round((Date.now() - live.lastLeg) / 1000), "second", "seconds")} ago` : "live · waiting for legs";
    live.wait = 1000;
  } catch { live.wait = 5000; }
  $("live").textContent = text;
  $("live").classList.toggle("quietly", isQuiet);
  setTimeout(poll, document.hidden ? 5000 : live.wait);
}

/** New legs have landed. */
function land(news) {
  const isFirst = !legs.length;
  const { legs: rows, details, ...rest } = news;
  Object.assign(data, rest);
  lateDetails.push(...details);
  addLegs(rows);
  live.lastLeg = Date.now();
  showAll();
  landscapeControls();
  if (isFirst && legs.length) select(bestLeg());
  else drawTree();
  if (state.selected && rows.some((row) => turnsOf(row.fingerprint).slice(0, -1).join(" ") === state.selected.fingerprint)) showLeg(state.selected);
}

function begin() {
  try { const theme = localStorage.getItem("ridgerider-theme"); if (theme) document.documentElement.dataset.theme = theme; } catch { /* as above */ }
  readColors();
  addLegs(data.legs);
  data.legs = null;
  for (const [value, name] of [[2, "Hessian-vector products"], [1, "gradients"], [5, "seconds"], [6, "rides"]]) $("cost-axis").append(make("option", { value }, name));
  $("cost-axis").addEventListener("input", showOverCost);
  $("theme").addEventListener("click", () => setTheme(paint.dark ? "light" : "dark"));
  makeTables();
  listenToTree();
  state.listeners.push(showLeg);
  if (!classes.length && legs.some((leg) => leg.solution)) $("kind").value = ""; // no minimum to show: show the others
  showAll();
  landscapeControls();
  showLandscape();
  if (legs.length) select(bestLeg());
  let width = window.innerWidth;
  window.addEventListener("resize", () => { drawTree(); if (window.innerWidth !== width) { width = window.innerWidth; clearTimeout(begin.timer); begin.timer = setTimeout(redraw, 120); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (data.token) { $("live").hidden = false; $("live").textContent = "live"; setTimeout(poll, live.wait); }
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds since the page was asked for
}

begin();
