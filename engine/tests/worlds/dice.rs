//! Bytes that choices are made by: zeros make the plainest, so that what fails shrinks to it.

/// Bytes, and how many of them are used up.
pub struct Dice<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Dice<'b> {
    pub fn of(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next byte; those beyond the last are zero.
    fn next(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// A number from 0 to `below`, without it.
    pub fn below(&mut self, below: i64) -> i64 {
        i64::from(self.next()) % below.max(1)
    }

    /// Something that happens once in so many times.
    pub fn once_in(&mut self, times: i64) -> bool {
        self.below(times) == times - 1
    }

    /// This once in so many times, else the plain one.
    pub fn rarely<T>(&mut self, times: i64, rare: T, plain: T) -> T {
        if self.once_in(times) { rare } else { plain }
    }

    /// One of these; the first is the plainest.
    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as i64) as usize].clone()
    }
}
