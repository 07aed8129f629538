// Sends a message without leaving the page, and writes both answers as they come.
//
// The server tells what happens in the conversation as events: question, phase, text, end, over. A
// stream that breaks begins again with the first exchange that was not over, which is written anew.
// The line of state is what a screen reader hears: how far it is, and then both answers, whole.

const form = document.getElementById("say");
const talk = document.getElementById("talk");
const state = document.getElementById("state");
const stop = document.getElementById("stop");
const send = document.getElementById("send");
const message = document.getElementById("message");
const VOICES = ["Base", "With the adapter"];

let stream = null;
let asked = "";  // what was sent from here last, to be mended where it fails

const field = (name) => form.elements.namedItem(name);

// Stop is there once the server has told of the message: before, it has nothing to stop.
function busy(is) {
  send.disabled = is;
  stop.hidden = !is;
}

function article(place) {
  while (talk.children.length <= place) {
    talk.append(document.getElementById("pattern").content.cloneNode(true));
  }
  return talk.children[place];
}

const voice = (data) => article(data.exchange).querySelectorAll(".voice")[data.voice];

function nearTheEnd() {
  const page = document.scrollingElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 240;
}

// Follows what is written only where the reader has not scrolled away from it.
function keepInView(change) {
  const follow = nearTheEnd();
  change();
  if (follow) form.scrollIntoView({ block: "end" });
}

const HAPPENS = {
  question(data) {
    busy(true);
    const whole = article(data.exchange);
    whole.querySelector(".said .words").textContent = data.text;
    whole.querySelector(".seed").textContent = `seed ${data.seed}`;
    for (const one of whole.querySelectorAll(".voice")) {
      one.querySelector(".words").textContent = "";
      one.querySelector(".after").textContent = "";
    }
  },
  phase(data) {
    if (data.phase === "waiting") {
      state.textContent = data.ahead
        ? `Waiting: ${data.ahead} other ${data.ahead === 1 ? "message is" : "messages are"} answered first.`
        : "Waiting.";
    } else {
      state.textContent = data.phase === "loading" ? "The model is being read." : "The answers are being written.";
    }
  },
  text(data) {
    const one = voice(data);
    for (const other of talk.querySelectorAll(".writing")) if (other !== one) other.classList.remove("writing");
    one.classList.add("writing");
    one.querySelector(".words").append(data.text);
  },
  end(data) {
    const one = voice(data);
    one.classList.remove("writing");
    const after = one.querySelector(".after");
    after.textContent = data.note;
    after.classList.toggle("failed", data.failed);
  },
  over(data) {
    busy(false);
    const answers = article(data.exchange).querySelectorAll(".voice");
    const failed = [...answers].every((one) => one.querySelector(".after.failed"));
    if (failed && !message.value) message.value = asked;
    asked = "";
    const words = [...answers].map((one, place) => {
      const note = one.querySelector(".after").textContent;
      return `${VOICES[place]}: ${one.querySelector(".words").textContent} ${note && `(${note})`}`.trim();
    });
    state.replaceChildren();
    const heard = document.createElement("span");
    heard.className = "visually-hidden";
    heard.textContent = words.join(". ");
    state.append(heard);
  },
};

function follow(chat) {
  stream?.close();
  stream = new EventSource(`/chat/${encodeURIComponent(chat)}/events?seen=${form.dataset.seen}`);
  for (const [kind, happen] of Object.entries(HAPPENS)) {
    stream.addEventListener(kind, (event) => keepInView(() => happen(JSON.parse(event.data))));
  }
  stream.addEventListener("open", () => state.classList.remove("failed"));
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) return;  // the browser tries again
    busy(false);
    state.textContent = "The server does not know this conversation any more. Reload the page to begin anew.";
  };
}

async function ask() {
  send.disabled = true;
  state.textContent = "";
  const words = new URLSearchParams([...new FormData(form)]);
  // Before it is sent: a message that is refused at once may be over before the server's answer is read.
  asked = message.value;
  message.value = "";
  let answer = null;
  let said = {};
  try {
    answer = await fetch("/chat", { method: "POST", body: words, headers: { accept: "application/json" } });
    said = await answer.json();
  } catch {
    said = { detail: "The server does not answer." };
  }
  if (!answer?.ok) {
    busy(false);
    state.textContent = said.detail;
    message.value ||= asked;
    asked = "";
    return;
  }
  const seed = field("seed");
  seed.value = (Number(seed.value) + 1) % (Number(seed.max) + 1);
  if (field("chat").value !== said.chat) {
    field("chat").value = said.chat;
    history.replaceState(null, "", `/chat?chat=${encodeURIComponent(said.chat)}`);
    follow(said.chat);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});

message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!send.disabled) form.requestSubmit();
});

async function end() {
  const place = `/chat/${encodeURIComponent(field("chat").value)}/stop`;
  const words = new URLSearchParams({ csrf_token: field("csrf_token").value });
  try {
    const answer = await fetch(place, { method: "POST", body: words, headers: { accept: "application/json" } });
    if (!answer.ok) state.textContent = (await answer.json()).detail;
  } catch {
    state.textContent = "The server does not answer.";
  }
}

stop.addEventListener("click", () => {
  end();
  message.focus();
});

const choose = document.getElementById("choose");
if (choose) {
  choose.querySelector("button").hidden = true;
  choose.elements.namedItem("run").addEventListener("change", () => choose.requestSubmit());
}

document.getElementById("plain").hidden = true;
document.getElementById("message-keys").hidden = false;
if (field("chat").value) follow(field("chat").value);
