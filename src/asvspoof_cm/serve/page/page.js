"use strict";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MAX_LLR = 6; // where the bars of the timeline end
const DOUBTS = {
  silent: "The recording is silent. Its score means nothing.",
  constant: "The recording is a constant, not a sound. Its score means nothing.",
  clipped: "The recording is clipped: it is louder than its format can hold, which changes its sound.",
  "shorter than 1 s": "The recording is shorter than a second. The model has too little to go by.",
};

let model = null;
let token = "";
let result = null; // the answer of /v1/score
let windows = []; // those of /v1/timeline
let chosen = 0;
let isChosen = false; // nothing is marked before the reader has chosen
let turn = 0; // answers to anything but the newest recording are dropped
let pending = null; // the recording that waits for a token
let recording = null;

// The service -----------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(path, body ? { method: "POST", body, headers } : { headers });
  } catch {
    throw new Refused(0, "The service can't be reached. Is it still running?");
  }
  const content = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, sentence(content.error.message));
  return content;
}

async function loadModel() {
  model = await ask("v1/model");
  const hash = model.sha256 ? `, weights ${model.sha256.slice(0, 12)}` : "";
  byId("model").textContent = `Model: ${model.name}${hash}.` + (model.note ? ` It is ${model.note}.` : "");
}

async function score(blob, name) {
  const mine = ++turn;
  pending = null;
  byId("error").textContent = "";
  byId("result").hidden = true;
  byId("status").textContent = `Listening to ${name} …`;
  try {
    if (model === null) await loadModel();
    if (blob.size > model.limits.max_body_bytes) {
      throw new Refused(413, `The file is too large; the service takes up to ${Math.floor(model.limits.max_body_bytes / 2 ** 20)} MiB.`);
    }
    const scored = await ask("v1/score", blob);
    if (mine !== turn) return;
    const hop = Math.max(0.25, Math.ceil(scored.duration_s / 15) / 4);
    const timeline = await ask(`v1/timeline?hop_s=${hop}`, blob);
    if (mine !== turn) return;
    result = scored;
    windows = timeline.windows;
    show(blob, name);
  } catch (error) {
    if (mine !== turn) return;
    byId("status").textContent = "";
    if (error.status === 401) {
      pending = [blob, name];
      byId("access").hidden = false;
      byId("token").focus();
    }
    byId("error").textContent = error.message;
    if (!(error instanceof Refused)) throw error;
  }
}

// The verdict -----------------------------------------------------------------------------------

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);
const probability = (llr, prior) => 1 / (1 + Math.exp(-(llr + Math.log((1 - prior) / prior))));

function inHundred(share) {
  const percent = Math.round(100 * share);
  if (percent >= 100) return "more than 99 in 100";
  if (percent <= 0) return "fewer than 1 in 100";
  return `about ${percent} in 100`;
}

function words(share) {
  if (share >= 0.9) return ["Probably human", "human"];
  if (share >= 0.65) return ["Leans human", "human"];
  if (share > 0.35) return ["Can't tell", ""];
  if (share > 0.1) return ["Leans synthetic", "synthetic"];
  return ["Probably synthetic", "synthetic"];
}

function show(blob, name) {
  const player = byId("player");
  if (player.src) URL.revokeObjectURL(player.src);
  byId("unplayable").hidden = true;
  player.hidden = false;
  player.src = URL.createObjectURL(blob);
  byId("source").textContent = name;
  const rate = result.resampled_from ?? model.sample_rate;
  byId("duration").textContent = `${result.duration_s.toFixed(1)} s at ${rate / 1000} kHz`;
  byId("result").hidden = false;
  chosen = 0;
  isChosen = false;
  judge();
  drawTimeline();
  fillTable();
  byId("status").textContent = "";
  byId("verdict").focus();
}

function judge() {
  const prior = Number(byId("prior").value) / 100;
  byId("prior-value").textContent = byId("prior").value;
  const verdict = byId("verdict");
  const heard = !result.warnings.includes("no speech to judge");
  const judged = heard && result.llr !== null;
  for (const id of ["scale", "assume", "figures"]) byId(id).hidden = !judged;
  if (!judged) {
    verdict.textContent = "No verdict";
    verdict.dataset.side = "";
    byId("certainty").textContent = !heard ? "There is no speech to judge." : `The score is ${signed(result.score)}; this model is not calibrated, so nobody knows what that means.`;
    explain(prior, []);
    return;
  }
  const share = probability(result.llr, prior);
  const [text, side] = words(share);
  const pieces = (result.unit === "llr" ? result.crop_scores : [result.llr]).map((llr) => probability(llr, prior)).sort((a, b) => a - b);
  const low = pieces[0], high = pieces[pieces.length - 1];
  verdict.textContent = text;
  verdict.dataset.side = side;
  byId("certainty").textContent =
    `Of recordings with this score, ${inHundred(share)} are human, if ` +
    `${Math.round(100 * prior)} in 100 of all recordings are synthetic and all resemble those that it was calibrated on.`;
  byId("mark").style.left = `${100 * share}%`;
  byId("range").style.left = `${100 * low}%`;
  byId("range").style.width = `${100 * (high - low)}%`;
  byId("llr").textContent = `${signed(result.llr)} (${result.llr >= 0 ? "towards human" : "towards synthetic"})`;
  const low100 = Math.round(100 * low), high100 = Math.round(100 * high);
  byId("pieces").textContent = low100 === high100 ? `${low100} in 100 human` : `${low100} to ${high100} in 100 human`;
  const { c_miss, c_fa } = model.costs;
  const threshold = -Math.log((c_miss * (1 - prior)) / (c_fa * prior));
  byId("stakes").textContent = `If a missed fake costs ${c_fa / c_miss} times a false alarm`;
  byId("decision").textContent = result.llr >= threshold ? "treat it as human" : "treat it as synthetic";
  explain(prior, pieces);
}

