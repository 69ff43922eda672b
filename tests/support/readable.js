// What cannot be read on a page, a line each: text that is small, pale, cut, covered or only reached by scrolling sideways.
// The limits are 12 px and a contrast of 4.5:1 (WCAG 2.2, 1.4.3).
() => {
const MIN_PX = 12, MIN_CONTRAST = 4.5, LARGEST_OVERLAP = 0.4;
const problems = new Set(), root = document.documentElement, width = Math.min(root.clientWidth, screen.width);

// Colours, as [red, green, blue] of 0 to 1 and an opacity.
const brush = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
function parsed(colour) {
  brush.clearRect(0, 0, 1, 1);
  brush.fillStyle = colour;
  brush.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
  return {rgb: [r / 255, g / 255, b / 255], alpha: a / 255};
}
const over = (top, below) => below.map((value, i) => value + top.alpha * (top.rgb[i] - value));
const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
const probe = root.appendChild(document.createElement("div"));
probe.style.background = "Canvas";
const canvas = parsed(getComputedStyle(probe).backgroundColor).rgb;
probe.remove();

const ancestors = element => element ? [element, ...ancestors(element.parentElement)] : [];
const look = (element, part) => getComputedStyle(element, part);
const hits = (a, b) => [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
// What only a screen reader meets.
const isHidden = element => ancestors(element).some(one => look(one).clipPath === "inset(50%)" && one.clientWidth <= 1);

function background(element, rect) {
  const layers = [], around = ancestors(element);
  for (const shape of element.ownerSVGElement?.querySelectorAll("rect") ?? []) {
    const isBelow = shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
    if (!isBelow || Math.min(...hits(shape.getBoundingClientRect(), rect)) <= 1) continue;
    const fill = parsed(look(shape).fill);
    layers.unshift({rgb: fill.rgb, alpha: fill.alpha * look(shape).fillOpacity * look(shape).opacity});
  }
  for (const one of around) {
    if (look(one).backgroundImage !== "none") problems.add(`text on a picture: ${name(element)}`);
    layers.push(parsed(look(one).backgroundColor));
  }
  return layers.reverse().reduce((below, top) => over(top, below), canvas);
}
const name = element => `<${element.tagName.toLowerCase()}> ${(element.textContent || element.placeholder || "").trim().slice(0, 40)}`;

function checkLook(element, rect, style, opacity = 1) {
  const matrix = element.ownerSVGElement && element.getScreenCTM();
  const px = parseFloat(style.fontSize) * (matrix ? Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c)) : 1);
  if (px < MIN_PX - 0.01) problems.add(`text of ${px.toFixed(1)} px: ${name(element)}`);
  const ink = parsed(matrix ? style.fill : style.color), below = background(element, rect);
  ink.alpha *= ancestors(element).reduce((product, one) => product * look(one).opacity, opacity);
  const ratio = contrast(over(ink, below), below);
  if (ratio < MIN_CONTRAST) problems.add(`contrast ${ratio.toFixed(2)}: ${name(element)}`);
}

// Report text that is cut; return whether it is seen, and not scrolled away inside of the page.
function checkCut(element, rect) {
  for (const one of ancestors(element).slice(element.ownerSVGElement ? 1 : 0)) {
    const box = one.getBoundingClientRect(), {overflowX, overflowY} = look(one);
    const outsideX = rect.left < box.left - 1 || rect.right > box.right + 1;
    const outsideY = rect.top < box.top - 1 || rect.bottom > box.bottom + 1;
    if (outsideX && ["auto", "scroll"].includes(overflowX) && one !== root) return false;
    if (outsideY && ["auto", "scroll"].includes(overflowY) && one !== root) return false;
    const isBox = one !== root && one !== document.body;
    if (isBox && (outsideX && overflowX !== "visible" || outsideY && overflowY !== "visible")) {
      problems.add(`cut: ${name(element)}`);
      return true;
    }
  }
  if (rect.left + scrollX < -1 || rect.right + scrollX > width + 1) problems.add(`outside of the screen: ${name(element)}`);
  return true;
}

function textWidth(text, style) {
  brush.font = style.font;
  return brush.measureText(text).width;
}

if (root.scrollWidth > width) problems.add(`the page is ${root.scrollWidth} px wide, the screen ${width} px`);

const placed = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, range = document.createRange();
  range.selectNodeContents(walker.currentNode);
  const rects = [...range.getClientRects()].filter(rect => rect.width && rect.height);
  if (!walker.currentNode.data.trim() || !rects.length || isHidden(element) || !element.checkVisibility({visibilityProperty: true})) continue;
  checkLook(element, rects[0], look(element));
  const isAbove = ancestors(element).some(one => ["absolute", "fixed", "sticky"].includes(look(one).position));
  for (const rect of rects) {
    if (checkCut(element, rect) && !isAbove) placed.push([element, rect]);
  }
}
placed.sort(([, a], [, b]) => a.top - b.top);
placed.forEach(([element, rect], i) => {
  for (let j = i + 1; j < placed.length && placed[j][1].top < rect.bottom; j++) {
    const [other, otherRect] = placed[j], [x, y] = hits(rect, otherRect);
    if (x > 2 && y > LARGEST_OVERLAP * Math.min(rect.height, otherRect.height)) problems.add(`covers each other: ${name(element)} and ${name(other)}`);
  }
});
for (const field of document.querySelectorAll("input, select, textarea")) {
  if (!field.checkVisibility() || field.type === "hidden" || isHidden(field)) continue;
  const style = look(field), rect = field.getBoundingClientRect();
  const inside = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const hint = field.matches(":placeholder-shown") && field.placeholder;
  checkLook(field, rect, style);
  if (hint) checkLook(field, rect, look(field, "::placeholder"), look(field, "::placeholder").opacity);
  const shown = hint || (field.tagName === "SELECT" ? field.selectedOptions[0]?.text ?? "" : "");
  if (textWidth(shown, style) > inside + 1) problems.add(`cut: ${name(field)} (${shown})`);
}
return [...problems];
}
