// Files of comma-separated values.

import { button } from "./dom.js";

/** Text of a cell. A leading quote keeps spreadsheets from running a text as a formula. */
function cell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A button that saves rows as a file. `load()` returns the rows, each an object with the same names. */
export function csvButton(name, load) {
  const node = button("CSV", async () => {
    node.disabled = true;
    try {
      const rows = await load();
      const names = Object.keys(rows[0] ?? {});
      const text = [names, ...rows.map((row) => names.map((each) => row[each]))].map((row) => row.map(cell).join(",")).join("\r\n");
      const url = URL.createObjectURL(new Blob([text, "\r\n"], { type: "text/csv" }));
      const link = document.createElement("a");
      Object.assign(link, { href: url, download: `kvproxy-${name}.csv` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } finally {
      node.disabled = false;
    }
  }, { "aria-label": `Save ${name} as CSV` });
  return node;
}
