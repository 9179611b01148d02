// SPDX-License-Identifier: MIT OR Apache-2.0
// What does the report do beyond what all pages do? Histograms; flame graphs; the
// timeline; charts. All of it can be worked with the keyboard. Foreign text is only ever
// set as textContent.
(function () {
"use strict";

const { $, el, svg, time, count, bytes, percent, ticks, tables } = debox;

// Rows come without names (html/data.rs).
const data = JSON.parse(document.getElementById("data").textContent);
const named = (list, ...names) => (list || []).map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])));
data.calls = named(data.calls, "name", "mean_ns", "p50_ns", "p99_ns", "max_ns", "histogram");
for (const call of data.calls) call.histogram = named(call.histogram, "from_ns", "to_ns", "count");
data.sites = named(data.sites, "label", "function", "where", "frames");
data.slow = named(data.slow, "call", "pid", "tid", "comm", "start_ns", "times", "faults", "path", "args", "result", "stack", "conditions", "sleeps", "dropped");
for (const call of data.slow) {
	[call.wall_ns, call.cpu_ns, call.blocked_ns, call.runq_ns, call.irq_ns] = call.times;
	call.sleeps = named(call.sleeps, "start_ns", "blocked_ns", "runq_ns", "site", "holder", "waker", "waiters_entry", "waiters_exit");
}
data.history = named(data.history, "call", "points");
for (const h of data.history) h.points = named(h.points, "time_ns", "first", "count", "wall_ns", "blocked_ns", "p99_ns");
data.trends = named(data.trends, "call", "from_ns", "to_ns", "grows_with");
data.gauges = named(data.gauges, "time_ns", "processes", "threads", "descriptors", "mappings", "resident_bytes");
// The frames of a stack, innermost first: [name, more].
function frames(stack) { return data.stacks[stack].slice(1).map((at) => data.frames[at]); }

// ------------------------------------------------------------------- matrix
(function matrix() {
	const table = $("t-matrix");
	if (!table) return;
	$("matrix-controls").hidden = false;
	$("matrix-by").addEventListener("click", (event) => {
		const on = table.classList.toggle("counts");
		event.currentTarget.setAttribute("aria-pressed", String(on));
	});
})();

