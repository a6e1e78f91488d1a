// The functions with which tests question pages; drive_test.go puts them before each question.

// words returns the name of a control, as a screen reader says it, as far as these pages need.
const words = e => (e.getAttribute("aria-label") ?? (e.innerText || e.value || "")).replace(/\s+/g, " ").trim();

const shown = e => e.checkVisibility({visibilityProperty: true, opacityProperty: true, contentVisibilityAuto: true});

// fits reports whether a name matches a pattern, in which a star stands for any text.
const fits = (name, wanted) =>
  new RegExp("^" + wanted.split("*").map(part => RegExp.escape(part)).join(".*") + "$", "s").test(name);

// named returns a selector's visible elements with a name; all of them without one.
const named = (selector, wanted) =>
  [...document.querySelectorAll(selector)].filter(e => shown(e) && (wanted === "" || fits(words(e), wanted)));

const one = (selector, name) => {
  const found = named(selector, name);
  if (found.length === 0) {
    const others = named(selector, "").map(words).join(" | ").slice(0, 500);
    throw new Error(`${location.href} has no ${selector} ${name}, but ${others}`);
  }
  return found[0];
};

// place scrolls an element into view and returns the middle of its first line, where a click must reach it.
const place = (selector, name) => {
  const e = one(selector, name);
  e.scrollIntoView({block: "center", behavior: "instant"});
  const r = e.getClientRects()[0], x = r.x + r.width / 2, y = r.y + r.height / 2;
  const hit = document.elementFromPoint(x, y);
  if (!hit || !(e.contains(hit) || hit.contains(e) || e.labels?.length && [...e.labels].some(l => l.contains(hit)))) {
    throw new Error(`${selector} ${name} is covered by ${hit?.outerHTML.slice(0, 200)}`);
  }
  return [x, y];
};

// set gives a field a value as a user does.
const set = (selector, name, value) => {
  const e = one(selector, name);
  e.focus();
  if (e.tagName === "SELECT") {
    const option = [...e.options].find(o => o.text.trim() === value || o.value === value);
    if (!option) throw new Error(`${selector} offers ${[...e.options].map(o => o.text).join(" | ")}`);
    option.selected = true;
  } else {
    e.value = value;
    if (e.value !== value) throw new Error(`${selector} takes no ${value}: ${e.value}`);
  }
  e.dispatchEvent(new Event("input", {bubbles: true}));
  e.dispatchEvent(new Event("change", {bubbles: true}));
};

// focused describes the element with the focus: its name, and the look of the focus.
const focused = () => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  return {
    tag: e.tagName.toLowerCase(), type: e.type ?? "", name: words(e),
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    inView: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 &&
      box.left < innerWidth,
    at: [...document.querySelectorAll("*")].indexOf(e),
  };
};

// paint returns the red, green and blue of a CSS colour on another one.
const paint = (colour, on) => {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  for (const layer of [on, colour]) {
    context.fillStyle = layer;
    context.fillRect(0, 0, 1, 1);
  }
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
};

const luminance = rgb => {
  const [r, g, b] = rgb.map(c => c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

// contrast returns WCAG's contrast of two colours, from 1 to 21.
const contrast = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};

const background = e => {
  for (; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (paint(colour, "#000").join() === paint(colour, "#fff").join()) return colour;
  }
  return "#fff";
};

// faint returns the unreadable labels of charts; axe-core does not check them.
const faint = () => [...document.querySelectorAll("svg text")].filter(shown).flatMap(e => {
  const size = parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a, on = background(e);
  const ratio = contrast(paint(getComputedStyle(e).fill, on), paint(on, "#fff"));
  return size < 9 || ratio < 4.5 ? [`${e.textContent}: ${size.toFixed(1)} px, contrast ${ratio.toFixed(1)}`] : [];
});

// vague returns the controls with edges too faint to see; axe-core does not check these either.
const fields = "input[type=search], input[type=text], input:not([type]), select, textarea";
const vague = () => [...document.querySelectorAll(fields)].filter(shown).flatMap(e => {
  const on = background(e.parentElement);
  const ratio = contrast(paint(getComputedStyle(e).borderTopColor, on), paint(on, "#fff"));
  return ratio < 3 ? [`${e.outerHTML.slice(0, 150)}: contrast ${ratio.toFixed(1)}`] : [];
});

// usable returns the usable elements, by place in the document, with their texts. Of radio buttons the keyboard reaches
// the chosen one, and the others by arrows.
const usable = () => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter(e => shown(e) && !e.disabled && e.type !== "hidden" && e.tabIndex >= 0)
  .filter(e => e.type !== "radio" || e.checked)
  .map(e => [[...document.querySelectorAll("*")].indexOf(e), e.outerHTML.slice(0, 150)]);
