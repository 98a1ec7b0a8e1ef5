//! How much of what they hold a job's or a node's devices do, over time.

use chrono::{DateTime, Utc};

use crate::draw::{self, Html, Line};
use crate::messages::{Messages, Phrase};

/// What is drawn: at most four measures over a window. Shares are thousandths; absent is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Utilisation {
    /// The window's beginning.
    pub from: DateTime<Utc>,
    /// Its end.
    pub to: DateTime<Utc>,
    /// How long a step is, in seconds.
    pub step_seconds: i64,
    /// What was measured, by the code of its words.
    pub measures: Vec<&'static str>,
    /// The steps of which anything is known.
    pub steps: Vec<UtilisationStep>,
}

/// A step of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UtilisationStep {
    /// When it begins.
    pub at: DateTime<Utc>,
    /// One value for each measure.
    pub values: Vec<Option<i64>>,
}

impl Utilisation {
    /// The chart.
    pub fn drawing(&self, t: &Messages) -> Html {
        let lines: Vec<Line> = (0..self.measures.len())
            .map(|number| {
                let point = |step: &UtilisationStep| {
                    let at = (step.at - self.from).num_seconds();
                    (at, step.values.get(number).copied().flatten())
                };
                self.steps.iter().map(point).collect()
            })
            .collect();
        let seconds = (self.to - self.from).num_seconds();
        draw::chart(
            &draw::plain(&self.finding(t)),
            seconds,
            self.step_seconds,
            &lines,
        )
    }

    /// The points for the chart that can be zoomed: an array of moments in seconds since 1970, then one of values
    /// for each measure; null where nothing is known, which also stands between steps that do not follow each other.
    pub fn points(&self) -> String {
        let mut moments: Vec<i64> = Vec::new();
        let mut lines: Vec<Vec<Option<i64>>> = vec![Vec::new(); self.measures.len()];
        for step in &self.steps {
            let at = step.at.timestamp();
            let expected = moments.last().map(|last| last + self.step_seconds);
            if let Some(expected) = expected.filter(|expected| *expected < at) {
                moments.push(expected);
                lines.iter_mut().for_each(|line| line.push(None));
            }
            moments.push(at);
            for (number, line) in lines.iter_mut().enumerate() {
                line.push(step.values.get(number).copied().flatten());
            }
        }
        let number = |value: &Option<i64>| value.map_or("null".into(), |value| value.to_string());
        let array = |values: Vec<String>| format!("[{}]", values.join(","));
        let moments = array(moments.iter().map(i64::to_string).collect());
        let lines = lines
            .iter()
            .map(|line| array(line.iter().map(number).collect()));
        array(std::iter::once(moments).chain(lines).collect())
    }

    /// What the measures are called, as JSON.
    pub fn names(&self, t: &Messages) -> String {
        let names = self.key(t).map(|(_, name)| draw::plain(&name));
        serde_json::Value::from(names.collect::<Vec<_>>()).to_string()
    }

    /// What the chart shows, in a sentence.
    fn finding(&self, t: &Messages) -> Phrase {
        let known = self
            .steps
            .iter()
            .filter_map(|step| step.values.first().copied().flatten());
        let known: Vec<i64> = known.collect();
        let (Some(least), Some(most)) = (known.iter().min(), known.iter().max()) else {
            return t.say("chart.unknown");
        };
        let measure = self.measures.first().copied().unwrap_or_default();
        t.say("chart.finding")
            .nest("measure", t.word("measure", measure))
            .nest("least", t.share(*least))
            .nest("most", t.share(*most))
    }

    /// The measures with the class that draws each.
    pub fn key<'a>(&'a self, t: &'a Messages) -> impl Iterator<Item = (String, Phrase)> + 'a {
        let measures = self.measures.iter().enumerate();
        measures.map(|(number, measure)| (format!("s{}", number + 1), t.word("measure", measure)))
    }

    /// Moments below the chart, the window's ends among them, at least a minute apart: they are told by minutes.
    pub fn axis(&self) -> Vec<DateTime<Utc>> {
        const PARTS_MAX: i64 = 4;
        let whole = self.to - self.from;
        let parts = i32::try_from(whole.num_minutes().clamp(1, PARTS_MAX)).unwrap_or(1);
        (0..=parts)
            .map(|number| self.from + whole / parts * number)
            .collect()
    }

    /// A step's values in words.
    pub fn values(t: &Messages, step: &UtilisationStep) -> Vec<Phrase> {
        let values = step.values.iter();
        let said = values
            .map(|value| value.map_or_else(|| t.say("chart.no_data"), |share| t.share(share)));
        said.collect()
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn points_that_do_not_follow_each_other_have_a_gap_between_them() {
        let begin: DateTime<Utc> = "2026-10-01T12:00:00Z".parse().expect("a time");
        let step = |minute, values| UtilisationStep {
            at: begin + TimeDelta::minutes(minute),
            values,
        };
        let chart = Utilisation {
            from: begin,
            to: begin + TimeDelta::hours(1),
            step_seconds: 60,
            measures: vec!["compute", "busy"],
            steps: vec![
                step(0, vec![Some(5), None]),
                step(1, vec![Some(6), Some(0)]),
                step(9, vec![Some(7), Some(1000)]),
            ],
        };
        let at = begin.timestamp();
        let expected = format!(
            "[[{at},{},{},{}],[5,6,null,7],[null,0,null,1000]]",
            at + 60,
            at + 120,
            at + 540
        );
        assert_eq!(chart.points(), expected);
    }

    #[test]
    fn moments_below_a_chart_differ_however_short_its_window_is() {
        let begin: DateTime<Utc> = "2026-10-01T12:00:00Z".parse().expect("a time");
        let axis = |seconds| {
            let chart = Utilisation {
                from: begin,
                to: begin + TimeDelta::seconds(seconds),
                step_seconds: 60,
                measures: Vec::new(),
                steps: Vec::new(),
            };
            let moments = chart.axis().into_iter();
            moments
                .map(|at| (at - begin).num_seconds())
                .collect::<Vec<_>>()
        };
        assert_eq!(axis(40), [0, 40]);
        assert_eq!(axis(130), [0, 65, 130]);
        assert_eq!(axis(3600), [0, 900, 1800, 2700, 3600]);
    }
}
