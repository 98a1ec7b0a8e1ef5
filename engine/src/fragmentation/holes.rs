//! What an open hole of a shared device is worth to the tasks that share devices.
//!
//! The worths are the dual prices of the fractional cutting-stock problem of these tasks:
//! a size is worth what it takes of a device in the best mix of patterns. So a hole that
//! only small tasks fill is worth little where those are few, and two thirds are worth
//! two thirds only where thirds are there to complete them.

use super::{DEVICE, WORTH};

/// The sizes that are priced, the most frequent first. More make the table no better,
/// and each costs a row of the programme.
const SIZES_MAX: usize = 24;
/// Steps of the programme: it ends long before; what it has by then is good enough.
const STEPS_MAX: usize = 400;

/// The worth of `h` free thousandths of one device, for h = 0..=1000, in millionths of a
/// GPU, for tasks of these sizes and counts.
pub fn hole_values(shared: &[(i64, i64)]) -> Vec<i64> {
    let mut shared = shared.to_vec();
    shared.sort_by_key(|&(size, count)| (std::cmp::Reverse(count), size));
    shared.truncate(SIZES_MAX);
    let prices = Programme::of(&shared)
        .and_then(Programme::solve)
        .unwrap_or_else(|| shared.iter().map(|&(size, _)| usual(size)).collect());
    let mut values = vec![0; DEVICE as usize + 1];
    for h in 1..=DEVICE {
        let with = |(&(size, _), &price): (&(i64, i64), &i64)| {
            (size <= h).then(|| values[(h - size) as usize] + price)
        };
        let best = shared.iter().zip(&prices).filter_map(with).max();
        values[h as usize] = values[h as usize - 1].max(best.unwrap_or(0));
    }
    let whole = values[DEVICE as usize].max(WORTH);
    for value in &mut values {
        *value = *value * WORTH / whole;
    }
    values[DEVICE as usize] = WORTH;
    values
}

/// The worth of a size where the programme cannot be solved in whole numbers: what it is
/// on the lists that this was tuned on.
fn usual(size: i64) -> i64 {
    match size {
        667.. => WORTH,
        501.. => WORTH * 2 / 3,
        450.. => WORTH / 2,
        300.. => WORTH / 3,
        225.. => WORTH / 4,
        200.. => WORTH / 12,
        _ => 0,
    }
}

/// The linear programme, by column generation over whole numbers: the inverse of the basis
/// is kept as its adjugate and determinant, whose every step divides exactly.
struct Programme {
    sizes: Vec<i64>,
    /// The adjugate of the basis, by row.
    adjugate: Vec<Vec<i128>>,
    /// The determinant, above zero.
    determinant: i128,
    /// How much of each basic column is used, times the determinant.
    used: Vec<i128>,
    /// What each basic column costs: a device, or nothing for a surplus.
    costs: Vec<i128>,
}

impl Programme {
    /// Each size alone on its devices.
    fn of(shared: &[(i64, i64)]) -> Option<Self> {
        let fit: Vec<i128> = shared
            .iter()
            .map(|&(s, _)| i128::from(DEVICE / s))
            .collect();
        let determinant = fit
            .iter()
            .try_fold(1_i128, |all, &each| all.checked_mul(each))?;
        let mut adjugate = vec![vec![0; shared.len()]; shared.len()];
        let mut used = Vec::with_capacity(shared.len());
        for (row, &(_, count)) in shared.iter().enumerate() {
            adjugate[row][row] = determinant / fit[row];
            used.push(adjugate[row][row].checked_mul(count.into())?);
        }
        Some(Self {
            sizes: shared.iter().map(|&(size, _)| size).collect(),
            adjugate,
            determinant,
            used,
            costs: vec![1; shared.len()],
        })
    }

    /// The prices of the sizes in millionths, or nothing where numbers grow too large.
    fn solve(mut self) -> Option<Vec<i64>> {
        for _ in 0..STEPS_MAX {
            let prices = self.prices()?;
            let Some((column, cost)) = self.entering(&prices) else {
                break;
            };
            self.pivot(&column, cost)?;
        }
        let price = |price: i128| {
            let price = price.max(0).checked_mul(WORTH.into())? + self.determinant / 2;
            i64::try_from(price / self.determinant).ok()
        };
        self.prices()?.into_iter().map(price).collect()
    }

