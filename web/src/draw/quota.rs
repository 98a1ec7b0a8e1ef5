//! A team's quota: a bar to scale, and a square for each GPU.

use super::{Html, WHOLE, escape_once, percent, push};

/// GPUs up to which one square is drawn for each; more are shown by the bar alone.
pub const SQUARES_MAX: i64 = 128;

/// What a quota's bar and squares show, in thousandths of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// What the team is promised.
    pub guaranteed: i64,
    /// What it may hold at most.
    pub limit: Option<i64>,
    /// What it holds.
    pub used: i64,
    /// What others hold of its guarantee.
    pub lent: i64,
}

impl Quota {
    /// What it holds above its guarantee.
    pub fn borrowed(&self) -> i64 {
        (self.used - self.guaranteed).max(0)
    }

    /// What it holds within its guarantee.
    pub fn within(&self) -> i64 {
        self.used.min(self.guaranteed)
    }

    /// What of its guarantee nobody holds.
    pub fn idle(&self) -> i64 {
        (self.guaranteed - self.within() - self.lent).max(0)
    }

    /// How far the bar must reach to hold all of it.
    pub fn reach(&self) -> i64 {
        self.limit.unwrap_or(0).max(self.guaranteed).max(self.used)
    }
}

/// A quota as a bar whose whole length is `scale`; one scale per table, so that bars compare.
pub fn quota_bar(label: &str, hue: u8, quota: &Quota, scale: i64) -> Html {
    let scale = scale.max(1);
    let at = |milli: i64| percent(milli.clamp(0, scale), scale);
    let track = quota.limit.unwrap_or(scale);
    let mut out = format!(
        "<svg class=\"qbar t{hue}\" role=\"img\" aria-label=\"{}\"><rect class=\"track\" y=\"3\" width=\"{}\" height=\"12\" rx=\"2\"/>",
        escape_once(label),
        at(track)
    );
    let part = |out: &mut String, class: &str, from: i64, size: i64| {
        if size > 0 {
            push(
                out,
                format_args!(
                    "<rect class=\"{class}\" x=\"{}\" y=\"3\" width=\"{}\" height=\"12\"/>",
                    at(from),
                    at(size)
                ),
            );
        }
    };
    part(&mut out, "used", 0, quota.within());
    part(&mut out, "lent", quota.within(), quota.lent);
    part(&mut out, "bor", quota.guaranteed, quota.borrowed());
    part(&mut out, "borx", quota.guaranteed, quota.borrowed());
    if quota.guaranteed > 0 {
        push(
            &mut out,
            format_args!(
                "<line class=\"tick\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"18\"/>",
                at(quota.guaranteed)
            ),
        );
    }
    if quota.limit.is_some() {
        push(
            &mut out,
            format_args!(
                "<line class=\"lim\" x1=\"{0}\" x2=\"{0}\" y1=\"1\" y2=\"17\"/>",
                at(track)
            ),
        );
    }
    out.push_str("</svg>");
    Html(out)
}

/// A quota as squares, one a GPU; nothing when there are too many to count by eye.
pub fn squares(label: &str, hue: u8, quota: &Quota) -> Option<Html> {
    let whole = |milli: i64| (milli / WHOLE, milli % WHOLE > 0);
    let (used, used_half) = whole(quota.within());
    let (lent, lent_half) = whole(quota.lent);
    let (borrowed, borrowed_half) = whole(quota.borrowed());
    let lent = lent + i64::from(lent_half);
    let drawn = used + i64::from(used_half) + lent;
    let idle = (quota.guaranteed / WHOLE - drawn).max(0);
    let borrowed = borrowed + i64::from(borrowed_half);
    if drawn + idle + borrowed > SQUARES_MAX {
        return None;
    }
    let mut out = format!(
        "<span class=\"plots t{hue}\" role=\"img\" aria-label=\"{}\">",
        escape_once(label)
    );
    let groups = [
        ("u", used),
        ("h", i64::from(used_half)),
        ("l", lent),
        ("e", idle),
    ];
    for (class, count) in groups {
        (0..count).for_each(|_| push(&mut out, format_args!("<i class=\"{class}\"></i>")));
    }
    if borrowed > 0 {
        out.push_str("<i class=\"gap\"></i>");
        (0..borrowed).for_each(|_| out.push_str("<i class=\"b\"></i>"));
    }
    out.push_str("</span>");
    Some(Html(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_adds_up_to_its_guarantee() {
        let quota = Quota {
            guaranteed: 8000,
            limit: Some(16_000),
            used: 5500,
            lent: 1000,
        };
        assert_eq!(quota.within() + quota.lent + quota.idle(), quota.guaranteed);
        let drawn = squares("label", 1, &quota).unwrap().to_string();
        assert_eq!(drawn.matches("<i ").count(), 8);
        let borrowing = Quota {
            used: 10_000,
            lent: 0,
            ..quota
        };
        assert_eq!(
            (borrowing.within(), borrowing.borrowed(), borrowing.idle()),
            (8000, 2000, 0)
        );
        assert!(
            quota_bar("label", 1, &borrowing, 16_000)
                .to_string()
                .contains("class=\"bor\" x=\"50%\" y=\"3\" width=\"12.5%\"")
        );
    }
}
