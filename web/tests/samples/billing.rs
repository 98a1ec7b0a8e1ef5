//! The pages of money.

use domain::money::Money;
use web::shell::Section;
use web::views::{
    BillingView, DayRow, FactorRow, PeriodRow, PriceBookRow, PriceBooksView, PriceForm,
    PricePreview, PriceRow, ReconciledRow, ReconciliationView, Refusal, StatementLine,
    StatementRow, StatementView, StatementsView,
};

use super::{minutes_ago, shell};

fn money(cents: i64) -> Money {
    Money {
        amount: rust_decimal::Decimal::new(cents, 2),
        currency: "CNY".parse().unwrap(),
    }
}

pub fn price_books() -> PriceBooksView {
    let price = |resource: &str, mode: Option<&str>, profile: Option<&str>| PriceRow {
        pool: "h100".into(),
        resource: resource.into(),
        mode: mode.map(Into::into),
        profile: profile.map(Into::into),
        per_hour: money(4_110),
        list: money(5_000),
        effective: money(3_900),
    };
    let factor = |kind: &str, window| FactorRow {
        pool: "h100".into(),
        kind: kind.into(),
        factor: "0.6".into(),
        window,
    };
    let window = (
        "nights".into(),
        vec!["mon".into(), "tue".into()],
        "20:00".into(),
        "08:00".into(),
        "Asia/Shanghai".into(),
    );
    let book = |number, state: &str| PriceBookRow {
        number,
        state: state.into(),
        reason: "pretrain".into(),
        created_by: "finance".into(),
        effective_from: minutes_ago(90_000),
        prices: vec![
            price("gpu", Some("exclusive"), None),
            price("gpu", Some("mig"), Some("1g.10gb")),
            price("cpu", None, None),
            price("memory", None, None),
        ],
        factors: vec![
            factor("preemptible", None),
            factor("borrowed", None),
            factor("weekly", Some(window.clone())),
        ],
    };
    PriceBooksView {
        shell: shell(Section::Billing, "/price-books"),
        books: vec![book(3, "draft"), book(2, "active"), book(1, "discarded")],
        preview: Some(PricePreview {
            number: 3,
            from: minutes_ago(90_000),
            to: minutes_ago(40_000),
            rows: vec![("vision".into(), "h100".into(), money(10_000), money(6_000))],
            total: Some((money(10_000), money(6_000))),
        }),
        edits: true,
        pools: vec!["h100".into(), "a100".into()],
        form: PriceForm {
            pool: "h100".into(),
            mode: "exclusive".into(),
            error: Some(Refusal {
                field: "amount".into(),
                value: "1e12".into(),
                ..Refusal::default()
            }),
            ..PriceForm::default()
        },
        older: Some("/price-books?cursor=x".into()),
    }
}

pub fn billing() -> BillingView {
    let period = |name: &str, state: &str| PeriodRow {
        name: name.into(),
        state: state.into(),
        from: minutes_ago(90_000),
        to: minutes_ago(45_000),
    };
    let day = |day: &str, off| DayRow {
        day: day.into(),
        devices: 20,
        off,
    };
    BillingView {
        shell: shell(Section::Billing, "/billing"),
        time_zone: "Asia/Shanghai".into(),
        currency: Some("CNY".into()),
        credit_minutes: 60,
        periods: vec![
            period("2026-10", "open"),
            period("2026-09", "closing"),
            period("2026-08", "closed"),
            period("2026-07", "issued"),
        ],
        days: vec![day("2026-10-15", 0), day("2026-10-14", 1)],
        edits: true,
        error: None,
    }
}

pub fn statements() -> StatementsView {
    let row = |verified| StatementRow {
        team: "vision".into(),
        period: "2026-08".into(),
        total: money(12_345),
        verified,
    };
    StatementsView {
        shell: shell(Section::Billing, "/billing/2026-08"),
        of: "2026-08".into(),
        of_team: false,
        rows: vec![row(true), row(false)],
    }
}

pub fn statement() -> StatementView {
    let line = |kind: &str, mode: Option<&str>| StatementLine {
        kind: kind.into(),
        pool: "h100".into(),
        mode: mode.map(Into::into),
        resource: "gpu".into(),
        gpu_milli_seconds: 3_600_000,
        amount: money(4_110),
    };
    StatementView {
        shell: shell(Section::Teams, "/teams/vision/statements/2026-08"),
        team: "vision".into(),
        period: "2026-08".into(),
        lines: vec![
            line("usage", Some("exclusive")),
            line("correction", Some("mps")),
            line("credit", Some("exclusive")),
            line("committed", None),
        ],
        total: money(12_345),
        entries: 12,
        sha256: "4f1c".repeat(16),
        verified: true,
    }
}

pub fn reconciliation() -> ReconciliationView {
    let row = |index, difference| ReconciledRow {
        node: "n9".into(),
        index,
        micros: [86_400_000_000, 80_000_000_000, 6_400_000_000, 0],
        difference,
    };
    ReconciliationView {
        shell: shell(Section::Billing, "/reconciliations/2026-10-15"),
        day: "2026-10-15".into(),
        rows: vec![row(0, 1), row(1, 0)],
        older: None,
    }
}
