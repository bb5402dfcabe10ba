//! Numbers that follow from a seed.

/// Marsaglia's, behind a mixer that makes neighbouring seeds unlike.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Random((mixed ^ mixed >> 29) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
    /// Some of `all` pages, `most` or fewer: first, number.
    pub fn pages(&mut self, all: u64, most: u64) -> (u64, u64) {
        let first = self.below(all);
        (first, 1 + self.below(most.min(all - first)))
    }
}
