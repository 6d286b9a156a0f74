//! Chance, from a seed: everything that happens in a world by chance comes from one of these.

/// A source of random numbers. The same seed gives the same numbers, on every machine.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The source of a seed.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A source of its own, so that what one part of a world draws does not shift the others.
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

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of `from`, which is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = self.0.usize(..from.len());
        from.get(index)
            .unwrap_or_else(|| unreachable!("the index is below the length"))
    }
}
