//! How sentences count: a number with its noun, an amount of GPUs, and a range of such.

use std::fmt::Display;

use crate::quantity::MILLI;
use crate::{MilliCpu, MilliGpu};

/// The forms that a sentence has for one and for more, such as *is* and *are*.
pub type Forms = (&'static str, &'static str);

/// Forms of the verb that an amount or a number is said to be with.
pub const IS: Forms = ("is", "are");
/// Forms of the verb that what was done is told with.
pub const HAS: Forms = ("has", "have");

/// Whether an amount of GPUs or CPUs is spoken of in the singular: `0.5 GPU`, `1 GPU`, but `0 GPUs`.
pub fn singular(milli: i64) -> bool {
    milli > 0 && milli <= MILLI
}

/// The form for so many.
pub fn form(n: u64, (one, other): Forms) -> &'static str {
    if n == 1 { one } else { other }
}

/// The form for such an amount of GPUs.
pub fn form_of(amount: MilliGpu, (one, other): Forms) -> &'static str {
    if singular(amount.milli()) { one } else { other }
}

/// A number with its noun, whose plural ends in an *s*: `1 job`, `2 jobs`.
pub fn counted(n: u64, noun: &str) -> String {
    let end = form(n, ("", "s"));
    format!("{n} {noun}{end}")
}

/// An amount of GPUs with its unit.
pub fn gpus(amount: MilliGpu) -> String {
    with_unit(amount, amount)
}

/// An amount of CPUs with its unit.
pub fn cpus(amount: MilliCpu) -> String {
    let unit = if singular(amount.milli()) {
        "CPU"
    } else {
        "CPUs"
    };
    format!("{amount} {unit}")
}

/// The GPUs of work whose size may change: `1 to 2 GPUs`; `2 GPUs` where it may not.
pub fn gpus_between(least: MilliGpu, most: MilliGpu) -> String {
    if least >= most {
        return gpus(least);
    }
    with_unit(format!("{least} to {most}"), most)
}

fn with_unit(told: impl Display, last: MilliGpu) -> String {
    format!("{told} {}", form_of(last, ("GPU", "GPUs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_one_and_two_have_their_forms() {
        let told = |n: u64| counted(n, "job");
        assert_eq!([told(0), told(1), told(2)], ["0 jobs", "1 job", "2 jobs"]);
        let told = |milli| gpus(MilliGpu::from_milli(milli));
        assert_eq!(
            [told(0), told(500), told(1000), told(2000)],
            ["0 GPUs", "0.5 GPU", "1 GPU", "2 GPUs"]
        );
        let verb = |milli| form_of(MilliGpu::from_milli(milli), IS);
        assert_eq!([verb(0), verb(1000), verb(1500)], ["are", "is", "are"]);
    }

    #[test]
    fn work_whose_size_may_change_is_told_by_least_and_most() {
        let told =
            |least, most| gpus_between(MilliGpu::from_milli(least), MilliGpu::from_milli(most));
        assert_eq!(told(1000, 2000), "1 to 2 GPUs");
        assert_eq!(told(250, 1000), "0.25 to 1 GPU");
        assert_eq!(told(2000, 2000), "2 GPUs");
    }
}
