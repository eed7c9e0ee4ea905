// The comparison of modes on the page of the held run, drawn with charts.js after report.js.
//
// The data is the JSON of `evenfall_multicast_service::report::compare::Comparison`; the fields
// have the same names.
{
  const { sentence, comparison } = JSON.parse(document.getElementById("compared").textContent);
  const colours = ["raw", "bad", "good", "held"];

  const windows = (tail) => distribution(tail ? "Tails of the delivery window by mode" : "Delivery window by mode",
    "Last receiver minus first, per message. Every mode has the stamps of the receivers' "
    + "programs, which are taken when a program hands a message on. A held message is handed on "
    + "at its release.",
    comparison.runs.map((one, i) => ({ name: one.mode, colour: colours[i % colours.length],
      points: one.window })), { tail });

  const rows = comparison.runs.map(({ mode, results: r, p_f_of_allowance: share }) => [mode,
    duration(r.window_us.p50), duration(r.window_us.p99), duration(r.oml_us.p50),
    duration(r.oml_us.p99), duration(r.held_oml_us.p50), `${(share * 100).toFixed(2)} %`,
    whole(r.lost)]);
  const heads = ["mode", "window p50", "p99", "OML p50", "p99", "handed on p50", "P(F)", "lost"];
  const figures = element("section", { class: "card wide" }, element("h3", {}, "The same feed in every mode"),
    element("p", {}, `P(F): share of messages that reached every receiver within `
      + `${duration(comparison.allowance_us)} of being sent, the mean hold of the held run. `
      + "OML: from the scheduled time to the slowest receiver."),
    element("div", { class: "scroll" }, table(heads, rows, 1)));

  const [first] = document.querySelectorAll("#page h2");
  const parts = [element("h2", {}, "Modes side by side"), element("p", {}, sentence),
    element("div", { class: "grid" }, windows(false), windows(true), figures)];
  parts.forEach((part) => first.before(part));
  document.documentElement.dataset.drawn = drawn;
}
