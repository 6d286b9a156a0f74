//! A short queue without memory of its own.

/// At most `N` values, first in, first out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queue<T, const N: usize>([Option<T>; N]);

impl<T: Copy, const N: usize> Queue<T, N> {
    pub const fn new() -> Self {
        Self([None; N])
    }

    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub const fn is_full(&self) -> bool {
        self.0[N - 1].is_some()
    }

    pub const fn get(&self, at: usize) -> Option<T> {
        self.0[at]
    }

    pub fn push(&mut self, value: T) {
        assert!(!self.is_full(), "the model keeps {N} values at most");
        let end = self.len();
        self.0[end] = Some(value);
    }

    pub fn remove(&mut self, at: usize) -> T {
        let value = self.0[at].take().unwrap();
        self.0[at..].rotate_left(1);
        value
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Changes each value.
    pub fn map(&self, change: impl Fn(T) -> T) -> Self {
        Self(self.0.map(|slot| slot.map(&change)))
    }

    /// Drops values.
    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        let old = std::mem::replace(self, Self::new());
        old.iter().filter(keeps).for_each(|value| self.push(value));
    }
}