function explain(prior, pieces) {
  const doubts = result.warnings.filter((warning) => warning !== "no speech to judge");
  const reasons = doubts.map((warning) => DOUBTS[warning] ?? sentence(warning) + ".");
  if (pieces.length) {
    const share = probability(result.llr, prior);
    if (share > 0.35 && share < 0.65) reasons.push("The evidence is weak: this score is about as common among human as among synthetic voices.");
    if (pieces[0] < 0.35 && pieces[pieces.length - 1] > 0.65) reasons.push("Its pieces disagree: some sound human, others synthetic. Part of the recording may be synthetic, or the model is unsure.");
    const even = 100 * (1 / (1 + Math.exp(-result.llr)));
    if (even >= 1 && even <= 99) reasons.push(`The verdict hangs on what you expect: at ${Math.round(even)} synthetic recordings in 100 it would be a toss-up.`);
  }
  if (result.duration_s < 3 && result.duration_s >= 1) reasons.push("The recording is short. More speech makes the score more reliable.");
  if (result.resampled_from !== null && result.resampled_from < model.sample_rate) reasons.push(`It was sampled at ${result.resampled_from / 1000} kHz: the high frequencies that the model listens to are missing.`);
  reasons.push(
    "Telephone lines, codecs, noise, rooms, music and loudspeakers change a voice. A human voice may then sound synthetic, and the reverse.",
    "Synthesizers that the model has never heard pass for human more often.",
    "Voices, accents and languages that the model has hardly heard are judged less reliably.",
    "It knows nothing of what is said or who says it. Ask for another proof before you act on this.",
  );
  if (model.note) reasons.push(`About this model: it is ${model.note}.`);
  byId("reasons").replaceChildren(...reasons.map((reason) => {
    const item = document.createElement("li");
    item.textContent = reason;
    return item;
  }));
}

// The timeline ----------------------------------------------------------------------------------

function shape(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

const valueOf = (item) => item.llr ?? item.score;
const inWords = (item) => item.has_speech ? `${signed(valueOf(item))}, towards ${valueOf(item) >= 0 ? "human" : "synthetic"}` : "no speech";
const middle = (item) => (item.start_s + item.end_s) / 2;

function bounds(k) {
  const from = k === 0 ? 0 : (middle(windows[k - 1]) + middle(windows[k])) / 2;
  const to = k === windows.length - 1 ? result.duration_s : (middle(windows[k]) + middle(windows[k + 1])) / 2;
  return [from, to];
}

function drawTimeline() {
  const holder = byId("timeline");
  const width = Math.max(200, holder.clientWidth), height = 150, zero = 66, reach = 60;
  const x = (time) => (time / result.duration_s) * width;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-hidden", "true");
  const pattern = shape("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, shape("defs", {}, svg));
  shape("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "stripes" }, pattern);
  windows.forEach((item, k) => {
    const [from, to] = bounds(k);
    const value = item.has_speech ? Math.max(-1, Math.min(1, valueOf(item) / MAX_LLR)) : 0;
    const side = !item.has_speech ? "quiet" : value >= 0 ? "human" : "synthetic";
    const size = Math.max(2, Math.abs(value) * reach);
    shape("rect", { x: x(from) + 0.5, width: Math.max(1, x(to) - x(from) - 1), y: value >= 0 ? zero - size : zero, height: size, class: side }, svg);
  });
  shape("line", { x1: 0, x2: width, y1: zero, y2: zero, class: "axis" }, svg);
  if (isChosen) {
    const [from, to] = bounds(chosen);
    shape("rect", { x: x(from) + 1, y: 2, width: Math.max(2, x(to) - x(from) - 2), height: 2 * reach + 8, rx: 3, class: "chosen" }, svg);
  }
  const step = [0.5, 1, 2, 5, 10, 30, 60, 120].find((s) => x(s) >= 50) ?? 300;
  for (let time = 0; time <= result.duration_s; time += step) {
    const anchor = time === 0 ? "start" : x(time) > width - 24 ? "end" : "middle";
    shape("text", { x: x(time), y: height - 5, "text-anchor": anchor }, svg).textContent = `${time} s`;
  }
  holder.replaceChildren(svg);
  const item = windows[chosen];
  holder.setAttribute("aria-valuemax", result.duration_s.toFixed(1));
  holder.setAttribute("aria-valuenow", item.start_s.toFixed(1));
  holder.setAttribute("aria-valuetext", `${item.start_s.toFixed(1)} to ${item.end_s.toFixed(1)} seconds: ${inWords(item)}`);
}

function fillTable() {
  byId("windows").replaceChildren(...windows.map((item) => {
    const row = document.createElement("tr");
    for (const text of [item.start_s.toFixed(2), item.end_s.toFixed(2), item.has_speech ? signed(valueOf(item)) : "no speech"]) {
      const cell = document.createElement("td");
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  }));
}

function choose(k) {
  chosen = Math.max(0, Math.min(windows.length - 1, k));
  isChosen = true;
  drawTimeline();
}

function play() {
  const player = byId("player");
  player.currentTime = windows[chosen].start_s;
  player.play().catch(() => {}); // the player says by itself what it can't play
}

byId("timeline").addEventListener("click", (event) => {
  const box = byId("timeline").getBoundingClientRect();
  const time = ((event.clientX - box.left) / box.width) * result.duration_s;
  const found = windows.findIndex((_, k) => time <= bounds(k)[1]);
  choose(found < 0 ? windows.length - 1 : found);
  play();
});

byId("timeline").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: chosen + 1, ArrowUp: chosen + 1, ArrowLeft: chosen - 1, ArrowDown: chosen - 1, Home: 0, End: windows.length - 1, PageUp: chosen + 10, PageDown: chosen - 10 };
  if (event.key in moves) choose(moves[event.key]);
  else if (event.key === "Enter" || event.key === " ") play();
  else return;
  event.preventDefault();
});

byId("player").addEventListener("error", () => {
  byId("player").hidden = true;
  byId("unplayable").hidden = false;
});

new ResizeObserver(() => {
  if (!byId("result").hidden) drawTimeline();
}).observe(byId("drop"));

// Recordings ------------------------------------------------------------------------------------

byId("file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) score(file, file.name);
  event.target.value = "";
});

