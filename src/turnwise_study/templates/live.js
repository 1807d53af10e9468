
// -- a run in progress: the page reloads itself, unless it is hidden, text is selected or a section is open ---------------

const SECONDS = 10;
const QUIET = 180; // seconds without an update, after which the page says that the run may have ended
const written = Number(document.getElementById("standing").dataset.written);
const reading = () => document.hidden || document.querySelector("details[open]") || !getSelection().isCollapsed;

setInterval(() => {
  const silent = Math.round(Date.now() / 1000 - written);
  if (silent > QUIET) {
    document.getElementById("news").textContent =
      `No update for ${Math.round(silent / 60)} min: the run is in a long step, or its process has ended.`;
  }
  if (!reading()) location.reload();
}, SECONDS * 1000);
