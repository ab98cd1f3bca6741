// Put the page together, and keep it up to date while a search runs.

function showHead() {
  $("title").textContent = data.name;
  document.title = `${data.name} · Ridge Rider`;
  const settings = data.meta.settings || {}, versions = data.meta.versions || {};
  $("subtitle").textContent = [`${plural(data.size, "parameter", "parameters")}`, settings.order && `${settings.order.replace("_", " ")}, seed ${settings.seed}`,
    versions.ridgerider && `ridgerider ${versions.ridgerider}`, data.path].filter(Boolean).join(" · ");
  fill($("notes"), data.notes.map((note) => make("p", { class: "note" }, note)));
  if (data.index) fill($("back"), make("a", { href: data.index, id: "to-index" }, "‹ all reports"));
  showVerdict();
}

/** Names between back quotes as code, and a minus before numbers. */
function inText(text) {
  return text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part.replace(/(^|\s)-(?=\d)/g, "$1−")));
}

/** The answer first. */
function showVerdict() {
  const { state: now, headline, parts, best, go_on: goOn } = data.verdict, leg = best === null ? null : byName.get(best);
  const badge = { finished: "finished", stopped: "stopped by its budget", open: "not finished" }[now];
  const inParts = parts.map((part) => {
    const [before, after] = leg && part.startsWith("Lowest loss") ? part.split(` at ${best || "the start"}`) : [part];
    return make("span", {}, inText(before), after !== undefined && [" at ", jump(leg), inText(after)], " ");
  });
  fill($("verdict"), legs.length > 0 && [
    data.claim && make("p", { class: "claim" }, data.claim),
    make("p", { class: "headline", id: "headline" }, inText(headline), " ", make("span", { class: `badge ${now}`, id: "state" }, badge)),
    make("p", { class: "words", id: "verdict-text" }, inParts),
    goOn && make("div", { class: "command" }, make("span", { class: "quiet" }, "continue with"), make("code", { id: "go-on" }, goOn), make("button", { onclick: () => copy(goOn) }, "copy"))]);
}

function showAll() {
  layOut();
  showHead();
  showTiles();
  drawLegend();
  refreshTables();
  showDiffer();
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
  showFigure();
  showCompared();
  if (state.selected) showLeg(state.selected);
  showOverCost();
}

