//! Holds rows that come one by one, each for as long as the shelf: a planner borrows them.

use std::cell::{Cell, OnceCell};

/// Boards of twice the length of the one before hold more than any memory does.
const BOARDS: usize = 48;

/// Rows that are added and never taken away; what was lent stays where it is.
pub struct Shelf<T> {
    boards: [OnceCell<Box<[OnceCell<T>]>>; BOARDS],
    len: Cell<usize>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self {
            boards: [const { OnceCell::new() }; BOARDS],
            len: Cell::new(0),
        }
    }
}

impl<T> Shelf<T> {
    /// Puts a row down and lends it.
    pub fn put(&self, row: T) -> &T {
        let number = self.len.get() + 1;
        self.len.set(number);
        // Board k holds the numbers from 2^k on.
        let board = number.ilog2() as usize;
        let places = || (0..1 << board).map(|_| OnceCell::new()).collect();
        let place = &self.boards[board].get_or_init(places)[number - (1 << board)];
        place.get_or_init(|| row)
    }

    /// How many rows it holds.
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
