// Short links and keys. The page works without this file.
"use strict";

const form = document.querySelector("form");
const box = document.getElementById("q");

form.addEventListener("formdata", ({ formData: fields }) => {
  // A text in the box is searched for; without one, the row as before.
  if (fields.get("q").trim()) fields.delete("like");
  for (const [name, value] of [...fields]) {
    if (value === "" || (name === "k" && value === "10")) fields.delete(name);
  }
});

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
  const hits = [...document.querySelectorAll(".hits li")];
  const at = hits.findIndex((hit) => hit.contains(document.activeElement));
  if (event.key === "/") (box.focus(), box.select());
  else if (event.key === "j") hits[Math.min(at + 1, hits.length - 1)]?.focus();
  else if (event.key === "k") hits[Math.max(at - 1, 0)]?.focus();
  else if (event.key === "m") hits[at]?.querySelector(".more a").click();
  else return;
  event.preventDefault();
});
