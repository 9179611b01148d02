// SPDX-License-Identifier: MIT OR Apache-2.0
// What do all pages with a script do? Colours; sorting, filters and pages of tables.
// All of it can be worked with the keyboard. Foreign text is only ever set as textContent.
const debox = (function () {
"use strict";

const $ = (id) => document.getElementById(id);

function el(tag, attributes, ...children) {
	const node = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes || {})) {
		if (value === false || value === null || value === undefined) continue;
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
		else node.setAttribute(name, value === true ? "" : value);
	}
	node.append(...children);
	return node;
}
function svg(tag, attributes, ...children) {
	const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
	node.append(...children);
	return node;
}

// Three significant digits and the unit that fits, as in the tables.
function time(ns) {
	if (ns < 1000) return Math.round(ns) + " ns";
	for (const [unit, size] of [["µs", 1e3], ["ms", 1e6], ["s", 1e9]]) {
		for (const decimals of [2, 1, 0]) {
			const step = size / 10 ** decimals;
			if (Math.floor(ns / step + 0.5) < 1000) return (Math.floor(ns / step + 0.5) * step / size).toFixed(decimals) + " " + unit;
		}
	}
	return count(Math.round(ns / 1e9)) + " s";
}
function count(n) { return Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ","); }
function bytes(n) {
	for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return (n / size).toPrecision(3) + " " + unit;
	return n + " B";
}
function percent(part, whole) { return whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "0 %"; }
// Round steps for about n ticks from 0 to most.
function ticks(from, to, n) {
	const raw = (to - from) / n;
	if (!(raw > 0)) return [from];
	const power = 10 ** Math.floor(Math.log10(raw));
	const step = power * ([1, 2, 5, 10].find((m) => m * power >= raw) || 10);
	const list = [];
	for (let v = Math.ceil(from / step) * step; v <= to + step * 1e-9; v += step) list.push(v);
	return list;
}

// ------------------------------------------------------------------ colours
(function theme() {
	const button = $("theme");
	const names = { "": "automatic", light: "light", dark: "dark" };
	const order = ["", "light", "dark"];
	let now = "";
	// A browser may refuse storage to a file; the choice then lasts for this view.
	try { now = localStorage.getItem("debox-theme") || ""; } catch (_) { now = ""; }
	if (!order.includes(now)) now = "";
	const apply = () => {
		if (now) document.documentElement.setAttribute("data-theme", now);
		else document.documentElement.removeAttribute("data-theme");
		button.textContent = "Colours: " + names[now];
	};
	button.addEventListener("click", () => {
		now = order[(order.indexOf(now) + 1) % order.length];
		try { localStorage.setItem("debox-theme", now); } catch (_) { /* see above */ }
		apply();
	});
	button.hidden = false;
	apply();
})();

