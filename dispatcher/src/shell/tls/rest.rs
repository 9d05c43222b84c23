//! Which relays of a thread have had nothing to do for so long that they are to rest
//! (`sys/session_blocks.rs`: to rest takes 6 us, and to wake 6 more).
//!
//! Free of system calls and clocks. Time goes by in steps; who begins to rest does so at
//! a step, and at no step so many do that others would notice. While all rest no steps
//! are needed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub const STEP: Duration = Duration::from_millis(250);
/// Of nothing to do: 10 s.
const STEPS_BEFORE: u32 = 40;
/// A step's, a millisecond of work.
const MOST_A_STEP: usize = 128;

/// In place of a step: it rests, or there is none of this number.
const RESTS: u32 = u32::MAX;

/// pg_baton.force_migration, for all threads: each turn finds a session that has rested.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

pub fn set_at_once(at_once: bool) {
    AT_ONCE.store(at_once, Relaxed);
}

pub fn is_at_once() -> bool {
    AT_ONCE.load(Relaxed)
}

/// By the numbers that a thread's relays have.
#[derive(Default)]
pub struct Rests {
    now: u32,
    /// Of each, the step of its last turn. Apart from the relays: all are looked at in
    /// each step.
    used: Vec<u32>,
    awake: usize,
    /// From where on the next step looks.
    next: usize,
}

impl Rests {
    /// It has a turn.
    pub fn used(&mut self, number: usize) {
        if number >= self.used.len() {
            self.used.resize(number + 1, RESTS);
        }
        if self.used[number] == RESTS {
            self.awake += 1;
        }
        self.used[number] = self.now;
    }

    /// It has ended, or rests.
    pub fn is_out(&mut self, number: usize) {
        if let Some(used) = self.used.get_mut(number) {
            if std::mem::replace(used, RESTS) != RESTS {
                self.awake -= 1;
            }
        }
    }

    pub fn are_steps_needed(&self) -> bool {
        self.awake > 0
    }

    /// Those that are to rest now.
    pub fn step(&mut self) -> Vec<usize> {
        // RESTS is no step, and 34 years away
        self.now = self.now.wrapping_add(1) % RESTS;
        let mut numbers = Vec::new();
        for _ in 0..self.used.len() {
            if numbers.len() == MOST_A_STEP {
                break;
            }
            let number = self.next % self.used.len();
            self.next = number + 1;
            let used = self.used[number];
            if used != RESTS && self.now.wrapping_sub(used) >= STEPS_BEFORE {
                self.is_out(number);
                numbers.push(number);
            }
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(rests: &mut Rests, count: u32) -> Vec<usize> {
        (0..count).flat_map(|_| rests.step()).collect()
    }

    #[test]
    fn who_has_nothing_to_do_rests_once() {
        let mut rests = Rests::default();
        assert!(!rests.are_steps_needed());
        rests.used(3);
        rests.used(0);
        assert!(rests.are_steps_needed());
        assert_eq!(steps(&mut rests, STEPS_BEFORE - 1), []);
        rests.used(0);
        assert_eq!(steps(&mut rests, 1), [3]);
        assert_eq!(steps(&mut rests, STEPS_BEFORE - 2), []);
        assert_eq!(steps(&mut rests, 1), [0]);
        assert!(!rests.are_steps_needed());
        assert_eq!(steps(&mut rests, 2 * STEPS_BEFORE), []);
        rests.used(3);
        assert!(rests.are_steps_needed());
        assert_eq!(steps(&mut rests, STEPS_BEFORE), [3]);
    }

    #[test]
    fn who_has_ended_does_not() {
        let mut rests = Rests::default();
        rests.is_out(7);
        rests.used(1);
        rests.is_out(1);
        rests.is_out(1);
        assert!(!rests.are_steps_needed());
        assert_eq!(steps(&mut rests, 2 * STEPS_BEFORE), []);
    }

    #[test]
    fn many_are_shared_out_to_steps_and_none_is_forgotten() {
        let mut rests = Rests::default();
        let many = 3 * MOST_A_STEP + 1;
        (0..many).for_each(|number| rests.used(number));
        assert_eq!(steps(&mut rests, STEPS_BEFORE - 1), []);
        let mut all: Vec<usize> = Vec::new();
        for expected in [MOST_A_STEP, MOST_A_STEP, MOST_A_STEP, 1, 0] {
            let numbers = rests.step();
            assert_eq!(numbers.len(), expected);
            all.extend(numbers);
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..many));
    }
}
