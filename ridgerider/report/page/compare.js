// The page that compares runs: its tables and charts.

const isText = (value) => typeof value === "string";
const cell = (value) => make("td", { class: isText(value) && "text" }, isText(value) ? value : Number.isInteger(value) ? count(value) : show(value, 6));

function plainTable({ head, rows }) {
  const top = make("tr", {}, head.map((name, i) => make("th", { scope: "col", class: rows.some((row) => isText(row[i])) && "text" }, name)));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    make("table", { class: "plain-table" }, make("thead", {}, top), make("tbody", {}, rows.map((row) => make("tr", {}, row.map(cell))))));
}

function showChart({ title, axis, x, values }) {
  const series = values.map((one, i) => ({ name: data.names[i], values: one, color: `var(--run${i % 6})`, steps: true }));
  const one = chart({ title, x, series, xTitle: axis, width: Math.max(280, Math.min($("charts").clientWidth, 560)), height: 220 });
  one.at(x.length - 1);
  one.svg.addEventListener("pointermove", (event) => one.at(one.find(event)));
  return one.box;
}

$("heading").textContent = `${data.names.length} runs compared`;
$("verdict").textContent = data.verdict;
for (const name of ["runs", "settings", "solutions"]) fill($(name), isText(data[name]) ? data[name] : plainTable(data[name]));
fill($("charts"), data.charts.map(showChart));
document.documentElement.dataset.ready = "";