document.addEventListener("dragover", (event) => {
  event.preventDefault();
  byId("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) byId("drop").classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  const [file] = event.dataTransfer.files;
  if (file) score(file, file.name);
});

function toWav(blocks, rate) {
  const n = blocks.reduce((sum, block) => sum + block.length, 0);
  const view = new DataView(new ArrayBuffer(44 + 2 * n));
  const text = (at, value) => [...value].forEach((c, k) => view.setUint8(at + k, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * n, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * n, true);
  let at = 44;
  for (const block of blocks) {
    for (const sample of block) {
      view.setInt16(at, Math.max(-32768, Math.min(32767, Math.round(32768 * sample))), true);
      at += 2;
    }
  }
  return new Blob([view], { type: "audio/wav" });
}

async function startRecording() {
  if (!navigator.mediaDevices) {
    throw new Refused(0, "Browsers allow the microphone only on pages served over HTTPS or from this machine. Give a file instead.");
  }
  const wanted = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: wanted });
  } catch {
    throw new Refused(0, "The microphone can't be used: there is none, or its use was not allowed.");
  }
  const context = new AudioContext();
  await context.audioWorklet.addModule("recorder.js");
  const node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
  const blocks = [];
  const maxSeconds = Math.min(60, model?.limits.max_duration_s ?? 60);
  node.port.onmessage = (event) => {
    if (recording === null) return;
    blocks.push(event.data);
    const seconds = blocks.length * event.data.length / context.sampleRate;
    byId("status").textContent = `Recording: ${Math.floor(seconds)} s`;
    if (seconds >= maxSeconds) stopRecording();
  };
  context.createMediaStreamSource(stream).connect(node);
  recording = { stream, context, blocks };
  byId("error").textContent = "";
  byId("record").textContent = "Stop";
  byId("record").setAttribute("aria-pressed", "true");
}

function stopRecording() {
  const { stream, context, blocks } = recording;
  recording = null;
  for (const track of stream.getTracks()) track.stop();
  context.close();
  byId("record").textContent = "Record";
  byId("record").removeAttribute("aria-pressed");
  byId("status").textContent = "";
  if (blocks.length === 0) {
    byId("error").textContent = "Nothing was recorded. Speak for a second or more before you stop.";
    return;
  }
  score(toWav(blocks, context.sampleRate), "your recording");
}

byId("record").addEventListener("click", async () => {
  if (recording !== null) return stopRecording();
  try {
    await startRecording();
  } catch (error) {
    byId("error").textContent = error.message;
    if (!(error instanceof Refused)) throw error;
  }
});

// The start -------------------------------------------------------------------------------------

byId("prior").addEventListener("input", judge);
byId("access").addEventListener("submit", async (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  byId("access").hidden = true;
  byId("error").textContent = "";
  if (pending) return score(...pending);
  start();
});

async function start() {
  try {
    await loadModel();
  } catch (error) {
    if (error.status === 401) byId("access").hidden = false;
    byId("error").textContent = error.message;
  }
}
start();
