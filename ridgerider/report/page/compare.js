// The page that compares runs: its tables and charts.

const isText = (value) => typeof value === "string";
const cell = (value) => make("td", { class: isText(value) && "text" }, isText(value) ? value : Number.isInteger(value) ? count(value) : show(value, 6));

function plainTable({ head, rows }, name) {
  const top = make("tr", {}, head.map((title, i) => make("th", { scope: "col", class: rows.some((row) => isText(row[i])) && "text" }, title)));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${name}` },
    make("table", { class: "plain-table" }, make("thead", {}, top), make("tbody", {}, rows.map((row) => make("tr", {}, row.map(cell))))));
}

const AXES = { evaluations: (cost) => cost[0] + cost[1] + cost[2], seconds: (cost) => cost[5] };

/** A chart of one quantity of all runs; `read` takes it from what was found over the cost. */
function showChart(title, axis, value, read) {
  const lines = Object.values(data.legs).map((rows) => overCost(rows.map((row) => ({ spent: AXES[axis](row.cost), solution: row.solution, value: value(row) }))));
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((one, two) => one - two);
  const at = (line, place) => (place > line.x.at(-1) ? NaN : read(line)[line.x.findLastIndex((one) => one <= place)]);
  const series = lines.map((line, i) => ({ name: names[i], color: `var(--run${i % 6})`, steps: true, values: x.map((place) => at(line, place)) }));
  const one = chart({ title, x, series, xTitle: axis, width: Math.max(280, Math.min($("charts").clientWidth, 560)), height: 220 });
  one.at(x.length - 1);
  one.svg.addEventListener("pointermove", (event) => one.at(one.find(event)));
  return one.box;
}

function showCharts(axis) {
  const metrics = data.metrics.map((name) => showChart(`highest ${name} so far`, axis, ({ metrics: { [name]: value = null } }) => value && -value, (line) => line.best.map((value) => -value)));
  return [!isText(data.solutions) && showChart("different solutions", axis, () => null, (line) => line.found), showChart("lowest loss so far", axis, (row) => row.loss, (line) => line.best), metrics];
}

/** Settings that differ. Where the rider is another one, its own rules have nothing to be compared with. */
function settingsTable() {
  const all = Object.values(data.meta), isOne = new Set(all.map(({ rider = {} }) => rider.type)).size === 1;
  const shown = all.map(({ settings, budget, versions, rider = {} }) => ({ ...settings, ...budget, ...(isOne ? rider.fields : { rider: rider.type && { type: rider.type } }), ...versions }));
  const rows = [...new Set(shown.flatMap(Object.keys))].map((name) => [name, ...shown.map((one) => inWords(one[name]))]).filter(([, ...words]) => new Set(words).size > 1);
  return rows.length ? { head: ["setting", ...names], rows } : "No setting differs.";
}

const names = Object.keys(data.legs);
$("heading").textContent = `${names.length} runs compared`;
$("verdict").textContent = data.verdict;
for (const [name, table] of Object.entries({ runs: data.runs, settings: settingsTable(), solutions: data.solutions })) fill($(name), isText(table) ? table : plainTable(table, name));
fill($("charts"), Object.keys(AXES).map(showCharts));
document.documentElement.dataset.ready = "";
