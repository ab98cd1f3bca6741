// What is drawn on a canvas, drawn again as SVG.

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
