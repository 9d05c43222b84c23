//! The launcher: the questions that the dispatcher asks it, and the cache of its answers.
//!
//! The channel is either the inherited descriptor 3 or a control connection that a restarted
//! launcher opens. Without a launcher (the server restarts after a crash) sessions go on, and
//! no login completes. New clients wait a moment, because a launcher that ended alone is soon
//! replaced.

use crate::protocol::Report;
use crate::shell::link::connections::Connections;
use crate::shell::link::layout::LoginChanged;
use crate::shell::link::memory::control::Control;
use crate::shell::link::wire::{Answer, Malformed, Reader, Who};
use crate::shell::parameters::Parameters;
use crate::shell::sys::socket::Address;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::warn;

/// The channel to the launcher.
pub struct Launcher {
    control: Control,
    link: Link,
}

#[derive(Default)]
struct Link {
    connection: Option<u32>,
    /// When the last connection to a launcher ended.
    lost_us: u64,
    next_request: u32,
    /// Open questions by request number, bounded by the number of logins.
    questions: HashMap<u32, Question>,
}

/// The login that a question is for. Its number may be reused; the serial tells which login it
/// was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub login: u32,
    pub serial: u64,
}

/// A question to the launcher about one login.
pub struct Question {
    pub asker: Asker,
    pub who: Who,
    /// login_generation, read before the question was sent.
    pub generation: u64,
    /// settings_generation, likewise.
    pub settings: u64,
    frame: Vec<u8>,
    /// Number of launchers that this question has been sent to.
    asked: u32,
}

/// If this many launchers have ended during a question, it is not sent to another. The question
/// may be the cause, and every login waits for the launcher.
const LAUNCHERS_A_QUESTION: u32 = 2;

const REPLACED_WITHIN_US: u64 = 3_000_000;

impl Link {
    /// For a new launcher: the frames to send to it, and the questions to give up.
    fn ask_again(&mut self) -> (Vec<Vec<u8>>, Vec<Question>) {
        let given_up: Vec<u32> = (self.questions.iter())
            .filter(|(_, question)| question.asked >= LAUNCHERS_A_QUESTION)
            .map(|(request, _)| *request)
            .collect();
        let given_up = (given_up.iter())
            .filter_map(|request| self.questions.remove(request))
            .collect();
        let mut frames = Vec::new();
        for question in self.questions.values_mut() {
            question.asked += 1;
            frames.push(question.frame.clone());
        }
        (frames, given_up)
    }
}

impl Launcher {
    pub fn new(control: Control) -> Launcher {
        Launcher {
            control,
            link: Link::default(),
        }
    }

    pub fn is_up(&self) -> bool {
        self.link.connection.is_some()
    }

    /// Has the launcher been gone for longer than a replacement takes? Replacement takes
    /// bgw_restart_time, one second (launcher.c).
    pub fn is_away(&self, now_us: u64) -> bool {
        !self.is_up() && now_us > self.link.lost_us + REPLACED_WITHIN_US
    }

    /// Makes this connection the launcher's. Returns the launcher's previous connection.
    pub fn is_at(&mut self, number: u32) -> Option<u32> {
        let old = self.link.connection.replace(number);
        old.filter(|old| *old != number)
    }

    /// Notes that this connection has ended. False if it was not the launcher's.
    pub fn is_gone(&mut self, number: u32, now_us: u64) -> bool {
        let was_its = self.link.connection == Some(number);
        if was_its {
            self.link.connection = None;
            self.link.lost_us = now_us;
        }
        was_its
    }

    pub fn send(&self, frame: Vec<u8>, connections: &mut Connections) {
        if let Some(number) = self.link.connection {
            connections.send(number, frame);
        }
    }

    /// Asks about a client.
    pub fn ask(
        &mut self,
        asker: Asker,
        address: &Address,
        who: Who,
        settings: u64,
        connections: &mut Connections,
    ) {
        // Read this first: any later change makes the answer stale.
        let generation = self.control.header.login_generation.load(SeqCst);
        let request = self.link.next_request;
        self.link.next_request = request.wrapping_add(1);
        let frame = who.frame(request, address);
        let question = Question {
            asker,
            who,
            generation,
            settings,
            frame: frame.clone(),
            // If no launcher is connected, the question waits for the first.
            asked: u32::from(self.is_up()),
        };
        self.link.questions.insert(request, question);
        self.send(frame, connections);
    }

    /// Repeats the open questions to a new launcher. Returns the questions that are given up,
    /// each with a refusal as its answer.
    pub fn ask_again(&mut self, connections: &mut Connections) -> Vec<(Question, Arc<Answer>)> {
        let (frames, given_up) = self.link.ask_again();
        for frame in frames {
            self.send(frame, connections);
        }
        let refuse = |question: Question| {
            warn!(
                "two launchers ended while they were asked about a login of \"{}\"; it is refused",
                String::from_utf8_lossy(&question.who.user)
            );
            let report = Report::fatal(b"58000", "could not check who may log in")
                .with_detail("The server process that checks logins ended twice over this one.")
                .with_hint("See the server's log.");
            let answer = Answer {
                refusal: Some(report),
                refuse_before_authentication: true,
                ..Answer::default()
            };
            (question, Arc::new(answer))
        };
        given_up.into_iter().map(refuse).collect()
    }

    /// Takes the question with this request number.
    pub fn answered(&mut self, request: u32) -> Option<Question> {
        self.link.questions.remove(&request)
    }

