// Preparing a run: files dropped anywhere on their field, listed before they are sent, and a click
// on a wrong line that leads to it in the text.

for (const zone of document.querySelectorAll("[data-drop]")) {
  const input = zone.querySelector("input[type=file]");
  const list = zone.querySelector(".chosen");

  const show = () => {
    const files = [...input.files];
    const bytes = files.reduce((sum, file) => sum + file.size, 0);
    list.replaceChildren(...files.map((file) => row(`${file.name}, ${size(file.size)}`)));
    if (files.length > Number(zone.dataset.maxFiles)) {
      list.append(row(`More than the ${zone.dataset.maxFiles} files that the server takes.`, true));
    }
    if (bytes > Number(zone.dataset.maxBytes)) {
      list.append(row(`${size(bytes)} together; the server takes ${size(Number(zone.dataset.maxBytes))}.`, true));
    }
  };
  input.addEventListener("change", show);

  // Said before anything is sent: a page that the server answers has no files chosen any more.
  input.form.addEventListener("submit", (event) => {
    const why = mistake([...input.files], input.form.elements.toml.value);
    list.querySelector(".mistake")?.remove();
    if (!why) return;
    event.preventDefault();
    const said = row(why, true);
    said.classList.add("mistake");
    list.append(said);
    input.focus();
  });

  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  for (const name of ["dragleave", "drop"]) {
    zone.addEventListener(name, () => zone.classList.remove("over"));
  }
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    // What was dropped before stays: people bring the TOML first and its prompts after.
    const all = new DataTransfer();
    const names = new Set([...event.dataTransfer.files].map((file) => file.name));
    for (const file of input.files) if (!names.has(file.name)) all.items.add(file);
    for (const file of event.dataTransfer.files) all.items.add(file);
    input.files = all.files;
    show();
  });
}

function mistake(files, text) {
  const configs = files.filter((file) => file.name.toLowerCase().endsWith(".toml"));
  if (configs.length > 1) {
    return `A run has one configuration, and these are ${configs.length}: choose the files anew, with one of them.`;
  }
  if (!configs.length && !text.trim()) {
    return "There is no configuration: paste it, or add its TOML file.";
  }
  return "";
}

function row(words, wrong = false) {
  const item = document.createElement("li");
  item.textContent = words;
  item.classList.toggle("over-limit", wrong);
  return item;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 3) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
}

const field = document.querySelector(".edit textarea");
for (const line of document.querySelectorAll(".toml .wrong")) {
  line.addEventListener("click", () => {
    const number = Number(line.id.replace("line-", ""));
    const lines = field.value.split("\n");
    const start = lines.slice(0, number - 1).reduce((sum, text) => sum + text.length + 1, 0);
    document.getElementById("edit").open = true;
    field.focus();
    field.setSelectionRange(start, start + lines[number - 1].length);
    field.scrollTop = (number - 4) * (field.scrollHeight / lines.length);
  });
}

for (const textarea of document.querySelectorAll(".toml-field")) {
  textarea.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) textarea.form.requestSubmit();
  });
}
