//! Answers of the launcher that may be given again.
//!
//! Free of I/O. An answer is good as long as `login_generation` in CONTROL is
//! what it was before the launcher was asked: whoever changes what an answer
//! depends on raises it before it tells anybody (login_watch.c). Unknown users
//! are kept like known ones, or the time of an answer would tell them apart. Answers by
//! which somebody has come in are kept longer than all others, those of strangers' guesses:
//! names can be made up for ever, and each time all others were forgotten, everybody's next
//! login would wait for the launcher. A guess never comes in, whether its user is there or
//! not, so that tells a stranger nothing.

use crate::dispatcher::link::questions::{Answer, Who};
use std::collections::HashMap;
use std::sync::Arc;

/// Answers kept by which nobody has come in, and answers by which somebody has; when there
/// are more, those begin anew.
const MOST_ANSWERS: usize = 1000;

/// The answers of one generation.
#[derive(Default)]
pub struct LoginCache {
    generation: u64,
    answers: HashMap<Who, Arc<Answer>>,
    /// Of these, those that were left when others were last forgotten.
    left: usize,
}

impl LoginCache {
    /// `generation` is the number as it is now; `now` a TimestampTz.
    pub fn find(&self, who: &Who, generation: u64, now: i64) -> Option<&Arc<Answer>> {
        if generation != self.generation {
            return None;
        }
        self.answers
            .get(who)
            .filter(|answer| now < answer.good_until)
    }

    /// `generation` is the number as it was before the question.
    pub fn keep(&mut self, who: Who, generation: u64, answer: Arc<Answer>) {
        if generation < self.generation {
            return;
        }
        if generation > self.generation {
            self.answers.clear();
            self.left = 0;
            self.generation = generation;
        }
        if self.answers.len() >= self.left + MOST_ANSWERS {
            self.make_room();
        }
        self.answers.insert(who, answer);
    }

    fn make_room(&mut self) {
        self.answers.retain(|_, answer| answer.has_let_in());
        if self.answers.len() > MOST_ANSWERS {
            self.answers.clear();
        }
        self.left = self.answers.len();
    }

    /// Something has changed that raises no login_generation: these are past.
    pub fn forget(&mut self, is_past: impl Fn(&Answer) -> bool) {
        self.answers.retain(|_, answer| !is_past(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::sys::socket::Address;

    fn who(user: &str, last_byte: u8) -> Who {
        let mut address = Address::default();
        address.bytes[15] = last_byte;
        Who::new(user.as_bytes(), b"db", String::new(), &address, None)
    }

    fn answer(good_until: i64) -> Arc<Answer> {
        Arc::new(Answer {
            good_until,
            ..Answer::default()
        })
    }

    #[test]
    fn an_answer_is_good_for_its_generation_and_its_time() {
        let mut cache = LoginCache::default();
        cache.keep(who("a", 1), 5, answer(100));
        assert!(cache.find(&who("a", 1), 5, 99).is_some());
        assert!(cache.find(&who("a", 1), 5, 100).is_none());
        assert!(cache.find(&who("a", 1), 6, 99).is_none());
        assert!(cache.find(&who("a", 2), 5, 99).is_none());
        assert!(cache.find(&who("b", 1), 5, 99).is_none());
        // Asked before the change, answered after it.
        cache.keep(who("b", 1), 6, answer(100));
        cache.keep(who("a", 1), 5, answer(100));
        assert!(cache.find(&who("a", 1), 6, 99).is_none());
        assert!(cache.find(&who("b", 1), 6, 99).is_some());
    }

    #[test]
    fn what_changes_for_one_role_is_no_other_s_loss() {
        let mut cache = LoginCache::default();
        let of = |role| {
            Arc::new(Answer {
                role,
                good_until: 100,
                ..Answer::default()
            })
        };
        cache.keep(who("a", 1), 5, of(1));
        cache.keep(who("b", 1), 5, of(2));
        cache.forget(|answer| answer.role == 1);
        assert!(cache.find(&who("a", 1), 5, 99).is_none());
        assert!(cache.find(&who("b", 1), 5, 99).is_some());
    }

    #[test]
    fn the_number_of_answers_is_bounded() {
        for comes_in in [false, true] {
            let mut cache = LoginCache::default();
            for number in 0..5 * MOST_ANSWERS {
                let answer = answer(i64::MAX);
                cache.keep(who(&number.to_string(), 0), 1, answer.clone());
                if comes_in {
                    answer.lets_in();
                }
                assert!(cache.answers.len() <= 2 * MOST_ANSWERS);
            }
        }
    }

    #[test]
    fn who_has_come_in_is_not_forgotten_for_those_who_have_not() {
        let mut cache = LoginCache::default();
        for number in 0..MOST_ANSWERS / 2 {
            let known = answer(i64::MAX);
            cache.keep(who(&format!("known {number}"), 0), 1, known.clone());
            known.lets_in();
        }
        cache.keep(who("guessed", 0), 1, answer(i64::MAX));
        for number in 0..3 * MOST_ANSWERS {
            cache.keep(who(&number.to_string(), 0), 1, answer(i64::MAX));
        }
        for number in 0..MOST_ANSWERS / 2 {
            let known = who(&format!("known {number}"), 0);
            assert!(cache.find(&known, 1, 0).is_some());
        }
        assert!(cache.find(&who("guessed", 0), 1, 0).is_none());
    }
}
