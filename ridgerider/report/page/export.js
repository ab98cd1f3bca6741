// Take it with you: tables as CSV and JSON, charts as SVG and PNG. All of it is made in the page.

function download(what, ending, content, type) {
  const stem = data.name.replace(/[^\w-]+/g, "-").replace(/^-+|-+$/g, "") || "run";
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = make("a", { href: address, download: `${stem}-${what}.${ending}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 5000);
}

/** Rows of plain values, as text: numbers in full, quotes where they are needed. */
function csvOf(names, rows) {
  const cell = (value) => {
    const text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
    return /[",\n\r]/.test(text) || /^[=@]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function saveTable(what, ending, { names, rows }) {
  if (ending === "csv") download(what, "csv", csvOf(names, rows), "text/csv");
  else download(what, "json", JSON.stringify(rows.map((row) => Object.fromEntries(names.map((name, i) => [name, Number.isNaN(row[i]) ? null : row[i] ?? null]))), null, 1), "application/json");
}

async function saveChart(what, ending, picture) {
  const { text, width, height } = picture();
  if (ending === "svg") return download(what, "svg", text, "image/svg+xml");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = make("canvas", { width: width * 2, height: height * 2 });
  canvas.getContext("2d").drawImage(image, 0, 0, width * 2, height * 2);
  const blob = await new Promise((done) => { canvas.toBlob(done, "image/png"); });
  return download(what, "png", blob);
}

/** A small menu; `of` gives a table (names, rows) or a picture (text, width, height) when asked. */
function saves(what, { table = null, picture = null }) {
  const button = (ending, go) => make("button", { class: "save-as", "data-save": `${what}.${ending}`, onclick: (event) => { go(what, ending, ending === "csv" || ending === "json" ? table() : picture); event.target.closest("details").open = false; } }, ending.toUpperCase());
  return make("details", { class: "save" }, make("summary", { "aria-label": `Save ${what}`, title: `Save ${what}` }, "save"),
    make("div", {}, picture && [button("png", saveChart), button("svg", saveChart)], table && [button("csv", saveTable), button("json", saveTable)]));
}

function putSaves(id, what, of) {
  const bar = $(id);
  const old = bar.querySelector(".save");
  if (old) old.remove();
  bar.append(saves(what, of));
}

// --- what is drawn on a canvas, drawn again as SVG

const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

class Recorder {
  constructor() {
    Object.assign(this, { parts: [], path: "", stack: [], open: 0, numClips: 0, dash: [], fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, font: "11px sans-serif", textAlign: "left", textBaseline: "alphabetic", globalAlpha: 1, lineJoin: "miter" });
  }

  at(...numbers) { return numbers.map((one) => Number(one.toFixed(2))).join(" "); }
  beginPath() { this.path = ""; }
  closePath() { this.path += "Z"; }
  moveTo(x, y) { this.path += `M${this.at(x, y)}`; }
  lineTo(x, y) { this.path += `L${this.at(x, y)}`; }
  bezierCurveTo(...points) { this.path += `C${this.at(...points)}`; }
  rect(x, y, w, h) { this.path += `M${this.at(x, y)}h${this.at(w)}v${this.at(h)}h${this.at(-w)}Z`; }
  arc(x, y, r) { this.path += `M${this.at(x - r, y)}a${this.at(r, r)} 0 1 0 ${this.at(2 * r, 0)}a${this.at(r, r)} 0 1 0 ${this.at(-2 * r, 0)}`; }
  setLineDash(dash) { this.dash = dash; }
  clearRect() { /* nothing is there yet */ }
  stroke() { this.parts.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-linejoin="${this.lineJoin}" opacity="${this.globalAlpha}"${this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : ""}/>`); }
  fill() { this.parts.push(`<path d="${this.path}" fill="${this.fillStyle}" opacity="${this.globalAlpha}"/>`); }
  fillRect(x, y, w, h) { this.parts.push(`<rect x="${this.at(x)}" y="${this.at(y)}" width="${this.at(w)}" height="${this.at(h)}" fill="${this.fillStyle}"/>`); }
  strokeText(text, x, y) { this.text(text, x, y, `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-linejoin="round"`); }
  fillText(text, x, y) { this.text(text, x, y, `fill="${this.fillStyle}"`); }

  text(text, x, y, how) {
    const [, weight, size, family] = /^(?:(\d+|bold) )?([\d.]+)px (.*)$/.exec(this.font);
    const anchor = { left: "start", right: "end", center: "middle" }[this.textAlign] || "start";
    const turned = this.turned ? ` transform="translate(${this.at(...this.turned)}) rotate(-90)"` : "";
    this.parts.push(`<text x="${this.at(x)}" y="${this.at(y + (this.textBaseline === "middle" ? 0.35 * size : 0))}"${turned} font-size="${size}" font-family="${escaped(family)}"${weight ? ` font-weight="${weight}"` : ""} text-anchor="${anchor}" ${how}>${escaped(text)}</text>`);
  }

  /** Upwards, as a context does by `translate` and `rotate`. */
  turnAt(x, y) { this.turned = [x, y]; }
  turnBack() { this.turned = null; }
  measureText(text) { return { width: 0.6 * Number(/([\d.]+)px/.exec(this.font)[1]) * String(text).length }; }
  drawImage(image, x, y, w, h) { this.parts.push(`<image href="${image.toDataURL()}" x="${this.at(x)}" y="${this.at(y)}" width="${this.at(w)}" height="${this.at(h)}" preserveAspectRatio="none"/>`); }
  save() { this.stack.push(this.open); }
  clip() { this.open += 1; this.numClips += 1; this.parts.push(`<clipPath id="c${this.numClips}"><path d="${this.path}"/></clipPath><g clip-path="url(#c${this.numClips})">`); }
  restore() { const before = this.stack.pop(); while (this.open > before) { this.parts.push("</g>"); this.open -= 1; } }
}

