//! Where a pool's device time went: allocated, idle and unavailable add up to what was there.

use domain::Timestamp;
use domain::ids::PoolId;
use domain::money::{Currency, Money, SHOWN_DECIMALS, round_lines};
use rust_decimal::Decimal;

use super::usage::{GPU_SECOND_DECIMALS, PER_GPU_SECOND, gpu_seconds, rounded_seconds};
use crate::store::Tx;
use crate::store::capacity::{self, Span};

/// Thousandths of a GPU times microseconds in a GPU-hour.
const PER_GPU_HOUR: i64 = 3_600 * PER_GPU_SECOND;

/// One part of the capacity, exact.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Thousandths of a GPU times microseconds.
    pub milli_micros: Decimal,
    /// Its value: of what teams hold as it is billed, of the rest at the price of whole devices.
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
    /// Of what is charged and reserved, in thousandths of a GPU times microseconds: in a mode that
    /// no price covers.
    pub unpriced_milli_micros: Decimal,
    /// Currency of the values; absent where no price covers the window, or those of several do.
    pub currency: Option<Currency>,
}

/// A pool's capacity and its parts as people read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownBalance {
    /// Charged and reserved.
    pub allocated: Shown,
    /// Of that what is reserved.
    pub reserved: Shown,
    /// There, whole, and held by nobody.
    pub idle: Shown,
    /// What could not be given out, with what was held on lost nodes.
    pub unavailable: Shown,
    /// The capacity's value less those of allocated, idle and unavailable.
    pub price_difference: Option<Money>,
    /// All that was there, at the price of whole devices.
    pub capacity: Shown,
    /// Of what was allocated: in a mode that no price covers.
    pub unpriced_gpu_seconds: Decimal,
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
        unpriced_milli_micros: Decimal::ZERO,
        currency: None,
    };
    for span in spans {
        let price = span.per_gpu_hour.unwrap_or_default();
        let add_valued = |part: &mut Part, milli_micros: Decimal, value: Decimal| {
            part.milli_micros += milli_micros;
            part.value += value;
        };
        let add = |part: &mut Part, milli_micros: Decimal| {
            let value = milli_micros * price / Decimal::from(PER_GPU_HOUR);
            add_valued(part, milli_micros, value);
        };
        add(&mut balance.capacity, span.capacity);
        add_valued(&mut balance.charged, span.charged, span.charged_value);
        add_valued(&mut balance.reserved, span.reserved, span.reserved_value);
        balance.unpriced_milli_micros += span.unpriced;
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

    /// What the capacity is worth at the price of whole devices, less the values of its parts: what
    /// is held in modes that cost more or less than a whole device, or that no price covers.
    fn price_difference(&self) -> Decimal {
        self.capacity.value
            - self.charged.value
            - self.reserved.value
            - self.idle.value
            - self.unavailable.value
    }

    /// The balance as people read it, rounded so that the parts add up to the capacity.
    pub fn shown(&self) -> ShownBalance {
        let parts = [&self.charged, &self.reserved, &self.idle, &self.unavailable];
        let seconds: Vec<Decimal> = parts.iter().map(|p| gpu_seconds(p.milli_micros)).collect();
        let mut values: Vec<Decimal> = parts.iter().map(|part| part.value).collect();
        values.push(self.price_difference());
        let seconds = round_lines(&seconds, GPU_SECOND_DECIMALS);
        let values = round_lines(&values, SHOWN_DECIMALS);
        let money = |amount: Decimal| {
            let currency = self.currency.clone()?;
            Some(Money { amount, currency })
        };
        let part = |at: usize| Shown {
            gpu_seconds: seconds[at].normalize(),
            value: money(values[at]),
        };
        ShownBalance {
            allocated: Shown {
                gpu_seconds: (seconds[0] + seconds[1]).normalize(),
                value: money(values[0] + values[1]),
            },
            reserved: part(1),
            idle: part(2),
            unavailable: part(3),
            price_difference: money(values[4]),
            capacity: Shown {
                gpu_seconds: seconds.iter().sum::<Decimal>().normalize(),
                value: money(values.iter().sum()),
            },
            unpriced_gpu_seconds: rounded_seconds(self.unpriced_milli_micros),
        }
    }
}
