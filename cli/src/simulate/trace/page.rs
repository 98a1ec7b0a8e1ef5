//! The figures of a replay as a page with charts, in one file that needs nothing else.

use std::fmt::Write;

use domain::quantity::MILLI;

use super::measure::{Moment, Report, span};

/// The size of a chart.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 200.0;
/// Room for the words on the axes.
const LEFT: f64 = 60.0;
const BELOW: f64 = 28.0;
/// The most points of a line: more are not seen.
const POINTS_MAX: usize = 600;

const STYLE: &str = "\
:root { color-scheme: light dark; --line: #2563eb; --second: #9ca3af; --text: #111827; --page: #fff; --rule: #e5e7eb }
@media (prefers-color-scheme: dark) { :root { --line: #60a5fa; --second: #6b7280; --text: #f3f4f6; --page: #111827; --rule: #374151 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 800px; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child { text-align: left }
caption { text-align: left; font-weight: 600 }
svg { width: 100%; height: auto } svg text { fill: var(--text); font-size: 11px }
.line { fill: none; stroke: var(--line); stroke-width: 1.5 } .second { fill: none; stroke: var(--second); stroke-dasharray: 4 3 }
.bar { fill: var(--line) } .rule { stroke: var(--rule) }";

impl Report {
    /// The page.
    pub fn page(&self, title: &str) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>",
            title = escaped(title),
        );
        let _ = write!(
            page,
            "<p>{} jobs in {}: {} ended, {} running, {} waiting. Of the GPUs {:.1} % were allocated and \
             {:.1} % did work that is done. {} preemptions destroyed {} GPU-seconds.{}</p>",
            self.jobs,
            span(self.seconds),
            self.ended,
            self.running,
            self.waiting,
            self.allocation_percent,
            self.utilisation_percent,
            self.evictions(),
            self.destroyed(),
            self.jain.map_or(String::new(), |jain| format!(
                " Jain's index of the fair shares that teams in need had: {jain:.3}."
            )),
        );
        let moments = thinned(&self.moments);
        page.push_str(&over_time(
            "GPUs held, and there (dashed)",
            &moments,
            |m| m.held_milli as f64 / MILLI as f64,
            Some(&|m| m.there_milli as f64 / MILLI as f64),
        ));
        page.push_str(&over_time(
            "Jobs waiting",
            &moments,
            |m| m.waiting as f64,
            None,
        ));
        page.push_str(&self.bars());
        page.push_str(&self.tables());
        page.push_str("</body></html>\n");
        page
    }

    /// Mean waits by team.
    fn bars(&self) -> String {
        let most = self.teams.iter().map(|t| t.waits.mean).fold(1.0, f64::max);
        let height = 22.0 * self.teams.len() as f64 + 8.0;
        let mut chart = begin("Mean wait by team", WIDTH, height);
        for (row, team) in self.teams.iter().enumerate() {
            let y = 22.0 * row as f64 + 6.0;
            let long = (team.waits.mean / most * (WIDTH - 290.0)).max(1.0);
            let _ = write!(
                chart,
                "<text x=\"0\" y=\"{:.1}\">{}</text><rect class=\"bar\" x=\"180\" y=\"{y:.1}\" width=\"{long:.1}\" height=\"14\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                y + 11.0,
                escaped(&team.name),
                190.0 + long,
                y + 11.0,
                span(team.waits.mean.round() as i64),
            );
        }
        chart + "</svg></figure>"
    }

    fn tables(&self) -> String {
        let mut text = String::from(
            "<table><caption>Pools</caption><tr><th>pool<th>GPUs<th>allocated %<th>fragmented %</tr>",
        );
        for pool in &self.pools {
            let _ = write!(
                text,
                "<tr><td>{}<td>{}<td>{:.1}<td>{:.1}</tr>",
                escaped(&pool.name),
                pool.gpus,
                pool.allocation_percent,
                pool.fragmentation_percent,
            );
        }
        text.push_str(
            "</table><table><caption>Waits, and fair shares of teams in need</caption>\
             <tr><th>team<th>jobs<th>mean<th>p50<th>p90<th>p99<th>most<th>never<th>fair share %</tr>",
        );
        for team in &self.teams {
            let waits = &team.waits;
            let _ = write!(
                text,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
                escaped(&team.name),
                waits.jobs,
                span(waits.mean.round() as i64),
                span(waits.p50),
                span(waits.p90),
                span(waits.p99),
                span(waits.most),
                waits.unstarted,
                team.share_percent
                    .map_or("–".to_owned(), |share| format!("{share:.1}")),
            );
        }
        text.push_str("</table><table><caption>Preemptions</caption><tr><th>reason<th>how many<th>GPU-seconds destroyed</tr>");
        for (reason, (count, lost)) in &self.preemptions {
            let _ = write!(
                text,
                "<tr><td>{}<td>{count}<td>{lost}</tr>",
                escaped(reason)
            );
        }
        text + "</table>"
    }
}

fn begin(name: &str, width: f64, height: f64) -> String {
    format!(
        "<figure><figcaption>{name}</figcaption><svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{name}\">",
    )
}

/// A line over time, and a second one beside it.
fn over_time(
    name: &str,
    moments: &[Moment],
    of: impl Fn(&Moment) -> f64,
    beside: Option<&dyn Fn(&Moment) -> f64>,
) -> String {
    let last = moments.last().map_or(1, |m| m.at.max(1));
    let highest = moments
        .iter()
        .map(|m| beside.map_or(of(m), |b| b(m)).max(of(m)));
    let top = highest.fold(1.0, f64::max);
    let x = |at: i64| LEFT + at as f64 / last as f64 * (WIDTH - LEFT);
    let y = |value: f64| 6.0 + (1.0 - value / top) * (HEIGHT - BELOW - 6.0);
    // What is so at a moment is so until the next.
    let line = |of: &dyn Fn(&Moment) -> f64| {
        let mut points = String::new();
        let mut before: Option<f64> = None;
        for moment in moments {
            let (at, value) = (x(moment.at), y(of(moment)));
            if let Some(before) = before {
                let _ = write!(points, "{at:.1},{before:.1} ");
            }
            let _ = write!(points, "{at:.1},{value:.1} ");
            before = Some(value);
        }
        points
    };
    let mut chart = begin(name, WIDTH, HEIGHT);
    for part in [0.0, 0.5, 1.0] {
        let at = y(top * part);
        let _ = write!(
            chart,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"0\" y=\"{:.1}\">{:.0}</text>",
            at + 4.0,
            top * part,
        );
        let when = (last as f64 * part) as i64;
        let anchor = ["start", "middle", "end"][(part * 2.0) as usize];
        let _ = write!(
            chart,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x(when),
            HEIGHT - 8.0,
            span(when),
        );
    }
    if let Some(beside) = beside {
        let _ = write!(
            chart,
            "<polyline class=\"second\" points=\"{}\"/>",
            line(beside)
        );
    }
    let _ = write!(chart, "<polyline class=\"line\" points=\"{}\"/>", line(&of));
    chart + "</svg></figure>"
}

/// As many moments as are seen, the last among them.
fn thinned(moments: &[Moment]) -> Vec<Moment> {
    let step = moments.len().div_ceil(POINTS_MAX).max(1);
    let mut some: Vec<Moment> = moments.iter().copied().step_by(step).collect();
    some.extend(moments.last().copied().filter(|_| step > 1));
    some
}

/// A text that came from a file, as it is shown.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            c => shown.push(c),
        }
    }
    shown
}
