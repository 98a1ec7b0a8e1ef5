//! Words of notices, of their delivery, and of reports on schedule.

use crate::text_enum::text_enum;

text_enum!(
    /// What somebody may ask to hear of.
    NoticeKind, "kind" {
        /// A budget passed one of its thresholds.
        BudgetThreshold = "budget_threshold",
        /// A node is lost.
        NodeLost = "node_lost",
        /// A job has ended.
        JobEnded = "job_ended",
    }
);

text_enum!(
    /// What is delivered.
    DeliveryKind, "kind" {
        /// A budget passed one of its thresholds.
        BudgetThreshold = "budget_threshold",
        /// A node is lost.
        NodeLost = "node_lost",
        /// A job has ended.
        JobEnded = "job_ended",
        /// A report that was made on schedule.
        Report = "report",
    }
);

text_enum!(
    /// Where a delivery stands.
    DeliveryState, "state" {
        /// It will be tried, for the first time or again.
        Waiting = "waiting",
        /// Its address took it.
        Delivered = "delivered",
        /// It was tried as often as it is; a person may send it again.
        Dead = "dead",
    }
);

text_enum!(
    /// What a schedule reports.
    ScheduleKind, "kind" {
        /// What the team, with all below it, used, by day, person, pool and mode, and what that costs.
        UsageStatement = "usage_statement",
    }
);

text_enum!(
    /// What a report on schedule is written in.
    ReportFormat, "format" {
        /// Comma-separated values.
        Csv = "csv",
        /// JSON.
        Json = "json",
    }
);

text_enum!(
    /// What a report on schedule is of: the last whole one before it is due, in the schedule's time zone.
    ReportSpan, "covers" {
        /// A day.
        Day = "day",
        /// A week from Monday on.
        Week = "week",
        /// A month.
        Month = "month",
    }
);
