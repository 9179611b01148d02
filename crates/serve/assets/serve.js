// SPDX-License-Identifier: MIT OR Apache-2.0
// How does what is shown stay new? The server writes it anew; this puts it in place, and says
// when that does not go. page.js, which comes before, has the colours.
(function () {
"use strict";
const { $ } = debox;
const part = $("part");
const from = part.dataset.from;
const pause = $("pause");
const renewed = $("renewed");
if (!from || !pause) return;

const PATIENCE_MS = 15000;
let shown = null;
let paused = false;
let timer = 0;
let failures = 0;
// Which renewal is the one that counts: there is one at a time.
let round = 0;

function every() {
	const told = part.querySelector("[data-every]");
	return Math.max(500, Number(told && told.dataset.every) || 2000);
}
function say(text, bad) {
	renewed.textContent = text;
	renewed.classList.toggle("bad", Boolean(bad));
}
function clock() { return new Date().toLocaleTimeString([], { hour12: false }); }

// Whoever marks text, or is at a place by the keyboard, stays there.
function marking() {
	const marked = document.getSelection();
	return marked && marked.type === "Range" && part.contains(marked.anchorNode);
}
function put(text) {
	if (text === shown) return;
	const open = Array.from(part.querySelectorAll("details[open]"), (e) => e.id);
	const at = part.contains(document.activeElement) ? document.activeElement.id : "";
	part.innerHTML = text;
	shown = text;
	for (const id of open) {
		const details = $(id);
		if (details) details.open = true;
	}
	const again = at && $(at);
	if (again) again.focus({ preventScroll: true });
}

async function renew() {
	const mine = ++round;
	timer = 0;
	if (!document.hidden && !marking()) {
		try {
			const answer = await fetch(from, { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE_MS) });
			const text = answer.ok ? await answer.text() : "";
			if (mine !== round) return;
			if (answer.status === 401 || answer.status === 403) {
				say("Its token is not valid any more: open the address that debox serve printed.", true);
				return;
			}
			if (!answer.ok) throw new Error(String(answer.status));
			put(text);
			failures = 0;
			part.classList.remove("old");
			say("As of " + clock());
		} catch (_) {
			if (mine !== round) return;
			failures += 1;
			part.classList.add("old");
			if (failures === 1) say("No answer since " + clock() + ": what is shown is older.", true);
		}
	}
	timer = setTimeout(renew, every());
}

pause.hidden = false;
pause.addEventListener("click", () => {
	paused = !paused;
	pause.textContent = paused ? "Go on" : "Pause";
	pause.setAttribute("aria-pressed", String(paused));
	if (paused) {
		round += 1;
		clearTimeout(timer);
		timer = 0;
		say("Paused at " + clock());
	} else renew();
});
document.addEventListener("visibilitychange", () => {
	if (!document.hidden && !paused && timer) { clearTimeout(timer); renew(); }
});
say("As of " + clock());
timer = setTimeout(renew, every());
document.documentElement.dataset.ready = "1";
})();
