// Tables of solutions and of legs. Only the rows in view exist; on paper all of them.

const MAX_PRINTED = 2000;
let isPrinting = false;

function printed(isIt) {
  if (isPrinting === isIt) return;
  isPrinting = isIt;
  for (const table of Object.values(tables)) table.draw();
}

class Table {
  /** `columns`: name, value(leg) to sort by, cell(leg) to show; `choose(leg)`: whether it is listed. */
  constructor(box, columns, choose, sorted, label) {
    Object.assign(this, { columns, choose, column: sorted, way: 1, rows: [], top: 0 });
    this.body = make("tbody");
    this.head = make("tr", {}, columns.map((column, i) => make("th", { scope: "col", class: column.text ? "text" : null, title: column.term ? TERMS[column.term] : null },
      make("button", { onclick: () => this.sortBy(i) }, column.name))));
    this.scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${label}` },
      make("table", {}, make("thead", {}, this.head), this.body));
    // Asked for while the page changes, where it is scrolled to would cost a layout.
    this.scroll.addEventListener("scroll", () => { this.top = this.scroll.scrollTop; this.draw(); });
    fill(box, this.scroll);
  }

  sortBy(i) {
    this.way = this.column === i ? -this.way : 1;
    this.column = i;
    this.refresh();
  }

  refresh() {
    const { value } = this.columns[this.column];
    const rows = legs.filter(this.choose).map((leg) => ({ leg, key: value(leg) }));
    const last = (key) => key === null || key === undefined || Number.isNaN(key);
    rows.sort((one, two) => {
      if (last(one.key) || last(two.key)) return last(one.key) - last(two.key) || one.leg.number - two.leg.number;
      const order = one.key < two.key ? -1 : one.key > two.key ? 1 : 0;
      return this.way * order || one.leg.depth - two.leg.depth || one.leg.number - two.leg.number;
    });
    this.rows = rows.map((row) => row.leg);
    [...this.head.children].forEach((th, i) => {
      if (i === this.column) th.setAttribute("aria-sort", this.way > 0 ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
      th.firstChild.textContent = this.columns[i].name + (i === this.column ? (this.way > 0 ? " ↑" : " ↓") : "");
    });
    this.draw();
  }

  draw() {
    this.size ??= matchMedia("(max-width: 640px)").matches ? 40 : 34;
    const shown = isPrinting ? Math.min(this.rows.length, MAX_PRINTED) : Math.min(this.rows.length, 12);
    this.scroll.style.height = `${(Math.max(shown, 1) + 1) * this.size + 16}px`;
    this.scroll.classList.toggle("more", this.top + (shown + 1) * this.size < this.rows.length * this.size);
    const first = isPrinting ? 0 : Math.max(0, Math.floor(this.top / this.size) - 6);
    const end = Math.min(this.rows.length, first + shown + 14);
    const space = (num) => {
      const cell = make("td", { colspan: this.columns.length });
      cell.style.height = `${num * this.size}px`;
      return make("tr", { class: "space", "aria-hidden": "true" }, cell);
    };
    const rows = this.rows.slice(first, end).map((leg) => make("tr", { class: leg === state.selected ? "row chosen" : "row" },
      this.columns.map((column) => make("td", { class: column.text ? "text" : null }, column.cell(leg)))));
    if (!rows.length) rows.push(make("tr", {}, make("td", { class: "text quiet", colspan: this.columns.length }, "nothing to show")));
    fill(this.body, first > 0 && space(first), rows, end < this.rows.length && !isPrinting && space(this.rows.length - end));
    if (isPrinting && end < this.rows.length) this.body.append(make("tr", {}, make("td", { class: "text quiet", colspan: this.columns.length }, `and ${count(this.rows.length - end)} more`)));
  }

  toTop() {
    this.top = this.scroll.scrollTop = 0;
  }

  /** All rows that are listed, as plain values. */
  plain() {
    const columns = this.columns.filter((column) => !column.plain);
    return { names: columns.map((column) => column.name), rows: this.rows.map((leg) => columns.map((column) => (column.raw || column.value)(leg))) };
  }
}

function fingerprintCell(leg) {
  return [jump(leg), leg.fingerprint && make("button", { class: "copy", "aria-label": `Copy ${leg.fingerprint}`, title: "copy", onclick: () => copy(leg.fingerprint) }, copyIcon())];
}

function kindCell(leg) {
  const { kind = "ride", doubt = "" } = leg.solution || {};
  return [make("span", { class: `mark ${kind.replace(" ", "-")}`, "aria-hidden": "true" }, SHAPES[kind] || "·"), make("span", { title: doubt || TERMS[kind] }, ` ${kind}`)];
}

function copyIcon() {
  return make("svg", { viewBox: "0 0 16 16", width: 13, height: 13, fill: "none", stroke: "currentColor", "stroke-width": 1.5, "aria-hidden": "true" },
    make("rect", { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }), make("path", { d: "M10.5 3v-.5h-8v8H3" }));
}

function matches(leg, text) {
  return leg.fingerprint.includes(text.trim().split(/\s+/).join(" ").replaceAll("−", "-"));
}

const fingerprintColumn = { name: "fingerprint", text: true, term: "fingerprint", raw: (leg) => leg.fingerprint, value: (leg) => leg.rankPath ??= leg.turns.map((turn) => turn.padStart(6, "0")).join(" "), cell: fingerprintCell };

function solutionColumns() {
  const end = (leg) => leg.solution;
  const number = (leg) => leg.group ?? null, does = (leg) => (data.signature ? data.labels[number(leg)] : number(leg) + 1);
  return [
    fingerprintColumn,
    { name: "loss", value: (leg) => levelOf(end(leg)), cell: (leg) => show(levelOf(end(leg)), 6) },
    { name: "least eigenvalue", value: (leg) => end(leg).least_eigenvalue, cell: (leg) => show(end(leg).least_eigenvalue, 4) },
    { name: "kind", text: true, value: (leg) => end(leg).kind, cell: kindCell },
    { name: "flat", term: "flat", value: (leg) => end(leg).num_flat ?? 0, cell: (leg) => end(leg).num_flat ?? 0 },
    { name: data.signature ? "does" : "class", text: true, term: data.signature ? "signature" : "class", value: number, raw: (leg) => (number(leg) === null ? null : does(leg)), cell: (leg) => (number(leg) === null ? "–" : [`${does(leg)} `, standsFor(number(leg)) === leg ? make("span", { class: "quiet" }, "stands for it") : ["as ", jump(standsFor(number(leg)))]]) },
    { name: "legs", value: (leg) => (number(leg) === null ? 1 : groups[number(leg)].length), cell: (leg) => count(number(leg) === null ? 1 : groups[number(leg)].length) },
    { name: "gradient norm", value: (leg) => end(leg).grad_norm, cell: (leg) => show(end(leg).grad_norm, 2) },
    { name: "turns", term: "turn", value: (leg) => leg.depth, cell: (leg) => leg.depth },
  ];
}

function legColumns() {
  const cost = (i, digits) => ({ name: ["values", "gradients", "HVPs", "Hessians", "decompositions", "seconds"][i], value: (leg) => leg.cost[i], cell: (leg) => (digits ? show(leg.cost[i], digits) : count(leg.cost[i])) });
  return [
    fingerprintColumn,
    { name: "landed", value: (leg) => leg.number, cell: (leg) => leg.number },
    { name: "steps", value: (leg) => leg.num_steps, cell: (leg) => count(leg.num_steps) },
    { name: "loss", value: (leg) => leg.loss, cell: (leg) => show(leg.loss, 6) },
    { name: "eigenvalue", value: (leg) => leg.eigenvalue, cell: (leg) => show(leg.eigenvalue, 4) },
    { name: "ended by", text: true, value: (leg) => leg.ended_by.join(), cell: (leg) => leg.ended_by.join(", ") },
    { name: "certificate", text: true, term: "certificate", value: (leg) => leg.certificate, cell: (leg) => leg.certificate || "–" },
    cost(2), cost(1), cost(0), cost(3), cost(5, 3),
  ];
}

const tables = {};

function makeTables() {
  const kind = $("kind"), find = $("solution-filter"), reason = $("reason"), findLeg = $("leg-filter");
  if (data.signature) kind.options[0].textContent = `different by ${data.signature}`;
  const ofKind = (leg) => kind.value === "" || (kind.value === "different" ? leg.group !== undefined && standsFor(leg.group) === leg : leg.solution.kind === kind.value);
  tables.solutions = new Table($("solutions"), solutionColumns(), (leg) => leg.solution && ofKind(leg) && matches(leg, find.value), 1, "Solutions");
  tables.legs = new Table($("legs"), legColumns(), (leg) => leg.parent && (!reason.value || leg.ended_by.includes(reason.value)) && matches(leg, findLeg.value), 1, "Legs");
  for (const control of [kind, find]) control.addEventListener("input", () => { tables.solutions.toTop(); refreshTables(); });
  for (const control of [reason, findLeg]) control.addEventListener("input", () => { tables.legs.toTop(); refreshTables(); });
  putSaves("solutions-bar", "ends", { table: () => tables.solutions.plain() });
  putSaves("legs-bar", "legs", { table: () => tables.legs.plain() });
  state.listeners.push(() => { for (const table of Object.values(tables)) table.draw(); });
}

function refreshTables() {
  const reasons = new Set(legs.filter((leg) => leg.parent).flatMap((leg) => leg.ended_by));
  const known = new Set([...$("reason").options].map((option) => option.value));
  for (const one of [...reasons].sort()) if (!known.has(one)) $("reason").append(make("option", { value: one }, one));
  $("ends-card").hidden = legs.length > 1 && !legs.some((leg) => leg.solution);
  tables.solutions.refresh();
  tables.legs.refresh();
  $("solutions-count").textContent = `${count(tables.solutions.rows.length)} shown`;
  $("legs-count").textContent = `${count(tables.legs.rows.length)} shown`;
}
