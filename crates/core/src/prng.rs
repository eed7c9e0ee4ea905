//! Seeded randomness: xoshiro256++ seeded through splitmix64 (Blackman and Vigna, 2019).
//!
//! The generator is written here and is not a dependency: a seed that a failing run prints must
//! give the same run after every update of the dependencies. [`math`] makes the run the same on any
//! computer.

use crate::math;

/// A deterministic generator. A caller passes it in; no code reads a global generator.
#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

impl Prng {
    /// The generator of this seed. Every seed is valid, zero included.
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        let state = core::array::from_fn(|_| {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            math::mix(counter)
        });
        Self { state }
    }

    /// An independent generator for a part of the run, so that drawing more numbers in one part
    /// does not shift every other part.
    pub fn fork(&mut self, label: u64) -> Self {
        Self::new(self.next_u64() ^ label.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..bound`. The bias is below 2^-64 (Lemire's multiply-shift).
    ///
    /// # Panics
    /// When `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "below(0) has no value to return");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `[0, 1)` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * math::ln(1.0 - self.unit())
    }

    /// Standard normal (Box-Muller). The second value of each pair is dropped, so that the state is
    /// only the generator's.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * math::ln(1.0 - self.unit())).sqrt();
        radius * math::cos(core::f64::consts::TAU * self.unit())
    }

    /// Puts the items in a random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_for_ever() {
        let mut prng = Prng::new(1);
        // The values are pinned, because another sequence would silently change every recorded run.
        let first: Vec<u64> = (0..3).map(|_| prng.next_u64()).collect();
        let mut again = Prng::new(1);
        assert_eq!(first, (0..3).map(|_| again.next_u64()).collect::<Vec<_>>());
        assert_eq!(first[0], 0xcfc5_d07f_6f03_c29b);
    }

    #[test]
    fn below_covers_its_range_and_nothing_else() {
        let mut prng = Prng::new(7);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[prng.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }

    #[test]
    fn normal_and_exponential_have_their_moments() {
        let mut prng = Prng::new(3);
        let n = 100_000;
        let mean = (0..n).map(|_| prng.exponential(2.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 2.0).abs() < 0.05, "{mean}");
        let square = (0..n).map(|_| math::square(prng.normal())).sum::<f64>() / f64::from(n);
        assert!((square - 1.0).abs() < 0.05, "{square}");
    }
}
