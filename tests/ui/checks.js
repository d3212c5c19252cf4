// What axe would look at, as far as this page has it: names, labels, contrast, and that nothing sticks out.
() => {
  const found = [];
  const shown = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const name = (element) => {
    const by = element.getAttribute("aria-labelledby");
    const told = by ? by.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ") : "";
    const label = element.labels?.length ? element.labels[0].textContent : "";
    return (element.getAttribute("aria-label") || told || label || element.textContent || element.getAttribute("title") || "").trim();
  };
  for (const element of document.querySelectorAll("a, button, input, select, textarea, dialog, [role=img], [role=region], [tabindex='0']"))
    if (shown(element) && !name(element)) found.push(`no name: ${element.outerHTML.slice(0, 120)}`);
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) found.push(`id ${id} twice`);
  if (!document.documentElement.lang || !document.title) found.push("no language or title");
  if (document.querySelectorAll("h1").length !== 1 || !document.querySelector("main, nav")) found.push("no landmarks");
  for (const table of document.querySelectorAll("table")) if (shown(table) && !table.querySelector("th[scope]")) found.push("a table without heads");

  const parse = (text) => { const parts = text.match(/[\d.]+/g).map(Number); return parts.length === 3 ? [...parts, 1] : parts; };
  const over = (top, under) => [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((value) => { const part = value / 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !shown(element) || element.closest("svg, [disabled], noscript, .skip, title")) continue;
    const style = getComputedStyle(element), back = ground(element);
    const [a, b] = [light(over(parse(style.color), back)), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  if (document.documentElement.scrollWidth > window.innerWidth) found.push(`sticks out: ${document.documentElement.scrollWidth} > ${window.innerWidth}`);
  return found;
}
