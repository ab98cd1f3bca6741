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

// --- pictures

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
