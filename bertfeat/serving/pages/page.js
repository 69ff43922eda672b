// Short links and keys. The page works without this file.
"use strict";

const form = document.querySelector("form");
const box = document.getElementById("q");
const like = form.querySelector("[name=like]");

form.addEventListener("submit", () => {
  // A text in the box is searched for; without one, the row as before.
  if (like && box.value.trim()) like.disabled = true;
  for (const field of form.querySelectorAll("[name]")) {
    if (field.value.trim() === "" || (field.name === "k" && field.value === "10")) field.disabled = true;
  }
});

// Back from the browser's memory: the fields of the form are as they were sent.
addEventListener("pageshow", () => {
  for (const field of form.querySelectorAll(":disabled")) field.disabled = false;
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
