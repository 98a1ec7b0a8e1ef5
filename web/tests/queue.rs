//! The queue's page: own work row by row, others' in sum where it stands.

mod samples;

use askama::Template as _;

#[test]
fn others_are_told_in_sum_between_the_rows() {
    let html = samples::queue().render().unwrap();
    let place = |words: &str| {
        html.find(words)
            .unwrap_or_else(|| panic!("{words}: {html}"))
    };
    let first = place(">pano-seg-pretrain<");
    let crowd = place("12 jobs of other teams, for 48 GPUs");
    let second = place(">digits-sweep-with-a-rather-long-name");
    let behind = place("1 job of other teams, for 0.5 GPU");
    assert!(first < crowd && crowd < second && second < behind, "{html}");
    assert!(html.contains("<b>16 jobs</b> wait in h100 for <b>72.5 GPUs</b>."));
}

#[test]
fn a_row_tells_place_cause_start_and_what_would_help() {
    let html = samples::queue().render().unwrap();
    let row = html
        .split("<tr id=\"job-0190-pano-seg-pretrain\">")
        .nth(1)
        .unwrap();
    let row = row.split("</tr>").next().unwrap();
    for words in [
        ">1<",
        "Not enough GPUs are free.",
        "It needs <b>8 GPUs</b>; free in pool h100: <b>3 GPUs</b>.",
        "about <time",
        "/jobs/0190-pano-seg-pretrain#why",
        "<b>GPUs per worker</b>: 2",
    ] {
        assert!(row.contains(words), "{words}: {row}");
    }
}

#[test]
fn the_time_that_a_job_asks_for_is_told_as_no_estimate() {
    let html = samples::queue().render().unwrap();
    let row = html.split("<tr id=\"job-0190-lint\">").nth(1).unwrap();
    let row = row.split("</tr>").next().unwrap();
    assert!(row.contains("not before <time"), "{row}");
}

#[test]
fn how_far_earlier_estimates_were_out_stands_beside_them() {
    let html = samples::queue().render().unwrap();
    assert!(
        html.contains(
            "Of <b>1</b> start that was told before, in 14 days, <b>1</b> came within ten minutes of what was first told."
        ),
        "{html}"
    );
    let html = samples::waiting_job().render().unwrap();
    assert!(html.contains("Of <b>31</b> starts that were told before, in 14 days, <b>24</b> came within ten minutes"), "{html}");
}