/** The leg to begin with: the one that the verdict names, or the shallowest way to the lowest minimum. */
function bestLeg() {
  const named = data.groups.length && data.verdict.best !== null ? byName.get(data.verdict.best) : null;
  if (named) return named;
  const ends = legs.filter((leg) => leg.solution && leg.group !== undefined && leg.solution.loss !== null);
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

const live = { lastLeg: null, wait: 1000, seen: [], follow: "" };

async function poll() {
  let isServed = true;
  try {
    const answer = await fetch(`data?${new URLSearchParams({ after: String(legs.length) })}`, { headers: { "X-Ridgerider": data.token }, cache: "no-store" });
    const news = await answer.json();
    if (news.token !== data.token) { location.reload(); return; }
    if (news.legs.length) land(news);
    else if (JSON.stringify([news.num_open, news.notes, news.verdict]) !== JSON.stringify([data.num_open, data.notes, data.verdict])) { const { legs: _, details: __, ...rest } = news; Object.assign(data, rest); showHead(); showTiles(); showDiffer(); }
    live.wait = 1000;
  } catch { live.wait = 5000; isServed = false; }
  showProgress(isServed);
  setTimeout(poll, document.hidden ? 5000 : live.wait);
}

/** How far the search is, how fast, and how long it will take. */
function showProgress(isServed = true) {
  const now = data.verdict.state, ago = live.lastLeg === null ? Infinity : (Date.now() - live.lastLeg) / 1000;
  const doing = !isServed ? "no longer served" : now !== "open" ? { finished: "finished", stopped: "stopped by its budget" }[now] : ago < 60 ? `working · last leg ${plural(Math.round(ago), "second", "seconds")} ago` : legs.length > 1 ? "waiting for legs" : "waiting for the first leg";
  $("live").textContent = doing;
  $("live").classList.toggle("quietly", !isServed || now !== "open" || ago > 30);
  const rides = Math.max(legs.length - 1, 0), [name, [done, limit]] = Object.entries(data.verdict.budget).sort(([, one], [, two]) => two[0] / two[1] - one[0] / one[1])[0] || ["", [rides, 0]];
  const part = now === "finished" ? 1 : limit ? Math.min(done / limit, 1) : 0;
  live.seen = live.seen.filter(([when]) => Date.now() - when < 60000);
  live.seen.push([Date.now(), rides, done]);
  const [first, last] = [live.seen[0], live.seen.at(-1)], seconds = (last[0] - first[0]) / 1000;
  const rate = seconds > 2 ? (last[1] - first[1]) / seconds : 0, speed = seconds > 2 ? (last[2] - first[2]) / seconds : 0;
  const words = [limit ? `${count(done)} of ${count(limit)} ${name.replace("max_", "")}` : plural(rides, "ride", "rides")];
  if (now === "open" && rate > 0) words.push(`${show(rate * 60, 3)} rides a minute`);
  if (now === "open" && speed > 0 && limit) words.push(`about ${duration((limit - done) / speed)} left`);
  $("progress-bar").value = part;
  $("progress-words").textContent = words.join(" · ");
}

function duration(seconds) {
  return seconds < 90 ? plural(Math.max(1, Math.round(seconds)), "second", "seconds") : seconds < 5400 ? plural(Math.round(seconds / 60), "minute", "minutes") : plural(Math.round(seconds / 3600), "hour", "hours");
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
  if (isFirst && legs.length) select(bestLeg());
  else if (live.follow === "newest") select(legs.at(-1), "follow");
  else if (live.follow === "best" && bestLeg() !== state.selected) select(bestLeg(), "follow");
  else drawTree();
  if (state.selected && rows.some((row) => turnsOf(row.fingerprint).slice(0, -1).join(" ") === state.selected.fingerprint)) showLeg(state.selected);
}

/** The leg that the address names: `#leg=0+ 1-`. */
function named() {
  const found = /^#leg=(.*)$/.exec(location.hash);
  if (!found) return null;
  try { return byName.get(decodeURIComponent(found[1]).trim()) || null; } catch { return null; }
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
  if (!legs.some((leg) => leg.solution && leg.group !== undefined) && legs.some((leg) => leg.solution)) $("kind").value = ""; // no minimum to show: show the others
  showAll();
  showGlossary();
  if (legs.length) select(named() || bestLeg());
  window.addEventListener("hashchange", () => { const leg = named(); if (leg && leg !== state.selected) select(leg, "link"); });
  state.listeners.push((leg) => { try { history.replaceState(null, "", `#leg=${encodeURIComponent(leg.fingerprint).replaceAll("%2B", "+")}`); } catch { /* where the address may not change */ } });
  window.addEventListener("beforeprint", () => printed(true));
  window.addEventListener("afterprint", () => printed(false));
  matchMedia("print").addEventListener("change", (event) => printed(event.matches));
  document.addEventListener("click", (event) => { for (const menu of document.querySelectorAll("details.save[open]")) if (!menu.contains(event.target)) menu.open = false; });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { drawTree(); if (window.innerWidth !== width) { width = window.innerWidth; clearTimeout(begin.timer); begin.timer = setTimeout(redraw, 120); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (data.token) {
    for (const id of ["live", "progress"]) $(id).hidden = false;
    for (const which of ["newest", "best"]) $(`follow-${which}`).addEventListener("click", () => {
      live.follow = live.follow === which ? "" : which;
      for (const one of ["newest", "best"]) $(`follow-${one}`).setAttribute("aria-pressed", String(one === live.follow));
      if (live.follow && legs.length) select(which === "newest" ? legs.at(-1) : bestLeg(), "follow");
    });
    showProgress();
    setTimeout(poll, live.wait);
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds since the page was asked for
}

begin();
