//! What the launcher has been asked, and by whom.
//!
//! Its channel is either descriptor 3, inherited, or a control connection of a
//! launcher that has been started anew. Without one (the server restarts after
//! a crash) sessions go on, and nobody can log in: who comes waits a moment, for
//! a launcher that ended alone is soon replaced.

use crate::protocol::Report;
use crate::shell::link::connections::Connections;
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
    /// When the last one went.
    lost_us: u64,
    next_request: u32,
    /// By request; bounded by the logins.
    questions: HashMap<u32, Question>,
}

/// Who wants to know; the serial tells it from an earlier one of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub login: u32,
    pub serial: u64,
}

/// A question that has been answered, or given up.
pub struct Question {
    pub asker: Asker,
    pub who: Who,
    /// login_generation before it was asked.
    pub generation: u64,
    /// And settings_generation.
    pub settings: u64,
    frame: Vec<u8>,
    /// Launchers that have had it.
    asked: u32,
}

/// A question that this many launchers died over is not put to another: it may
/// be what they died of, and every login waits for them.
const LAUNCHERS_A_QUESTION: u32 = 2;

const REPLACED_WITHIN_US: u64 = 3_000_000;

impl Link {
    /// For a new launcher: what it shall be asked, and what is given up.
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

    /// Gone for so long that this is no mere replacement, which takes bgw_restart_time,
    /// a second (launcher.c).
    pub fn is_away(&self, now_us: u64) -> bool {
        !self.is_up() && now_us > self.link.lost_us + REPLACED_WITHIN_US
    }

    /// This connection is the launcher's from now on; the one that was before.
    pub fn is_at(&mut self, number: u32) -> Option<u32> {
        let old = self.link.connection.replace(number);
        old.filter(|old| *old != number)
    }

    /// This connection has ended; false if it was not the launcher's any more.
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
        // First of all: whatever changes from here on makes the answer old.
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
            // one that is asked without a launcher waits for the first
            asked: u32::from(self.is_up()),
        };
        self.link.questions.insert(request, question);
        self.send(frame, connections);
    }

    /// A launcher that is new is asked again, once; what is given up is answered.
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

    /// What was asked by this number.
    pub fn answered(&mut self, request: u32) -> Option<Question> {
        self.link.questions.remove(&request)
    }

    /// Questions whose asker has gone are forgotten.
    pub fn forget_questions(&mut self, is_there: impl Fn(Asker) -> bool) {
        (self.link.questions).retain(|_, question| is_there(question.asker));
    }
}

/// The pairs of a PARAMETERS payload.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::link::layout::shared::*;
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
}
