// Puts what the pages need of npm's packages into one script, dist/vendor.js, which build.rs embeds.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
// In this order: idiomorph's extension registers itself with htmx.
const PARTS = ["node_modules/htmx.org/dist/htmx.min.js", "node_modules/idiomorph/dist/idiomorph-ext.min.js"];

mkdirSync(here("dist"), { recursive: true });
const bundle = PARTS.map((path) => `/* ${path.replace("node_modules/", "")} */\n${readFileSync(here(path), "utf8").trim()}\n`).join("");
writeFileSync(here("dist/vendor.js"), bundle);
// What charts are drawn by comes only where there is one.
for (const [from, to] of [["uPlot.iife.min.js", "uplot.js"], ["uPlot.min.css", "uplot.css"]]) {
  writeFileSync(here(`dist/${to}`), readFileSync(here(`node_modules/uplot/dist/${from}`)));
}
console.log(`dist/vendor.js: ${bundle.length} bytes`);
