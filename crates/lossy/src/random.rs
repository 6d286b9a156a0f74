//! Random numbers from a seed. All randomness of a simulated world comes from such a source.

/// A source of random numbers. The same seed gives the same numbers, on every machine.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// Creates the source of a seed.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Creates a separate source, so that the draws of one part of a world do not shift the draws of other
    /// parts.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// Returns true in about `chance` of 100 cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns an element of `from`, which is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = self.0.usize(..from.len());
        from.get(index)
            .unwrap_or_else(|| unreachable!("the index is below the length"))
    }
}