// ------------------------------------------------------------------- tables
const tables = {};
// What a cell is sorted by: its value, or its number, or its text.
function value(td) {
	if (td.hasAttribute("data-v")) return Number(td.getAttribute("data-v"));
	const text = td.textContent;
	if (!td.classList.contains("n")) return text;
	return text === "–" ? 0 : text === "?" || text === "" ? -1 : Number(text.replace(/,/g, ""));
}
function enhance(table) {
	const body = table.tBodies[0];
	const heads = Array.from(table.tHead.rows[0].cells);
	const all = Array.from(body.rows, (tr) => ({
		tr,
		values: Array.from(tr.cells, value),
		text: tr.textContent.toLowerCase(),
	}));
	all.forEach((row, i) => { row.order = i; row.text = Array.from(row.tr.cells, (td) => td.textContent).join(" ").toLowerCase(); });
	const page = Number(table.getAttribute("data-page"));
	const state = { shown: all, at: 0, page: page || all.length, words: "" };
	const status = el("span", { class: "status", role: "status", "aria-live": "polite" });
	const box = table.parentNode;
	const name = table.caption.textContent;

	function draw(printing) {
		const from = printing ? 0 : state.at;
		const to = printing ? Math.min(state.shown.length, 300) : state.at + state.page;
		body.replaceChildren(...state.shown.slice(from, to).map((row) => row.tr));
		const n = state.shown.length;
		const range = n > state.page ? `${from + 1}–${Math.min(to, n)} of ${count(n)}` : `${count(n)}`;
		status.textContent = n === all.length ? range + (n === 1 ? " row" : " rows") : `${range} rows that match, of ${count(all.length)}`;
		if (previous) { previous.disabled = state.at === 0; next.disabled = state.at + state.page >= n; }
	}
	function filter() {
		const wanted = state.words.toLowerCase().split(/\s+/).filter(Boolean);
		state.shown = wanted.length ? all.filter((row) => wanted.every((word) => row.text.includes(word))) : all.slice();
		state.at = 0;
	}
	function sort(index, down) {
		heads.forEach((th, i) => {
			if (i === index) th.setAttribute("aria-sort", down ? "descending" : "ascending");
			else th.removeAttribute("aria-sort");
		});
		const sign = down ? -1 : 1;
		const compare = new Intl.Collator("en", { numeric: true }).compare;
		all.sort((a, b) => {
			const x = a.values[index], y = b.values[index];
			const by = typeof x === "number" ? x - y : compare(x, y);
			return sign * by || a.order - b.order;
		});
		filter();
		draw();
	}
	heads.forEach((th, index) => {
		if (th.classList.contains("d") || all.length < 2) return;
		const button = el("button", { type: "button" }, th.textContent);
		button.addEventListener("click", () => {
			const numeric = typeof all[0].values[index] === "number";
			const now = th.getAttribute("aria-sort");
			sort(index, now ? now === "ascending" : numeric);
		});
		th.replaceChildren(button);
	});
	let previous = null, next = null;
	if (page && all.length > 5) {
		const input = el("input", { type: "search", "aria-label": "Filter: " + name, placeholder: "Filter rows", id: table.id + "-filter" });
		input.addEventListener("input", () => { state.words = input.value; filter(); draw(); });
		const controls = el("div", { class: "controls" }, input);
		if (all.length > page) {
			previous = el("button", { type: "button", "aria-label": "Previous rows: " + name }, "‹ Previous");
			next = el("button", { type: "button", "aria-label": "Next rows: " + name }, "Next ›");
			previous.addEventListener("click", () => { state.at = Math.max(0, state.at - state.page); draw(); });
			next.addEventListener("click", () => { state.at += state.page; draw(); });
			const more = el("select", { "aria-label": "Rows on a page: " + name },
				...[page, page * 4, 0].map((n) => el("option", { value: String(n) }, n ? n + " rows" : "all rows")));
			more.addEventListener("change", () => { state.page = Number(more.value) || all.length; state.at = 0; draw(); });
			controls.append(previous, next, more);
		}
		controls.append(status);
		box.before(controls);
	}
	draw();
	const api = {
		draw,
		// Brings a row into view: on its page, without filter.
		show(match) {
			let index = state.shown.findIndex((row) => match(row.tr));
			if (index < 0) {
				state.words = "";
				const input = $(table.id + "-filter");
				if (input) input.value = "";
				filter();
				index = state.shown.findIndex((row) => match(row.tr));
			}
			if (index >= 0) { state.at = Math.floor(index / state.page) * state.page; draw(); }
			for (const row of all) row.tr.classList.toggle("chosen", match(row.tr));
		},
		rows: all,
	};
	tables[table.id] = api;
}
document.querySelectorAll("table.data").forEach(enhance);
window.addEventListener("beforeprint", () => Object.values(tables).forEach((t) => t.draw(true)));
window.addEventListener("afterprint", () => Object.values(tables).forEach((t) => t.draw(false)));

return { $, el, svg, time, count, bytes, percent, ticks, tables };
})();
