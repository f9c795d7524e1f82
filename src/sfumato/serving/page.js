"use strict";
const form = document.getElementById("ask"), answer = document.getElementById("answer");
const key = document.getElementById("key"), file = document.getElementById("file");
const drop = document.getElementById("drop"), shown = document.getElementById("shown");
let asked = 0;

async function ask(body, type) {
  const own = ++asked;
  answer.textContent = "Waiting for the model …";
  const headers = { "content-type": type };
  if (key) headers.authorization = "Bearer " + key.value;
  try {
    const reply = await fetch(form.dataset.verb, { method: "POST", headers, body });
    const found = await reply.json();
    if (own === asked) show(found);
  } catch (problem) {
    if (own === asked) answer.textContent = "The server cannot be reached, or is too busy.";
  }
}

function show(found) {
  answer.replaceChildren();
  if (found.error) {
    answer.textContent = found.error;
    return;
  }
  const table = document.createElement("table");
  const row = found.predictions ? Object.entries(found.predictions[0].scores).sort((a, b) => b[1] - a[1]).slice(0, 10)
    : found.embeddings[0].slice(0, 8).map((value, place) => ["number " + place, value]);
  for (const [name, value] of row) {
    const line = table.insertRow();
    line.insertCell().textContent = name;
    line.insertCell().textContent = found.predictions ? (100 * value).toFixed(1) + " %" : value.toFixed(4);
  }
  answer.append(table);
}

function take(one) {
  if (!one) return;
  if (shown.src) URL.revokeObjectURL(shown.src);
  shown.src = URL.createObjectURL(one);
  shown.hidden = false;
  shown.onerror = () => { shown.hidden = true; };
  ask(one, "application/octet-stream");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = document.getElementById("text");
  if (!text) return;
  const one = form.dataset.numbers === "yes" ? (text.value.match(/-?\d+/g) || []).map(Number) : text.value;
  ask(JSON.stringify({ texts: [one] }), "application/json");
});
if (drop) {
  file.addEventListener("change", () => {
    take(file.files[0]);
    file.value = "";  // so that the same one can be chosen again
  });
  document.addEventListener("paste", (event) => take(event.clipboardData.files[0]));
  // Of the whole page: a browser would leave it for an image that is dropped beside the box.
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop") take(event.dataTransfer.files[0]);
    });
  }
}
