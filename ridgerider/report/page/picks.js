// The set of solutions: which one to take.

const picks = { key: null };

function isStanding(leg) {
  return leg.group !== undefined && data.groups[leg.group] === leg.fingerprint;
}

function metricOf(leg, name) {
  const value = leg.metrics ? leg.metrics[name] : null;
  return Array.isArray(value) ? value[0] : value ?? null;
}

/** How far the mean over examples may be off, for all solutions at once. */
function boundOf(leg, name) {
  const value = leg.metrics ? leg.metrics[name] : null;
  return Array.isArray(value) ? Math.sqrt(Math.log(data.groups.length / 0.05) / (2 * value[1])) : null;
}

/** The loss where a leg led to; at infinity its limit. */
function levelAt(leg) {
  return leg.solution ? levelOf(leg.solution) ?? leg.solution.loss : leg.loss;
}

/** The place of a solution among those that are compared. */
function placeOf(leg) {
  return data.apart.groups.indexOf(leg.group);
}

function nearestOther(leg) {
  const place = placeOf(leg);
  if (place < 0 || data.apart.groups.length < 2) return null;
  return least(data.apart.distances[place].filter((_, j) => j !== place));
}

/** What it cost to come here: all legs on the way. */
function costOfWay(leg) {
  let total = 0;
  for (let one = leg; one; one = one.parent) total += one.cost[2];
  return total;
}

function pickColumns() {
  const number = (name, value, digits, of = {}) => ({ name, value, cell: (leg) => show(value(leg), digits), ...of });
  const columns = [
    fingerprintColumn,
    number("loss", levelAt, 6),
  ];
  for (const name of data.metrics) {
    columns.push(number(name, (leg) => metricOf(leg, name), 5, { term: "metric" }));
    if (legs.some((leg) => boundOf(leg, name) !== null)) columns.push(number(`± (${name})`, (leg) => boundOf(leg, name), 3, { term: "bound" }));
  }
  if (data.signature) columns.push({ name: "does", text: true, term: "signature", value: (leg) => data.labels[leg.group], cell: (leg) => data.labels[leg.group] });
  if (legs.some((leg) => leg.solution)) columns.push(number("least eigenvalue", (leg) => (leg.solution ? leg.solution.least_eigenvalue : null), 4),
    { name: "kind", text: true, value: (leg) => (leg.solution ? leg.solution.kind : "ride"), cell: (leg) => kindCell(leg) });
  columns.push(number("nearest", nearestOther, 4, { term: "nearest" }), number("legs", (leg) => groups[leg.group].length, 6, { term: "leg" }),
    { name: "HVPs of its way", term: "HVP", value: costOfWay, cell: (leg) => count(costOfWay(leg)) });
  return columns;
}

function showPicks() {
  const key = JSON.stringify([data.metrics, data.signature, legs.some((leg) => leg.solution)]);
  if (picks.key !== key) {
    picks.key = key;
    tables.picks = new Table($("picks"), pickColumns(), isStanding, 1, "Which one?");
    putSaves("picks-bar", "solutions", { table: () => tables.picks.plain() });
  }
  tables.picks.refresh();
  $("picks-note").textContent = data.groups.length ? "" : `No ${data.signature ? "solution" : "minimum"} was found${soFar()}.`;
}
