// Elements of the page. Texts become text nodes and nothing else: what prompts say is never read as HTML.

/**
 * An element.
 * @param {string} tag its name
 * @param {object} props attributes by name; `on...` a listener, `class` and `text` as they say, `null` and `false` are left out
 * @param {...(Node|string|number|null)} children nodes, or texts
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Put children in place of what a node holds. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** The nodes of a sentence, whose parts between backticks are code. */
export function sentenceNodes(sentence) {
  return sentence.split("`").map((part, place) => place % 2 ? h("code", {}, part) : part);
}

/** An element of an SVG picture. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** A button. */
export function button(text, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, text);
}

/** A choice of one of several values; `options` are `[value, text]`. */
export function choice(label, options, value, onchange) {
  const select = h("select", { onchange: () => onchange(select.value) },
    options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)));
  return h("label", { class: "field" }, h("span", {}, label), select);
}

/** A field for text; `onchange` gets it when typing rests. */
export function field(label, value, onchange, props = {}) {
  let timer = 0;
  const input = h("input", {
    type: "search", value, autocomplete: "off", spellcheck: "false", ...props,
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => onchange(input.value.trim()), 250);
    },
  });
  return h("label", { class: "field" }, h("span", {}, label), input);
}

/** A table of few rows. `columns` are `[title, kind]`, where the kind is "number" or empty; cells are nodes or texts. */
export function table(caption, columns, rows) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind || null }, title));
  const cell = (value, place) => h("td", { class: columns[place][1] || null, "data-title": columns[place][0] }, value ?? "–");
  return h("table", {},
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))));
}

/** Names and values below each other; those that are null are left out. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]).flat());
}

/** A section with a heading. */
export function section(title, ...children) {
  const id = `h-${title.toLowerCase().replaceAll(/\W+/g, "-")}`;
  return h("section", { class: "panel", "aria-labelledby": id }, h("h2", { id }, title), ...children);
}

/** A few buttons of which one is pressed. `options` are `[value, text]`. */
export function tabs(label, options, value, onchange) {
  const group = h("div", { class: "tabs", role: "group", "aria-label": label });
  const press = (chosen) => {
    for (const each of group.children) each.setAttribute("aria-pressed", String(each.dataset.value === chosen));
  };
  for (const [each, text] of options) {
    group.append(button(text, () => { press(each); onchange(each); }, { "data-value": each }));
  }
  press(value);
  group.press = press;
  return group;
}
