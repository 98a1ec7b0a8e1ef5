//! Random worlds in which laws are tried, and how many of them.

#![allow(dead_code, reason = "each file of laws uses its part")]

pub mod dice;
pub mod rich;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// Worlds that are tried for each law: enough to meet all rules, and about two minutes of one core for all laws
/// together. `./dev check worlds` tries more.
const CASES: u32 = 256;
/// Where the worlds come from when nobody asks for others.
const SEED: u64 = 20_260_105;

/// A check of a change is repeatable: the same worlds each time. `PROPTEST_CASES` asks for so
/// many others, at random; what is printed of a failure names their seed, and
/// `PROPTEST_RNG_SEED` makes them again.
pub fn tried() -> ProptestConfig {
    tried_one_in(1)
}

/// The same with one world for so many, where each costs as much as they do.
pub fn tried_one_in(times: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let mut config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random if asked => rand_seed(),
        RngSeed::Random => SEED,
    };
    let cases = if asked { config.cases } else { CASES };
    config.cases = (cases / times).max(1);
    config.rng_seed = RngSeed::Fixed(seed);
    // Shown by the test runner of a test that fails, and of no other.
    println!("worlds of PROPTEST_RNG_SEED={seed}, {} cases", config.cases);
    config
}

/// A seed that is another each time.
fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