    /// Drops the questions of logins that have ended.
    pub fn forget_questions(&mut self, is_there: impl Fn(Asker) -> bool) {
        (self.link.questions).retain(|_, question| is_there(question.asker));
    }
}

/// Reads the name-value pairs of a PARAMETERS payload.
pub fn parse_parameters(payload: &[u8], parameters: &mut Parameters) -> Result<(), Malformed> {
    let mut reader = Reader(payload);
    for _ in 0..reader.u32()? {
        let name = String::from_utf8_lossy(reader.string()?);
        let value = String::from_utf8_lossy(reader.string()?);
        if !parameters.set(&name, &value) {
            warn!("invalid value for parameter \"{name}\": \"{value}\"");
        }
    }
    Ok(())
}

// ---- Cached answers -------------------------------------------------------
//
// Answers of the launcher that may serve further logins. Free of I/O.
//
// Validity: an answer is valid while `login_generation` in CONTROL has the value that it had
// before the question, or while the changes since then do not concern the answer. The process
// that changes what an answer depends on records the change and raises the number before its
// client learns of the change (catalog_watch.c).
//
// Secrecy: answers about unknown users are cached like those about known users. Otherwise the
// response time would tell them apart.
//
// Eviction: an answer that has admitted a session outlives one that has not. A client can
// invent any number of names. If they evicted the other answers, every other login would wait
// for the launcher. A guess never admits a session, whether its user exists or not, so eviction
// reveals nothing.

/// Bound on the cached answers that have admitted no session, and on those that have. Beyond the
/// first bound the answers that have admitted no session are dropped, beyond the second all.
const MOST_ANSWERS: usize = 1000;

/// The answers that are valid at one generation.
#[derive(Default)]
pub struct LoginCache {
    generation: u64,
    answers: HashMap<Who, Arc<Answer>>,
    /// Number of answers that were left after the last eviction.
    left: usize,
}

impl LoginCache {
    /// `generation` is the current login_generation, `now` a TimestampTz. `changed(from, to)`
    /// says what changed between two generations.
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

    /// `generation` is login_generation before the question was sent.
    pub fn keep(
        &mut self,
        who: Who,
        generation: u64,
        answer: Arc<Answer>,
        changed: impl Fn(u64, u64) -> LoginChanged,
    ) {
        if generation < self.generation {
            // The question was sent before a change, and answered after it.
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

    /// Drops the answers that the changes up to this generation concern.
    fn renew(&mut self, generation: u64, changed: impl Fn(u64, u64) -> LoginChanged) {
        if generation == self.generation {
            return;
        }
        let changed = changed(self.generation, generation);
        self.answers
            .retain(|_, answer| !changed.concerns_login(&answer.marks));
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

    /// Drops answers that became stale by a change that does not raise login_generation.
    pub fn forget(&mut self, is_past: impl Fn(&Answer) -> bool) {
        self.answers.retain(|_, answer| !is_past(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::link::layout::shared::*;
    use crate::shell::link::layout::LoginMarks;
    use crate::shell::link::wire::Writer;

    #[test]
    fn a_question_two_launchers_died_over_is_given_up() {
        let mut link = Link::default();
        for (request, asked) in [(1, 1), (2, 0)] {
            let who = Who::new(b"u", b"d", String::new(), &Address::default(), None);
            let question = Question {
                asker: Asker {
                    login: request,
                    serial: 0,
                },
                who,
                generation: 0,
                settings: 0,
                frame: vec![request as u8],
                asked,
            };
            link.questions.insert(request, question);
        }
        let (frames, given_up) = link.ask_again();
        assert_eq!((frames.len(), given_up.len()), (2, 0));
        let (frames, given_up) = link.ask_again();
        assert_eq!(frames, [[2]]);
        assert_eq!(given_up[0].asker.login, 1);
        assert_eq!(link.ask_again().1.len(), 1);
        assert!(link.questions.is_empty());
    }

    #[test]
    fn parameters_are_read_as_the_header_says() {
        let frame = Writer::new(MSG_PARAMETERS, 0)
            .u32(2)
            .string(b"port")
            .string(b"1")
            .string(b"max_backends")
            .string(b"8")
            .finish();
        let mut parameters = Parameters::default();
        parse_parameters(&frame[16..], &mut parameters).unwrap();
        assert_eq!((parameters.port, parameters.max_backends), (1, 8));
        assert!(parse_parameters(&frame[16..40], &mut parameters).is_err());
    }

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
        // The question was sent before the change, and answered after it.
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
        // Role 1 has changed in each generation.
        let changed = |from: u64, to: u64| {
            assert!(from < to);
            LoginChanged::Only {
                roles: vec![1],
                databases: Vec::new(),
                memberships: false,
                rules: false,
            }
        };
        cache.keep(who("a", 1), 5, of(1), anything);
        cache.keep(who("b", 1), 5, of(2), anything);
        assert!(cache.find(&who("a", 1), 6, 99, changed).is_none());
        assert!(cache.find(&who("b", 1), 6, 99, changed).is_some());
        // The question was sent before the change, and answered after it.
        cache.keep(who("a", 1), 5, of(1), changed);
        cache.keep(who("c", 1), 5, of(2), changed);
        assert!(cache.find(&who("a", 1), 6, 99, changed).is_none());
        assert!(cache.find(&who("c", 1), 6, 99, changed).is_some());
        // An answer to a question sent after the change is valid at once.
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
    fn logins_that_came_in_are_not_forgotten_for_those_that_did_not() {
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
