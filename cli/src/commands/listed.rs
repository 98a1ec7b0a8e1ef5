//! Lists that end at a limit, and say what they leave out.

use domain::words::counted;
use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;

/// Most rows that are looked at to count what a list leaves out: more is told as at least so many.
const COUNTED_MAX: usize = 1_000;

/// The first rows of a list; of those behind it is said beside what scripts read how many there are.
pub async fn up_to(
    client: &Client,
    path: &str,
    query: &[(&str, String)],
    limit: u32,
) -> Result<Vec<Value>, Failure> {
    let most = limit as usize;
    let mut rows = client
        .list(path, query, most.saturating_add(COUNTED_MAX))
        .await?;
    let more = rows.len().saturating_sub(most);
    rows.truncate(most);
    note(limit, more as u64, more == COUNTED_MAX);
    Ok(rows)
}

/// Says how many rows are left out, and how to see them.
pub fn note(limit: u32, more: u64, at_least: bool) {
    if let Some(words) = left_out(limit, more, at_least) {
        eprintln!("note: {words}");
    }
}

fn left_out(limit: u32, more: u64, at_least: bool) -> Option<String> {
    let all = u64::from(limit) + more;
    let least = if at_least { "at least " } else { "" };
    (more > 0).then(|| {
        format!(
            "{least}{} left out: --limit {all} lists them",
            counted(more, "row")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::left_out;

    #[test]
    fn a_list_that_ends_at_its_limit_says_how_many_more_there_are_and_how_to_see_them() {
        assert_eq!(left_out(50, 0, false), None);
        let told = |more, at_least| left_out(50, more, at_least).expect("rows are left out");
        assert_eq!(told(1, false), "1 row left out: --limit 51 lists them");
        assert_eq!(
            told(1_000, true),
            "at least 1000 rows left out: --limit 1050 lists them"
        );
    }
}