    /// The dual prices, times the determinant.
    fn prices(&self) -> Option<Vec<i128>> {
        let column = |j: usize| {
            let rows = self.adjugate.iter().zip(&self.costs);
            rows.filter(|(_, cost)| **cost != 0)
                .try_fold(0_i128, |sum, (row, _)| sum.checked_add(row[j]))
        };
        (0..self.sizes.len()).map(column).collect()
    }

    /// A column that makes the whole cheaper: a surplus, or a pattern that is worth more than a device.
    fn entering(&self, prices: &[i128]) -> Option<(Vec<i128>, i128)> {
        let mut column = vec![0; self.sizes.len()];
        if let Some(j) = prices.iter().position(|&p| p < 0) {
            column[j] = -1;
            return Some((column, 0));
        }
        let mut best = vec![(0_i128, usize::MAX); DEVICE as usize + 1];
        for h in 1..=DEVICE as usize {
            best[h] = (best[h - 1].0, usize::MAX);
            for (j, &size) in self.sizes.iter().enumerate() {
                if size as usize <= h {
                    let value = best[h - size as usize].0 + prices[j];
                    if value > best[h].0 {
                        best[h] = (value, j);
                    }
                }
            }
        }
        if best[DEVICE as usize].0 <= self.determinant {
            return None;
        }
        let mut h = DEVICE as usize;
        while h > 0 {
            match best[h].1 {
                usize::MAX => h -= 1,
                j => {
                    column[j] += 1;
                    h -= self.sizes[j] as usize;
                }
            }
        }
        Some((column, 1))
    }

    fn pivot(&mut self, column: &[i128], cost: i128) -> Option<()> {
        let step = |row: &Vec<i128>| {
            let terms = row.iter().zip(column).filter(|(_, c)| **c != 0);
            terms
                .into_iter()
                .try_fold(0_i128, |sum, (a, c)| sum.checked_add(a.checked_mul(*c)?))
        };
        let steps: Vec<i128> = self.adjugate.iter().map(step).collect::<Option<_>>()?;
        let mut leaving: Option<usize> = None;
        for row in (0..steps.len()).filter(|&row| steps[row] > 0) {
            let sooner = match leaving {
                None => true,
                Some(other) => {
                    self.used[row].checked_mul(steps[other])?
                        < self.used[other].checked_mul(steps[row])?
                }
            };
            if sooner {
                leaving = Some(row);
            }
        }
        let leaving = leaving?;
        let pivot = steps[leaving];
        let pivot_row = self.adjugate[leaving].clone();
        let pivot_used = self.used[leaving];
        let determinant = self.determinant;
        for row in (0..steps.len()).filter(|&row| row != leaving) {
            let turned = |old: i128, of_pivot: i128| {
                let grown = old.checked_mul(pivot)?;
                let less = of_pivot.checked_mul(steps[row])?;
                Some(grown.checked_sub(less)? / determinant)
            };
            self.used[row] = turned(self.used[row], pivot_used)?;
            for (entry, of_pivot) in self.adjugate[row].iter_mut().zip(&pivot_row) {
                *entry = turned(*entry, *of_pivot)?;
            }
        }
        self.determinant = pivot;
        self.costs[leaving] = cost;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_worth_halves_and_what_completes_nothing_is_worth_nothing() {
        let values = hole_values(&[(500, 10)]);
        assert_eq!(
            [values[499], values[500], values[999]],
            [0, WORTH / 2, WORTH / 2]
        );
        // Each 810 takes a device, and the few tasks of 190 find room beside them.
        let values = hole_values(&[(810, 100), (190, 10)]);
        assert_eq!([values[190], values[810]], [0, WORTH]);
        // With many of them, they fill devices of their own.
        let values = hole_values(&[(810, 10), (190, 1000)]);
        assert_eq!(values[190], WORTH / 5);
    }

    #[test]
    fn the_best_patterns_set_the_prices() {
        // 600 + 400 fill a device; there are enough of both.
        let values = hole_values(&[(600, 10), (400, 10)]);
        assert_eq!(values[600] + values[400], WORTH);
        assert_eq!(values[1000], WORTH);
    }

    #[test]
    fn without_shared_tasks_no_hole_is_worth_anything() {
        let values = hole_values(&[]);
        assert!(values[..1000].iter().all(|&v| v == 0));
        assert_eq!(values[1000], WORTH);
    }
}
