//! Answers of the launcher that may be given again.
//!
//! Free of I/O. An answer is good as long as `login_generation` in CONTROL is
//! what it was before the launcher was asked, or the changes since do not concern
//! it: whoever changes what an answer depends on raises the number, and says what
//! has changed, before it tells anybody (login_watch.c). Unknown users
//! are kept like known ones, or the time of an answer would tell them apart. Answers by
//! which somebody has come in are kept longer than all others, those of strangers' guesses:
//! names can be made up for ever, and each time all others were forgotten, everybody's next
//! login would wait for the launcher. A guess never comes in, whether its user is there or
//! not, so that tells a stranger nothing.

use crate::shell::link::layout::LoginChanged;
use crate::shell::link::wire::{Answer, Who};
use std::collections::HashMap;
use std::sync::Arc;

/// Answers kept by which nobody has come in, and answers by which somebody has; when there
/// are more, those begin anew.
const MOST_ANSWERS: usize = 1000;

/// The answers that are good at one generation.
#[derive(Default)]
pub struct LoginCache {
    generation: u64,
    answers: HashMap<Who, Arc<Answer>>,
    /// Of these, those that were left when others were last forgotten.
    left: usize,
}

impl LoginCache {
    /// `generation` is the number as it is now; `now` a TimestampTz. `changed`: what
    /// has changed between two generations.
    pub fn find(
        &mut self,
        who: &Who,
        generation: u64,
        now: i64,
        changed: impl Fn(u64, u64) -> LoginChanged,
    ) -> Option<&Arc<Answer>> {
        self.renew(generation, changed);
        self.answers
            .get(who)
            .filter(|answer| now < answer.good_until)
    }

    /// `generation` is the number as it was before the question.
    pub fn keep(
        &mut self,
        who: Who,
        generation: u64,
        answer: Arc<Answer>,
        changed: impl Fn(u64, u64) -> LoginChanged,
    ) {
        if generation < self.generation {
            // Asked before a change, answered after it.
            if changed(generation, self.generation).concerns(&answer.marks) {
                return;
            }
        } else {
            self.renew(generation, changed);
        }
        if self.answers.len() >= self.left + MOST_ANSWERS {
            self.make_room();
        }
        self.answers.insert(who, answer);
    }

    /// What has become old by this generation is forgotten.
    fn renew(&mut self, generation: u64, changed: impl Fn(u64, u64) -> LoginChanged) {
        if generation == self.generation {
            return;
        }
        let changed = changed(self.generation, generation);
        self.answers
            .retain(|_, answer| !changed.concerns(&answer.marks));
        self.left = self.left.min(self.answers.len());
        self.generation = generation;
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
    use crate::shell::link::layout::LoginMarks;
    use crate::shell::sys::socket::Address;

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

    fn anything(_: u64, _: u64) -> LoginChanged {
        LoginChanged::Anything
    }

    #[test]
    fn an_answer_is_good_for_its_generation_and_its_time() {
        let mut cache = LoginCache::default();
        cache.keep(who("a", 1), 5, answer(100), anything);
        assert!(cache.find(&who("a", 1), 5, 99, anything).is_some());
        assert!(cache.find(&who("a", 1), 5, 100, anything).is_none());
        assert!(cache.find(&who("a", 1), 6, 99, anything).is_none());
        assert!(cache.find(&who("a", 2), 5, 99, anything).is_none());
        assert!(cache.find(&who("b", 1), 5, 99, anything).is_none());
        // Asked before the change, answered after it.
        cache.keep(who("b", 1), 6, answer(100), anything);
        cache.keep(who("a", 1), 5, answer(100), anything);
        assert!(cache.find(&who("a", 1), 6, 99, anything).is_none());
        assert!(cache.find(&who("b", 1), 6, 99, anything).is_some());
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
        cache.keep(who("a", 1), 5, of(1), anything);
        cache.keep(who("b", 1), 5, of(2), anything);
        cache.forget(|answer| answer.role == 1);
        assert!(cache.find(&who("a", 1), 5, 99, anything).is_none());
        assert!(cache.find(&who("b", 1), 5, 99, anything).is_some());
    }

    #[test]
    fn an_answer_outlives_the_changes_that_do_not_concern_it() {
        let mut cache = LoginCache::default();
        let of = |role_hash| {
            Arc::new(Answer {
                marks: LoginMarks {
                    role_hash,
                    ..LoginMarks::default()
                },
                good_until: 100,
                ..Answer::default()
            })
        };
        // Role 1 has changed in each of them.
        let changed = |from: u64, to: u64| {
            assert!(from < to);
            LoginChanged::Only {
                roles: vec![1],
                databases: Vec::new(),
                memberships: false,
            }
        };
        cache.keep(who("a", 1), 5, of(1), anything);
        cache.keep(who("b", 1), 5, of(2), anything);
        assert!(cache.find(&who("a", 1), 6, 99, changed).is_none());
        assert!(cache.find(&who("b", 1), 6, 99, changed).is_some());
        // Asked before that, answered after it.
        cache.keep(who("a", 1), 5, of(1), changed);
        cache.keep(who("c", 1), 5, of(2), changed);
        assert!(cache.find(&who("a", 1), 6, 99, changed).is_none());
        assert!(cache.find(&who("c", 1), 6, 99, changed).is_some());
        // And at once, if it was asked after it.
        cache.keep(who("a", 1), 6, of(1), changed);
        assert!(cache.find(&who("a", 1), 6, 99, changed).is_some());
        cache.keep(who("d", 1), 7, of(2), changed);
        assert!(cache.find(&who("a", 1), 7, 99, changed).is_none());
        assert!(cache.find(&who("b", 1), 7, 99, changed).is_some());
        assert!(cache.find(&who("b", 1), 8, 99, anything).is_none());
    }

    #[test]
    fn the_number_of_answers_is_bounded() {
        for comes_in in [false, true] {
            let mut cache = LoginCache::default();
            for number in 0..5 * MOST_ANSWERS {
                let answer = answer(i64::MAX);
                cache.keep(who(&number.to_string(), 0), 1, answer.clone(), anything);
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
            cache.keep(
                who(&format!("known {number}"), 0),
                1,
                known.clone(),
                anything,
            );
            known.lets_in();
        }
        cache.keep(who("guessed", 0), 1, answer(i64::MAX), anything);
        for number in 0..3 * MOST_ANSWERS {
            cache.keep(who(&number.to_string(), 0), 1, answer(i64::MAX), anything);
        }
        for number in 0..MOST_ANSWERS / 2 {
            let known = who(&format!("known {number}"), 0);
            assert!(cache.find(&known, 1, 0, anything).is_some());
        }
        assert!(cache.find(&who("guessed", 0), 1, 0, anything).is_none());
    }
}
