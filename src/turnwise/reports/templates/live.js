
// -- a run under way: the page loads itself again, unless somebody is reading what a reload would close -----------------

const SECONDS = 10;
const QUIET = 180; // without news, after which the run may have ended
const written = Number(document.getElementById("standing").dataset.written);
const reading = () => document.hidden || document.querySelector("details[open]") || !getSelection().isCollapsed;

setInterval(() => {
  const silent = Math.round(Date.now() / 1000 - written);
  if (silent > QUIET) {
    document.getElementById("news").textContent =
      `No news for ${Math.round(silent / 60)} min: the run is in a long step, or its process has ended.`;
  }
  if (!reading()) location.reload();
}, SECONDS * 1000);
