//! Seeds, and the order of arrival that comes of one.

use std::str::FromStr;

/// The most seeds of one run: their figures are all kept.
const SEEDS_MAX: u64 = 1000;

/// Seeds as they are written: 42, 42..51 (both included) or 1,2,3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const REMEDY: &str = "use seeds such as 42, 42..51 or 1,2,3; at most 1000";
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| REMEDY.to_owned());
        let seeds = match text.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
                if last.checked_sub(first).is_none_or(|more| more >= SEEDS_MAX) {
                    return Err(REMEDY.to_owned());
                }
                (first..=last).collect()
            }
            None => text.split(',').map(number).collect::<Result<Vec<_>, _>>()?,
        };
        if seeds.is_empty() || seeds.len() as u64 > SEEDS_MAX {
            return Err(REMEDY.to_owned());
        }
        Ok(Self(seeds))
    }
}

/// Numbers from a seed (SplitMix64): the same on every machine and in every version.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, each as likely as the next but for 2^-64.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Puts rows into a random order.
    pub fn shuffle<T>(&mut self, rows: &mut [T]) {
        for i in (1..rows.len()).rev() {
            rows.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_a_span_or_a_list() {
        let read = |text: &str| text.parse::<Seeds>().map(|s| s.0);
        assert_eq!(read("42"), Ok(vec![42]));
        assert_eq!(read("42..44"), Ok(vec![42, 43, 44]));
        assert_eq!(read("1,5"), Ok(vec![1, 5]));
        for wrong in ["", "a", "5..1", "0..1000000000", "1,,2"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shuffle_keeps_every_row_and_repeats_itself() {
        let shuffled = |seed| {
            let mut rows: Vec<usize> = (0..100).collect();
            Random::of(seed).shuffle(&mut rows);
            rows
        };
        assert_eq!(shuffled(42), shuffled(42));
        assert_ne!(shuffled(42), shuffled(43));
        let mut rows = shuffled(42);
        rows.sort_unstable();
        assert_eq!(rows, (0..100).collect::<Vec<_>>());
    }
}
