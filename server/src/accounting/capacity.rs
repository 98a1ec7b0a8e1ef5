//! Where a pool's device time went: allocated, idle and unavailable add up to what was there.

use domain::Timestamp;
use domain::ids::PoolId;
use domain::money::{Currency, Money, SHOWN_DECIMALS, round_lines};
use rust_decimal::Decimal;

use crate::store::Tx;
use crate::store::capacity::{self, Span};

/// Thousandths of a GPU times microseconds in a GPU-second and in a GPU-hour.
const PER_GPU_SECOND: i64 = 1_000_000_000;
const PER_GPU_HOUR: i64 = 3_600 * PER_GPU_SECOND;

/// One part of the capacity, exact.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Thousandths of a GPU times microseconds.
    pub milli_micros: Decimal,
    /// Its value at the price of whole devices.
    pub value: Decimal,
}

/// A pool's capacity and its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balance {
    /// All that was there.
    pub capacity: Part,
    /// Held by teams, and charged.
    pub charged: Part,
    /// Granted and not yet acknowledged by its node, or held since that was last heard of.
    pub reserved: Part,
    /// There, whole, and held by nobody.
    pub idle: Part,
    /// Failed, cordoned or unreachable, and held by nobody; with what was held on lost nodes.
    pub unavailable: Part,
    /// Currency of the values; absent where no price covers the window, or several do.
    pub currency: Option<Currency>,
}

/// A part as people read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// GPU-seconds.
    pub gpu_seconds: Decimal,
    /// Value.
    pub value: Option<Money>,
}

/// The balance of a pool between two points in time, neither in the future.
pub async fn balance(
    tx: &mut Tx,
    pool: PoolId,
    from: Timestamp,
    to: Timestamp,
) -> Result<Balance, sqlx::Error> {
    Ok(sum(&capacity::spans(tx, pool, from, to).await?))
}

fn sum(spans: &[Span]) -> Balance {
    let mut balance = Balance {
        capacity: Part::default(),
        charged: Part::default(),
        reserved: Part::default(),
        idle: Part::default(),
        unavailable: Part::default(),
        currency: None,
    };
    for span in spans {
        let price = span.per_gpu_hour.unwrap_or_default();
        let add = |part: &mut Part, milli_micros: Decimal| {
            part.milli_micros += milli_micros;
            part.value += milli_micros * price / Decimal::from(PER_GPU_HOUR);
        };
        add(&mut balance.capacity, span.capacity);
        add(&mut balance.charged, span.charged);
        add(&mut balance.reserved, span.reserved);
        add(&mut balance.idle, span.available - span.held_available);
        let there = span.capacity - span.available;
        add(
            &mut balance.unavailable,
            there - span.held_unavailable + span.unreachable,
        );
        if balance.currency.is_none() {
            balance.currency.clone_from(&span.currency);
        }
    }
    let one_currency = spans
        .iter()
        .all(|span| span.currency.is_none() || span.currency == balance.currency);
    if !one_currency {
        balance.currency = None;
    }
    balance
}

impl Balance {
    /// What is left when all parts are taken from the capacity; anything but zero is a fault
    /// in our books.
    pub fn difference(&self) -> Decimal {
        self.capacity.milli_micros
            - self.charged.milli_micros
            - self.reserved.milli_micros
            - self.idle.milli_micros
            - self.unavailable.milli_micros
    }

    /// Charged, reserved, idle and unavailable, rounded so that they add up to the last: the
    /// capacity.
    pub fn shown(&self) -> [Shown; 5] {
        let parts = [&self.charged, &self.reserved, &self.idle, &self.unavailable];
        let seconds: Vec<Decimal> = parts
            .iter()
            .map(|part| part.milli_micros / Decimal::from(PER_GPU_SECOND))
            .collect();
        let values: Vec<Decimal> = parts.iter().map(|part| part.value).collect();
        let mut seconds = round_lines(&seconds, super::usage::GPU_SECOND_DECIMALS);
        let mut values = round_lines(&values, SHOWN_DECIMALS);
        seconds.push(seconds.iter().sum());
        values.push(values.iter().sum());
        std::array::from_fn(|at| Shown {
            gpu_seconds: seconds[at].normalize(),
            value: self.currency.clone().map(|currency| Money {
                amount: values[at],
                currency,
            }),
        })
    }
}