function svgFile(width, height, inner) {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><rect width="100%" height="100%" fill="${paint.card}"/>${inner}</svg>`;
}

/** The picture of a canvas: `draw(context, width, height)` as it draws on the screen. */
function recorded(canvas, draw) {
  const width = canvas.clientWidth, height = canvas.clientHeight, context = new Recorder();
  draw(context, width, height);
  return { text: svgFile(width, height, context.parts.join("")), width, height };
}

/** The charts in an element, one below the other, with their titles and the page's colours. */
function stacked(box) {
  let height = 8, width = 0, inner = "";
  const color = (text) => text.replace(/var\(--([\w-]+)\)/g, (_, name) => paint[name] || "#888");
  for (const svg of box.querySelectorAll("svg[viewBox]")) {
    if (svg.closest("button")) continue;
    const [, , w, h] = svg.getAttribute("viewBox").split(" ").map(Number);
    const title = svg.parentElement.querySelector(".head b");
    if (title) { height += 16; inner += `<text x="12" y="${height - 4}" font-size="12" font-weight="600" font-family="sans-serif" fill="${paint.ink}">${escaped(title.textContent)}</text>`; }
    const copied = svg.cloneNode(true);
    for (const text of copied.querySelectorAll("text")) { if (!text.getAttribute("fill")) text.setAttribute("fill", paint.soft); text.setAttribute("font-size", "11"); text.setAttribute("font-family", "sans-serif"); }
    for (const line of copied.querySelectorAll("line.grid, line.axis")) line.setAttribute("stroke", paint.line);
    inner += `<g transform="translate(0 ${height})">${color(new XMLSerializer().serializeToString(copied)).replace(/^<svg[^>]*>/, "").replace(/<\/svg>$/, "")}</g>`;
    height += h + 16;
    width = Math.max(width, w);
  }
  return { text: svgFile(width, height, inner), width, height };
}
