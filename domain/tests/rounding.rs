//! The law of the one rounding function: lines add up to the rounded total, and each stays within a unit of itself.

use domain::money::{round, round_lines};
use proptest::prelude::*;
use rust_decimal::Decimal;

proptest! {
    #[test]
    fn lines_add_up_to_the_total_and_none_moves_by_a_unit(
        lines in prop::collection::vec((-1_000_000_000_i64..1_000_000_000, 0_u32..9), 1..40),
        decimals in 0_u32..5,
    ) {
        let exact: Vec<Decimal> = lines.iter().map(|(n, scale)| Decimal::new(*n, *scale)).collect();
        let rounded = round_lines(&exact, decimals);
        let sum: Decimal = rounded.iter().sum();
        prop_assert_eq!(sum, round(exact.iter().sum(), decimals));
        let unit = Decimal::new(1, decimals);
        for (line, of) in rounded.iter().zip(&exact) {
            prop_assert!((line - of).abs() <= unit, "{} of {}", line, of);
        }
    }

    #[test]
    fn rounding_turns_with_the_sign(n in -1_000_000_000_000_i64..1_000_000_000_000, scale in 0_u32..9, decimals in 0_u32..5) {
        let amount = Decimal::new(n, scale);
        prop_assert_eq!(round(-amount, decimals), -round(amount, decimals));
    }
}
