// Light or dark: as the system has it, or as the switch says.

const KEPT = "kvproxy-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };

/** Make a button the switch; a `theme` event on the window tells what draws by itself. */
export function themeSwitch(button) {
  let theme = localStorage.getItem(KEPT) ?? "auto";
  const show = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
    window.dispatchEvent(new Event("theme"));
  };
  const next = () => {
    theme = NEXT[theme] ?? "auto";
    localStorage.setItem(KEPT, theme);
    show();
  };
  button.addEventListener("click", next);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("theme")));
  show();
  return next;
}