// A chart's cursor: moved by mouse, touch or arrow keys, read out below.
// xs: positions in the drawing; say(i): the text.
function cursor(chart, xs, top, bottom, readout, say, hint) {
	const line = svg("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
	chart.append(line);
	chart.setAttribute("tabindex", "0");
	readout.textContent = hint;
	let at = -1;
	function go(i) {
		if (!xs.length) return;
		at = Math.max(0, Math.min(xs.length - 1, i));
		line.setAttribute("x1", xs[at]);
		line.setAttribute("x2", xs[at]);
		line.setAttribute("visibility", "visible");
		readout.textContent = say(at);
	}
	chart.addEventListener("pointermove", (event) => {
		const box = chart.getBoundingClientRect();
		const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
		let best = 0;
		xs.forEach((v, i) => { if (Math.abs(v - x) < Math.abs(xs[best] - x)) best = i; });
		go(best);
	});
	chart.addEventListener("keydown", (event) => {
		const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
		if (step) go(at < 0 ? 0 : at + step);
		else if (event.key === "Home") go(0);
		else if (event.key === "End") go(xs.length - 1);
		else return;
		event.preventDefault();
	});
}

// Calls back when an element's width has changed since it was drawn.
function onWidth(node, redraw) {
	if (!window.ResizeObserver) return;
	let last = node.clientWidth;
	new ResizeObserver(() => { if (node.clientWidth !== last) { last = node.clientWidth; redraw(); } }).observe(node);
}

// --------------------------------------------------------------- histograms
(function histograms() {
	const panel = $("histogram");
	const table = tables["t-calls"];
	if (!panel || !table) return;
	let logarithmic = true;
	let shown = -1;
	for (const row of table.rows) {
		const cell = row.tr.cells[0];
		const button = el("button", { type: "button", class: "link", "aria-controls": "histogram", title: "Show how long the calls took" }, cell.textContent);
		button.addEventListener("click", () => draw(Number(row.tr.getAttribute("data-call"))));
		cell.replaceChildren(button);
	}
	function draw(index) {
		shown = index;
		const call = data.calls[index];
		const buckets = call.histogram;
		table.show((tr) => Number(tr.getAttribute("data-call")) === index);
		panel.hidden = false;
		panel.replaceChildren();
		const name = call.name;
		const all = buckets.reduce((sum, b) => sum + b.count, 0);
		const toggle = el("button", { type: "button", "aria-pressed": String(logarithmic) }, "Logarithmic counts");
		toggle.addEventListener("click", () => { logarithmic = !logarithmic; draw(shown); panel.querySelector("button").focus(); });
		panel.append(el("div", { class: "controls" }, el("h3", { class: "grow" }, `How long ${name} took: ${count(all)} calls`), toggle));
		if (!buckets.length) { panel.append(el("p", {}, "No call returned.")); return; }
		// A unit is a pixel, so that text keeps its size in narrow windows.
		const W = Math.max(280, panel.clientWidth - 30 || 900), H = 240, L = 56, R = 14, T = 10, B = 30;
		const from = Math.log(Math.max(1, buckets[0].from_ns));
		const last = buckets[buckets.length - 1];
		const to = Math.log(last.to_ns || last.from_ns * 2);
		const x = (ns) => L + (Math.log(Math.max(1, ns)) - from) / Math.max(1e-9, to - from) * (W - L - R);
		const most = Math.max(...buckets.map((b) => b.count));
		const scale = (n) => logarithmic ? Math.log(1 + n) / Math.log(1 + most) : n / most;
		const y = (n) => H - B - scale(n) * (H - B - T);
		const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Histogram of ${name}: from ${time(buckets[0].from_ns)} to ${time(last.to_ns || last.from_ns)}, most at ${time(buckets.find((b) => b.count === most).from_ns)}. Arrow keys read single bars.` });
		const marks = logarithmic ? [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8].filter((n) => n <= most) : ticks(0, most, 4).filter((n) => n > 0 && n === Math.round(n));
		for (const n of marks) chart.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(n), y2: y(n) }), svg("text", { x: L - 6, y: y(n) + 4, "text-anchor": "end" }, count(n)));
		for (let p = 0; p <= 12; p++) for (const m of [1, 2, 5]) {
			const ns = m * 10 ** p;
			if (to - from > 9 && (m !== 1 || (W < 500 && p % 2))) continue;
			if (Math.log(ns) < from || Math.log(ns) > to) continue;
			chart.append(svg("line", { class: "axis", x1: x(ns), x2: x(ns), y1: H - B, y2: H - B + 4 }), svg("text", { x: x(ns), y: H - B + 17, "text-anchor": "middle" }, time(ns).replace(/\.0+ /, " ")));
		}
		let path = "";
		const xs = [], below = [];
		let sum = 0;
		for (const b of buckets) {
			const left = x(b.from_ns), right = Math.max(left + 1, x(b.to_ns || b.from_ns * 2) - 0.6);
			path += `M${left.toFixed(1)} ${H - B}V${y(b.count).toFixed(1)}H${right.toFixed(1)}V${H - B}z`;
			xs.push((left + right) / 2);
			sum += b.count;
			below.push(sum);
		}
		chart.append(svg("path", { class: "bars", d: path }), svg("line", { class: "axis", x1: L, x2: W - R, y1: H - B, y2: H - B }));
		const readout = el("p", { class: "readout", "aria-live": "polite" });
		panel.append(chart, readout);
		cursor(chart, xs, T, H - B, readout, (i) => {
			const b = buckets[i];
			const range = b.to_ns ? `${time(b.from_ns)} to ${time(b.to_ns)}` : `${time(b.from_ns)} and longer`;
			return `${range}: ${count(b.count)} calls (${percent(b.count, all)}); ${percent(below[i], all)} took no longer.`;
		}, `Mean ${time(call.mean_ns)}, half took no longer than ${time(call.p50_ns)}, 99 % no longer than ${time(call.p99_ns)}, the longest ${time(call.max_ns)}.`);
	}
	if (data.calls.some((c) => c.histogram.length)) draw(data.calls.findIndex((c) => c.histogram.length));
	onWidth(panel, () => { if (shown >= 0) draw(shown); });
})();

// ---------------------------------------------------------------- the flame
// Rare ways of which only the number and the time are here.
function others(paths, left, time_of) {
	if (left) paths.push({ steps: [["all", "(rarer)", `${count(left[0])} rarer ways, drawn as one`]], ns: time_of ? time_of(left[2]) : left[2], n: left[1], idle: false });
	return paths;
}

// What a program was blocked in, as paths from the root.
function flamePaths() {
	// Each path as a list of steps from the root: [class, name, more].
	const paths = data.paths.map(([call, stack, site, ns, n, idle]) => {
		const steps = [];
		if (stack !== null) {
			if (data.stacks[stack][0]) steps.push(["u", "(cut off)", "the outer frames were not recorded"]);
			// Frames inside of the call site are the C library's wrappers.
			for (const [name, more] of frames(stack).reverse()) steps.push(["u", name, more]);
		}
		steps.push(["s", call, "system call"]);
		let label = "(place not taken)";
		const at = site === null ? null : data.sites[site];
		if (at) {
			label = at.label;
			const within = at.frames.length ? at.frames : [at.function || "?"];
			within.forEach((f) => steps.push(["k", f, f === at.function ? at.where : ""]));
		}
		steps.push(["l", label, "label"]);
		return { steps, ns, n, idle };
	});
	for (const [call, func, where, label, ns, n, idle] of data.blocking) {
		const steps = [["s", call, "system call"]];
		if (func) steps.push(["k", func, where]);
		steps.push(["l", label, "label"]);
		paths.push({ steps, ns, n, idle });
	}
	return others(paths, data.paths_left);
}

// What was waited for: the sleep, what that waited for, and so on to the end.
function chainSteps([first]) {
	const steps = [];
	for (let at = first; at !== null && steps.length <= data.links.length; at = data.links[at][0]) {
		const [, sleep, text] = data.links[at];
		steps.push([steps.length === 0 ? "s" : sleep ? "k" : "l", text, sleep ? "slept" : "where it ends"]);
	}
	return steps;
}
function chainPaths() {
	return others(data.chains.map((row) => ({ steps: chainSteps(row), ns: row[1], n: row[2], idle: row[3] === 1 })), data.chains_left);
}

// What a thread did in a sample: the program's functions, the call, the kernel's.
const enteredFor = { user: null, call: null, kernel: "faults and the like", interrupt: "soft interrupts" };
function cpuSteps([, kind, call, frame]) {
	const cpu = data.on_cpu;
	const steps = [], seen = [];
	for (let at = frame; at !== null && seen.length <= cpu.frames.length; at = cpu.frames[at][1]) seen.unshift(cpu.functions[cpu.frames[at][0]]);
	let entered = kind === "user";
	const enter = () => { if (!entered) steps.push(["s", enteredFor[kind] || call, kind === "call" ? "system call" : "kernel"]); entered = true; };
	for (const [name, module] of seen) {
		if (module === null) enter();
		steps.push([module === null ? "k" : "u", name || (module === null ? "(kernel)" : `(${module})`), module === null ? "kernel" : module]);
	}
	enter();
	if (kind === "user" && !seen.length) steps.push(["u", "(unknown)", "the stack could not be walked"]);
	return steps;
}
// By name of the threads, then by function.
function cpuPaths() {
	const cpu = data.on_cpu;
	const paths = cpu.rows.map((row) => {
		const [comm, all] = cpu.groups[row[0]], samples = row[4];
		const name = ["l", comm, `threads of this name: ${percent(all, cpu.samples)} of the CPU time`];
		return { steps: [name, ...cpuSteps(row)], ns: samples * 1e9 / cpu.hz, n: samples, idle: false };
	});
	return others(paths, cpu.left, (samples) => samples * 1e9 / cpu.hz);
}
// On a CPU and off it: by name, by state, then what ran or was waited for.
function allPaths() {
	const untold = { own: ["u", "own code", "no sample tells more"], calls: ["s", "calls", "no sample tells more"], rarer: ["all", "(rarer)", "drawn as one"] };
	return data.all_time.flatMap(([comm, life, parts]) => parts.map(([state, of, at, ns]) => {
		const more = of === "cpu" ? cpuSteps(data.on_cpu.rows[at]) : of === "chain" ? chainSteps(data.chains[at]) : of ? [untold[of]] : [];
		return { steps: [["l", comm, "threads of this name"], ["state", state, ""], ...more], ns, n: 0, idle: state === "at rest", life };
	}));
}

// `unit`: what is counted, if anything is.
function flameGraph(id, what, legends, gather, unit = "sleeps") {
	const view = $(id + "-view");
	if (!view) return;
	const paths = gather();
	const someIdle = paths.some((p) => p.idle), someBusy = paths.some((p) => !p.idle);
	let withIdle = !someBusy || !unit, words = "";
	let root = null, zoomed = null, focus = null, byCount = false;

	function build() {
		root = { name: "all", more: "", cls: "all", ns: 0, n: 0, children: new Map(), parent: null, depth: 0 };
		for (const p of paths) {
			if (p.idle && !withIdle) continue;
			let node = root;
			root.ns += p.ns; root.n += p.n;
			for (const [cls, name, more] of p.steps) {
				const key = cls + name;
				let child = node.children.get(key);
				if (!child) { child = { name, more, cls, ns: 0, n: 0, children: new Map(), parent: node, depth: node.depth + 1, life: p.life }; node.children.set(key, child); }
				child.ns += p.ns; child.n += p.n;
				node = child;
			}
		}
		zoomed = focus = root;
		standFor();
	}
	const size = (node) => byCount ? node.n : node.ns;
	const sorted = (node) => Array.from(node.children.values()).sort((a, b) => size(b) - size(a));
	const matches = (node) => words !== "" && (node.name + " " + node.more).toLowerCase().includes(words);

	const search = el("input", { type: "search", placeholder: "Search frames", "aria-label": `Search the ${what.toLowerCase()}`, id: id + "-search" });
	const reset = el("button", { type: "button", id: id + "-reset" }, "Show all");
	const measure = el("button", { type: "button", "aria-pressed": "false" }, `By number of ${unit}`);
	const idleButton = el("button", { type: "button", "aria-pressed": String(withIdle), id: id + "-idle" }, "With waiting for work");
	const status = el("span", { class: "status", role: "status", "aria-live": "polite" });
	const controls = el("div", { class: "controls" }, search, reset);
	// Each sample is as long as the others.
	if (unit && unit !== "samples") controls.append(measure);
	if (someIdle && someBusy) controls.append(idleButton);
	controls.append(status);
	const legend = el("ul", { class: "legend" });
	for (const [cls, text] of legends) legend.append(el("li", {}, el("i", { class: cls }), text));
	const graph = el("div", { class: "flame", role: "tree", "aria-label": `${what}: arrow keys move, Enter zooms, Escape shows all`, id: id + "-graph" });
	const stands = el("p", { class: "stands", id: id + "-stands" });
	const readout = el("p", { class: "readout", id: id + "-readout" });
	view.append(controls, stands, legend, graph, readout);

	// Of how much of the run the whole width is made.
	function standFor() {
		const text = [`The whole width is ${time(root.ns)}: ${percent(root.ns, data.wall_ns)} of the run time of ${time(data.wall_ns)}`];
		if (data.lives_ns) text.push(`, ${percent(root.ns, data.lives_ns)} of the ${time(data.lives_ns)} that its ${data.threads === 1 ? "thread" : count(data.threads) + " threads"} lived`);
		if (root.ns > data.wall_ns) text.push("; threads at the same time are added up");
		const aside = paths.reduce((sum, p) => sum + (p.idle && !withIdle ? p.ns : 0), 0);
		if (aside > 0) text.push(`. Another ${time(aside)} of waiting for work is left out`);
		stands.textContent = text.join("") + ".";
	}

	function say(node) {
		const more = node.more ? ` (${node.more})` : "";
		const counted = unit ? ` in ${count(node.n)} ${unit}` : "";
		const life = node.life ? `, ${percent(node.ns, node.life)} of the life of these threads` : "";
		return `${node.name}${more}: ${time(node.ns)}${counted}, ${percent(size(node), size(root))} of all shown${life}, ${percent(node.ns, data.wall_ns)} of the run time`;
	}
	let hint = true;
	function tell(node) { readout.textContent = say(node) + (hint ? ". Click or Enter zooms, arrow keys move, Escape shows all." : "."); }

	function draw() {
		const width = graph.clientWidth || 900;
		const row = 20;
		let depth = 0;
		const nodes = [];
		const chain = [];
		for (let n = zoomed; n; n = n.parent) chain.unshift(n);
		chain.forEach((n, i) => nodes.push({ node: n, x: 0, w: width, y: i, above: n !== zoomed }));
		const place = (node, x, w, y) => {
			depth = Math.max(depth, y);
			let at = x;
			for (const child of sorted(node)) {
				const cw = w * size(child) / Math.max(1, size(node));
				if (cw >= 1) { nodes.push({ node: child, x: at, w: cw, y: y + 1, above: false }); place(child, at, cw, y + 1); }
				at += cw;
			}
		};
		place(zoomed, 0, width, chain.length - 1);
		if (!nodes.some((n) => n.node === focus)) focus = zoomed;
		let hits = 0;
		const walk = (node) => { if (matches(node)) { hits += size(node); return; } node.children.forEach(walk); };
		if (words) walk(root);
		graph.style.height = (depth + 1) * row + "px";
		graph.replaceChildren(...nodes.map(({ node, x, w, y, above }) => {
			const div = el("div", {
				class: node.cls + (matches(node) ? " hit" : "") + (above ? " above" : "") + (w < 12 ? " thin" : ""),
				role: "treeitem", "aria-level": String(node.depth + 1), tabindex: node === focus ? "0" : "-1",
				"aria-label": say(node), title: say(node),
				"aria-expanded": node.children.size ? "true" : false,
			}, w < 24 ? "" : node.name);
			div.style.left = x + "px"; div.style.top = y * row + "px"; div.style.width = Math.max(1, w - 0.5) + "px";
			div.__node = node;
			return div;
		}));
		reset.disabled = zoomed === root;
		status.textContent = words ? `${percent(hits, size(root))} in frames that match` : zoomed === root ? "" : `Zoomed to ${zoomed.name}`;
		if (root.ns === 0) graph.replaceChildren(el("p", { class: "readout" }, "It never blocked."));
	}
	function take(node) {
		focus = node;
		for (const div of graph.children) {
			const mine = div.__node === node;
			div.setAttribute("tabindex", mine ? "0" : "-1");
			if (mine) div.focus();
		}
		tell(node);
	}
	function zoom(node) { zoomed = node; focus = node; hint = false; draw(); tell(node); }
	graph.addEventListener("click", (event) => { const div = event.target.closest("[role=treeitem]"); if (div) { zoom(div.__node); take(div.__node); } });
	graph.addEventListener("pointermove", (event) => { const div = event.target.closest("[role=treeitem]"); if (div) tell(div.__node); });
	graph.addEventListener("focusin", (event) => { if (event.target.__node) tell(event.target.__node); });
	graph.addEventListener("keydown", (event) => {
		const visible = (node) => Array.from(graph.children).some((div) => div.__node === node);
		let goal = null;
		const siblings = focus.parent ? sorted(focus.parent).filter(visible) : [focus];
		const i = siblings.indexOf(focus);
		if (event.key === "ArrowDown") goal = sorted(focus).find(visible);
		else if (event.key === "ArrowUp") goal = focus.parent;
		else if (event.key === "ArrowRight") goal = siblings[i + 1];
		else if (event.key === "ArrowLeft") goal = siblings[i - 1];
		else if (event.key === "Home") goal = root;
		else if (event.key === "Enter" || event.key === " ") { zoom(focus); take(focus); event.preventDefault(); return; }
		else if (event.key === "Escape") { zoom(root); take(root); event.preventDefault(); return; }
		else return;
		event.preventDefault();
		if (goal) take(goal);
	});
	search.addEventListener("input", () => { words = search.value.trim().toLowerCase(); draw(); });
	reset.addEventListener("click", () => zoom(root));
	measure.addEventListener("click", () => { byCount = !byCount; measure.setAttribute("aria-pressed", String(byCount)); draw(); });
	idleButton.addEventListener("click", () => { withIdle = !withIdle; idleButton.setAttribute("aria-pressed", String(withIdle)); build(); draw(); tell(root); });
	build();
	draw();
	tell(root);
	onWidth(graph, draw);
}
flameGraph("flame", "Flame graph of blocked time", [["u", "program"], ["s", "system call"], ["k", "kernel"], ["l", "label"]], flamePaths);
flameGraph("chains", "Flame graph of what was waited for", [["s", "slept"], ["k", "what it waited for slept"], ["l", "where it ends"]], chainPaths, "parts of sleeps");
if (data.all_time) flameGraph("all", "Flame graph of all time", [["l", "threads"], ["state", "state"], ["u", "program"], ["s", "system call, sleep"], ["k", "kernel, what was waited for"]], allPaths, null);
if (data.on_cpu) flameGraph("cpu", "Flame graph of CPU time", [["l", "threads"], ["u", "program"], ["s", "system call"], ["k", "kernel"]], cpuPaths, "samples");

// ------------------------------------------------------------- the timeline
(function timeline() {
	const view = $("timeline");
	const calls = data.slow;
	if (!view || !calls.length) return;
	const table = tables["t-slow"];
	const sites = data.sites;
	const labelOf = (s) => s.site === null ? "(unknown)" : sites[s.site].label;
	const sums = new Map();
	for (const c of calls) for (const s of c.sleeps) sums.set(labelOf(s), (sums.get(labelOf(s)) || 0) + s.blocked_ns);
	const labels = Array.from(sums).sort((a, b) => b[1] - a[1]).map((e) => e[0]);
	const colour = (label) => { const i = labels.indexOf(label); return i < 7 ? `var(--c${i})` : "var(--c7)"; };

	const lanes = new Map();
	calls.forEach((c, i) => {
		const key = c.pid + "/" + c.tid;
		if (!lanes.has(key)) lanes.set(key, { name: `${c.comm} ${c.tid}`, calls: [], ns: 0 });
		const lane = lanes.get(key);
		lane.calls.push(i);
		lane.ns += c.wall_ns;
	});
	const LANES = 24;
	const rows = Array.from(lanes.values()).sort((a, b) => b.ns - a.ns);
	const shownRows = rows.slice(0, LANES);
	const rowOf = new Map();
	shownRows.forEach((lane, y) => lane.calls.forEach((i) => rowOf.set(i, y)));
	const byTime = calls.map((_, i) => i).filter((i) => rowOf.has(i)).sort((a, b) => calls[a].start_ns - calls[b].start_ns);

	const end = Math.max(data.wall_ns, ...calls.map((c) => c.start_ns + c.wall_ns));
	const range = { from: 0, to: end };
	let chosen = 0;
	// A unit is a pixel; a narrow window leaves less for the names.
	let W = 1000, L = 130;
	const R = 8, T = 24, ROW = 26;
	const H = T + shownRows.length * ROW + 8;
	const chart = svg("svg", { class: "lanes", tabindex: "0", role: "application", id: "timeline-chart",
		"aria-label": "Timeline of the slowest calls by thread. Plus and minus zoom, arrow left and right move, n and p go to the next and previous call, Enter zooms to it, 0 shows all." });
	const buttons = [["Zoom in", "+", () => zoom(0.5)], ["Zoom out", "−", () => zoom(2)], ["Earlier", "←", () => move(-0.25)], ["Later", "→", () => move(0.25)]].map(([name, sign, act]) => el("button", { type: "button", "aria-label": name, title: name, onclick: act }, sign));
	const allButton = el("button", { type: "button", id: "timeline-all", onclick: () => { range.from = 0; range.to = end; draw(); } }, "Show all");
	const before = el("button", { type: "button", onclick: () => step(-1) }, "‹ Previous call");
	const after = el("button", { type: "button", onclick: () => step(1) }, "Next call ›");
	const toChosen = el("button", { type: "button", onclick: () => frame() }, "Zoom to the call");
	const status = el("span", { class: "status", role: "status", "aria-live": "polite" });
	const legend = el("ul", { class: "legend" });
	labels.slice(0, 7).forEach((label, i) => legend.append(el("li", {}, swatch(`var(--c${i})`), label)));
	if (labels.length > 7) legend.append(el("li", {}, swatch("var(--c7)"), "other labels"));
	function swatch(c) { const i = el("i"); i.style.background = c; return i; }
	const detail = el("div", { class: "panel", id: "timeline-detail" });
	view.append(el("div", { class: "controls" }, ...buttons, allButton, before, after, toChosen, status), legend, chart);
	if (rows.length > LANES) view.append(el("p", { class: "status" }, `${rows.length - LANES} more threads are in the table only.`));
	view.append(detail);

	const x = (ns) => L + (ns - range.from) / (range.to - range.from) * (W - L - R);
	const at = (px) => range.from + (px - L) / (W - L - R) * (range.to - range.from);
	function clamp() {
		const width = Math.min(end, Math.max(1000, range.to - range.from));
		range.from = Math.max(0, Math.min(range.from, end - width));
		range.to = range.from + width;
	}
	function zoom(factor, centre) {
		const middle = centre === undefined ? (range.from + range.to) / 2 : centre;
		range.from = middle - (middle - range.from) * factor;
		range.to = middle + (range.to - middle) * factor;
		clamp();
		draw();
	}
	function move(part) { const by = (range.to - range.from) * part; range.from += by; range.to += by; clamp(); draw(); }
	function frame() { const c = calls[chosen]; range.from = c.start_ns - c.wall_ns * 0.3; range.to = c.start_ns + c.wall_ns * 1.3; clamp(); draw(); }
	function step(by) {
		const now = byTime.indexOf(chosen);
		choose(byTime[Math.max(0, Math.min(byTime.length - 1, now + by))], true);
	}
	function choose(index, follow) {
		chosen = index;
		const c = calls[index];
		if (follow && (c.start_ns + c.wall_ns < range.from || c.start_ns > range.to)) {
			const half = (range.to - range.from) / 2;
			range.from = c.start_ns + c.wall_ns / 2 - half;
			range.to = range.from + 2 * half;
			clamp();
		}
		draw();
		tell();
		if (table) table.show((tr) => Number(tr.getAttribute("data-slow")) === index);
	}
	function draw() {
		W = Math.max(300, view.clientWidth - 2 || 1000);
		L = W < 600 ? 84 : 140;
		chart.setAttribute("viewBox", `0 0 ${W} ${H}`);
		chart.replaceChildren();
		const width = range.to - range.from;
		for (const t of ticks(range.from, range.to, W < 600 ? 3 : 6)) {
			const px = x(t);
			chart.append(svg("line", { class: "lane", x1: px, x2: px, y1: T - 6, y2: H }));
			// Near a moment, only the difference to it can be read.
			const name = width < range.from / 500 ? "+" + time(t - range.from) : time(t);
			chart.append(svg("text", { x: px, y: 13, "text-anchor": px < L + 30 ? "start" : px > W - 40 ? "end" : "middle" }, name));
		}
		shownRows.forEach((lane, y) => {
			const top = T + y * ROW;
			chart.append(svg("line", { class: "lane", x1: 0, x2: W, y1: top + ROW, y2: top + ROW }));
			const name = lane.name.length > L / 7 ? lane.name.slice(0, L / 7 - 8) + "…" + lane.name.slice(-6) : lane.name;
			chart.append(svg("text", { x: 4, y: top + 17 }, name));
			for (const i of lane.calls) {
				const c = calls[i];
				const a = x(c.start_ns), b = x(c.start_ns + c.wall_ns);
				if (b < L || a > W - R) continue;
				const left = Math.max(L, a), right = Math.min(W - R, Math.max(b, a + 1.5));
				const group = svg("g", { "data-index": i });
				const title = svg("title");
				title.textContent = `${c.call}: ${time(c.wall_ns)}`;
				group.append(title, svg("rect", { class: "call" + (i === chosen ? " chosen" : ""), x: left, y: top + 3, width: Math.max(1, right - left), height: ROW - 6, rx: 2 }));
				if (b - a < 3) group.append(svg("rect", { x: left, y: top + 3, width: Math.max(1.2, right - left), height: ROW - 6, fill: c.sleeps.length ? colour(labelOf(c.sleeps[0])) : "var(--cpu)" }));
				else for (const s of c.sleeps) {
					const sa = Math.max(L, x(s.start_ns)), sb = Math.min(W - R, x(s.start_ns + s.blocked_ns));
					if (sb > sa) group.append(svg("rect", { class: "sleep", x: sa, y: top + 6, width: Math.max(0.7, sb - sa), height: ROW - 12, fill: colour(labelOf(s)) }));
					const ra = Math.max(L, x(s.start_ns + s.blocked_ns)), rb = Math.min(W - R, x(s.start_ns + s.blocked_ns + s.runq_ns));
					if (rb - ra > 0.3) group.append(svg("rect", { x: ra, y: top + 6, width: rb - ra, height: ROW - 12, fill: "var(--runq)" }));
				}
				chart.append(group);
			}
		});
		status.textContent = width >= end ? `${count(byTime.length)} calls` : `${time(range.from)} to ${time(range.to)}`;
		before.disabled = byTime.indexOf(chosen) <= 0;
		after.disabled = byTime.indexOf(chosen) >= byTime.length - 1;
	}
	function tell() {
		const c = calls[chosen];
		const facts = el("dl", { class: "facts-grid" });
		const fact = (name, value) => { if (value) facts.append(el("dt", {}, name), el("dd", {}, value)); };
		fact("thread", `${c.comm}, thread ${c.tid} of process ${c.pid}`);
		fact("object", c.path);
		// Of one sleep the call may go on.
		fact(c.result ? "arguments, result" : "arguments", c.result ? `(${c.args}) = ${c.result}` : `(${c.args})`);
		fact("started", `${time(c.start_ns)} after the start of the run`);
		fact("wall time", `${time(c.wall_ns)}: on CPU ${time(c.cpu_ns)}, blocked ${time(c.blocked_ns)}, waiting for a CPU ${time(c.runq_ns)}${c.irq_ns ? `, in interrupts ${time(c.irq_ns)}` : ""}`);
		const [major, minor] = c.faults;
		if (major || minor) fact("page faults", `${count(major)} with the disk, ${count(minor)} without`);
		if (c.conditions.length) fact("conditions met", c.conditions.join("; "));
		if (c.stack !== null) fact("called from", frames(c.stack).map(([name, more]) => name + (more ? ` (${more})` : "")).join(" ← "));
		const head = el("h3", {}, `${c.call}: ${time(c.wall_ns)}`);
		detail.replaceChildren(head, facts);
		if (c.sleeps.length) {
			const body = el("tbody");
			for (const s of c.sleeps) {
				const site = s.site === null ? null : sites[s.site];
				const place = site && site.function ? site.function + (site.where ? ` (${site.where})` : "") : "";
				body.append(el("tr", {}, el("th", { scope: "row" }, swatch(colour(labelOf(s))), " " + labelOf(s)),
					el("td", { class: "n" }, "+" + time(Math.max(0, s.start_ns - c.start_ns))), el("td", { class: "n" }, time(s.blocked_ns)), el("td", { class: "n" }, time(s.runq_ns)),
					el("td", {}, place), el("td", {}, s.holder), el("td", {}, s.waker), el("td", { class: "n" }, `${s.waiters_entry ?? "?"} → ${s.waiters_exit ?? "?"}`)));
			}
			const heads = [["Label", ""], ["Began", "n"], ["Blocked", "n"], ["Run queue", "n"], ["Place", ""], ["Held by", ""], ["Ended by", ""], ["Waiters", "n"]];
			const sleeps = el("table", { class: "sleeps" }, el("thead", {}, el("tr", {}, ...heads.map(([h, cls]) => el("th", { scope: "col", class: cls || false }, h)))), body);
			for (const tr of sleeps.tBodies[0].rows) Array.from(tr.cells).forEach((cell, i) => cell.setAttribute("data-name", heads[i][0]));
			sleeps.querySelectorAll("tbody i").forEach((i) => { i.style.display = "inline-block"; i.style.width = i.style.height = ".8em"; i.style.borderRadius = "2px"; });
			detail.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Sleeps of the call" }, sleeps));
		} else detail.append(el("p", { class: "status" }, "It did not sleep."));
		if (c.dropped[0]) detail.append(el("p", { class: "status" }, `${count(c.dropped[0])} more sleeps of this call (${time(c.dropped[1])}) were not recorded one by one.`));
	}
	const position = (event) => { const box = chart.getBoundingClientRect(); return (event.clientX - box.left) / box.width * W; };
	chart.addEventListener("wheel", (event) => {
		// Without Ctrl the wheel scrolls the page, unless the timeline was chosen.
		if (!event.ctrlKey && document.activeElement !== chart) return;
		event.preventDefault();
		zoom(event.deltaY > 0 ? 1.25 : 0.8, at(position(event)));
	}, { passive: false });
	let drag = null;
	chart.addEventListener("pointerdown", (event) => {
		if (event.button !== 0) return;
		const group = event.target.closest("g[data-index]");
		drag = { from: position(event), rect: null, index: group ? Number(group.getAttribute("data-index")) : -1 };
		if (event.pointerType === "mouse") chart.setPointerCapture(event.pointerId);
	});
	chart.addEventListener("pointermove", (event) => {
		if (!drag || event.pointerType !== "mouse") return;
		const now = position(event);
		if (!drag.rect && Math.abs(now - drag.from) > 4) { drag.rect = svg("rect", { class: "drag", y: T, height: H - T }); chart.append(drag.rect); }
		if (drag.rect) { drag.rect.setAttribute("x", Math.min(now, drag.from)); drag.rect.setAttribute("width", Math.abs(now - drag.from)); }
	});
	chart.addEventListener("pointerup", (event) => {
		if (!drag) return;
		const now = position(event), from = drag.from, index = drag.index;
		// A page too busy to draw has perhaps seen no move before the release.
		const dragged = drag.rect || event.pointerType === "mouse" && Math.abs(now - from) > 4;
		drag = null;
		if (dragged) { const a = at(Math.max(L, Math.min(from, now))), b = at(Math.max(from, now)); range.from = a; range.to = b; clamp(); draw(); }
		else if (index >= 0) choose(index, false);
	});
	chart.addEventListener("pointercancel", () => { drag = null; draw(); });
	chart.addEventListener("dblclick", () => { range.from = 0; range.to = end; draw(); });
	chart.addEventListener("keydown", (event) => {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		const act = {
			"+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25),
			n: () => step(1), p: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), Enter: () => frame(),
			"0": () => { range.from = 0; range.to = end; draw(); }, Home: () => { range.from = 0; range.to = end; draw(); },
		}[event.key];
		if (!act) return;
		event.preventDefault();
		act();
	});
	if (table) for (const row of table.rows) {
		const cell = row.tr.cells[0];
		const index = Number(row.tr.getAttribute("data-slow"));
		const button = el("button", { type: "button", class: "link", title: "Show in the timeline" }, cell.textContent);
		button.addEventListener("click", () => { choose(index, true); frame(); });
		cell.replaceChildren(button);
	}
	draw();
	tell();
	onWidth(view, draw);
})();

// ------------------------------------------------------------------- trends
(function trends() {
	const view = $("trend-charts");
	const history = data.history;
	if (!view || !history.length) return;
	const trended = new Map(data.trends.map((t) => [t.call, t]));
	const wall = (h) => h.points.reduce((sum, p) => sum + p.wall_ns, 0);
	history.sort((a, b) => (trended.has(b.call) ? 1 : 0) - (trended.has(a.call) ? 1 : 0) || wall(b) - wall(a));
	const gauges = data.gauges;
	const kinds = [
		["open descriptors", "descriptors", count], ["mappings", "mappings", count], ["resident memory", "resident_bytes", bytes],
		["threads", "threads", count], ["processes", "processes", count],
	].filter(([, key]) => gauges.some((g) => g[key] !== null && g[key] !== undefined));
	const FIRST = 6;
	let all = false, p99 = false, gauge = "";
	const search = el("input", { type: "search", placeholder: "Filter calls", "aria-label": "Filter the charts by call" });
	const more = el("button", { type: "button" });
	const tail = el("button", { type: "button", "aria-pressed": "false" }, "With p99");
	const beside = el("select", { "aria-label": "Beside each call's time draw", id: "trend-gauge" }, el("option", { value: "" }, "beside it: what grew with it"), ...kinds.map(([name, key]) => el("option", { value: key }, "beside it: " + name)), el("option", { value: "-" }, "beside it: nothing"));
	const cards = el("div", { class: "cards" });
	const controls = el("div", { class: "controls" }, search, tail);
	if (kinds.length) controls.append(beside);
	controls.append(more);
	view.append(controls, cards);
	search.addEventListener("input", draw);
	more.addEventListener("click", () => { all = !all; draw(); });
	tail.addEventListener("click", () => { p99 = !p99; tail.setAttribute("aria-pressed", String(p99)); draw(); });
	beside.addEventListener("change", () => { gauge = beside.value; draw(); });

	function draw() {
		const words = search.value.trim().toLowerCase();
		const list = history.filter((h) => h.call.toLowerCase().includes(words));
		const shown = all || words ? list : list.slice(0, FIRST);
		more.hidden = Boolean(words) || history.length <= FIRST;
		more.textContent = all ? "Fewer charts" : `All ${history.length} calls`;
		cards.replaceChildren(...shown.map(card));
		if (gauges.length > 1 && !words) for (const [name, key, format] of kinds) cards.append(gaugeCard(name, key, format));
	}
	function frameOf(W, H, L, B, T, x, y, xt, yt, xf, yf, label) {
		const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
		for (const v of yt) chart.append(svg("line", { class: "grid", x1: L, x2: W - 8, y1: y(v), y2: y(v) }), svg("text", { x: L - 5, y: y(v) + 4, "text-anchor": "end" }, yf(v)));
		for (const v of xt) chart.append(svg("text", { x: x(v), y: H - B + 15, "text-anchor": x(v) > W - 30 ? "end" : "middle" }, xf(v)));
		chart.append(svg("line", { class: "axis", x1: L, x2: W - 8, y1: H - B, y2: H - B }));
		return chart;
	}
	const line = (pts) => pts.length ? "M" + pts.map(([a, b]) => a.toFixed(1) + " " + b.toFixed(1)).join("L") : "";
	const shortTime = (ns) => ns === 0 ? "0" : time(ns).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
	function card(h) {
		const trend = trended.get(h.call);
		const W = 400, H = 190, L = 54, B = 34, T = 8;
		const pts = h.points.filter((p) => p.count > 0);
		const lastPoint = pts[pts.length - 1];
		const total = lastPoint.first + lastPoint.count;
		const mid = (p) => p.first + p.count / 2;
		const mean = (p) => p.wall_ns / p.count;
		const heights = pts.map((p) => p99 ? Math.max(mean(p), p.p99_ns) : mean(p));
		const most = Math.max(1, ...heights);
		// A few points far above all others would press the rest flat: they are drawn at the edge, and said.
		const usual = [...heights].sort((a, b) => a - b)[Math.floor(heights.length * 0.98)];
		const cut = pts.length >= 20 && usual > 0 && most > 4 * usual;
		const top = cut ? usual * 1.5 : most * 1.06;
		const above = cut ? heights.filter((v) => v > top).length : 0;
		const x = (n) => L + n / total * (W - L - 8);
		const y = (v) => H - B - Math.min(v, top) / top * (H - B - T);
		const name = h.call;
		const label = `Mean time of ${name} against invocation number: ${time(mean(pts[0]))} at first, ${time(mean(lastPoint))} at last, ${count(total)} calls. Arrow keys read single points.`;
		const chart = frameOf(W, H, L, B, T, x, y, ticks(0, total, 4), ticks(0, top, 4), (v) => count(v), shortTime, label);
		chart.append(svg("text", { x: W - 8, y: H - 3, "text-anchor": "end" }, "invocation"));
		if (p99) chart.append(svg("path", { class: "p99", d: line(pts.map((p) => [x(mid(p)), y(p.p99_ns)])) }));
		// A running median shows the course through single slow calls.
		const means = pts.map(mean);
		const half = Math.max(1, Math.floor(pts.length / 40));
		const smooth = pts.length < 12 ? means : means.map((_, i) => { const w = means.slice(Math.max(0, i - half), i + half + 1).sort((a, b) => a - b); return w[w.length >> 1]; });
		chart.append(svg("path", { class: "dots", d: pts.map((p) => { const r = pts.length > 150 ? 1.2 : 1.8; const a = x(mid(p)), b = y(mean(p)); return `M${(a - r).toFixed(1)} ${b.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`; }).join("") }));
		chart.append(svg("path", { class: "mean", d: line(pts.map((p, i) => [x(mid(p)), y(smooth[i])])) }));
		let key = gauge;
		if (key === "" && trend) { const kind = kinds.find(([n]) => trend.grows_with.includes(n)); key = kind ? kind[1] : "-"; }
		const kind = kinds.find(([, k]) => k === key);
		const legend = el("p", { class: "key" }, el("i", { class: "m" }), "mean");
		if (p99) legend.append(el("i", { class: "q" }), "p99");
		if (above) legend.append(el("span", { class: "above" }, `${count(above)} ${above === 1 ? "point" : "points"} higher, up to ${time(most)}`));
		if (kind) {
			// A gauge has times; the call's points tell which invocation that was.
			const values = [];
			for (const g of gauges) {
				const v = g[key];
				if (v === null || v === undefined) continue;
				let k = pts.findIndex((p) => p.time_ns >= g.time_ns);
				if (k < 0) k = pts.length - 1;
				values.push([mid(pts[k]), v]);
			}
			const full = Math.max(1, ...values.map((v) => v[1]));
			chart.append(svg("path", { class: "gauge", d: line(values.map(([n, v]) => [x(n), H - B - v / full * (H - B - T) * 0.94])) }));
			legend.append(el("i", { class: "g" }), `${kind[0]} (up to ${kind[2](full)})`);
		}
		const readout = el("p", { class: "readout", "aria-live": "polite" });
		const node = el("div", { class: "card" }, el("h3", {}, name + (trend ? `: ${time(trend.from_ns)} → ${time(trend.to_ns)}` : "")), chart, legend, readout);
		cursor(chart, pts.map((p) => x(mid(p))), T, H - B, readout, (i) => {
			const p = pts[i];
			return `Calls ${count(p.first + 1)} to ${count(p.first + p.count)}, until ${time(p.time_ns)}: mean ${time(mean(p))}, blocked ${time(p.blocked_ns / p.count)} of it, p99 ${time(p.p99_ns)}.`;
		}, `${count(total)} calls`);
		return node;
	}
	function gaugeCard(name, key, format) {
		const W = 400, H = 150, L = 54, B = 34, T = 8;
		const pts = gauges.filter((g) => g[key] !== null && g[key] !== undefined);
		const top = Math.max(1, ...pts.map((g) => g[key])) * 1.06;
		const end = pts[pts.length - 1].time_ns || 1;
		const x = (ns) => L + ns / end * (W - L - 8);
		const y = (v) => H - B - v / top * (H - B - T);
		const step = key === "resident_bytes" ? ticks(0, top / 2 ** 20, 3).map((v) => v * 2 ** 20) : ticks(0, top, 3);
		const chart = frameOf(W, H, L, B, T, x, y, ticks(0, end, 4), step, shortTime, format, `${name} over time: ${format(pts[0][key])} at first, ${format(pts[pts.length - 1][key])} at last. Arrow keys read single points.`);
		chart.append(svg("text", { x: W - 8, y: H - 3, "text-anchor": "end" }, "time of the run"), svg("path", { class: "own", d: line(pts.map((g) => [x(g.time_ns), y(g[key])])) }));
		const readout = el("p", { class: "readout", "aria-live": "polite" });
		cursor(chart, pts.map((g) => x(g.time_ns)), T, H - B, readout, (i) => `At ${time(pts[i].time_ns)}: ${format(pts[i][key])} ${key === "resident_bytes" ? "resident" : name}.`, `${format(pts[0][key])} at first, ${format(pts[pts.length - 1][key])} at last`);
		return el("div", { class: "card" }, el("h3", {}, name[0].toUpperCase() + name.slice(1)), chart, readout);
	}
	draw();
})();

document.documentElement.setAttribute("data-ready", "1");
})();
