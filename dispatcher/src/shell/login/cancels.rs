//! Cancel requests: who may send how many, and those that are the server's to obey, which
//! wait to be brought to it.
//!
//! A key of protocol 3.0 has four bytes, and sessions' process IDs are no secret: without a
//! limit it would be guessed in hours. So each request costs its sender, most of all one
//! with a wrong key, and who has used up what he had is not heard until he has some again.
//! A sender is an address (of IPv6 a network of 64 bits), or a user of the machine at a Unix
//! socket. Those from where no session has come share one more allowance.
//!
//! Of the others, anybody may send one, and each costs the postmaster a fork. So few are on their way
//! at one time, beside the clients for whom the server is asked for a backend; a few
//! wait (queue.rs), and one more takes the place of one of the address
//! that has most. A request that is lost is nothing new to who sends one.
//!
//! Free of I/O.

use super::limits::Turns;
use super::queue::FairQueue;
use super::Logins;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket;
use std::collections::HashMap;
use std::fmt;

/// On their way to the server.
pub const AT_ONCE: usize = 8;
const MOST_WAITING: usize = 64;

/// Those that wait or are on their way, by their login's serial.
#[derive(Default)]
pub struct Waiting {
    queue: FairQueue,
    waiting: HashMap<u64, (u32, Option<Origin>)>,
    turns: Turns,
}

impl Waiting {
    /// One more, from there. Who gives way, if that is one too many.
    pub fn add(&mut self, origin: Option<Origin>, serial: u64, number: u32) -> Option<u32> {
        let is_full = self.waiting.len() >= MOST_WAITING;
        let gives_way = self.turns.next().filter(|_| is_full);
        if let Some(gone) = gives_way {
            let serial = (self.waiting.iter()).find(|(_, (number, _))| *number == gone);
            if let Some(serial) = serial.map(|(serial, _)| *serial) {
                self.forget(serial);
            }
        }
        self.queue.add(origin, serial, number);
        self.waiting.insert(serial, (number, origin));
        self.turns.insert(origin, serial, number);
        gives_way
    }

    /// The next one, number and serial; it is on its way.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        let next = self.queue.take(AT_ONCE)?;
        self.waits_no_more(next.1);
        Some(next)
    }

    /// Its login has ended.
    pub fn forget(&mut self, serial: u64) {
        self.queue.remove(serial);
        self.waits_no_more(serial);
    }

    fn waits_no_more(&mut self, serial: u64) {
        if let Some((number, origin)) = self.waiting.remove(&serial) {
            self.turns.remove(origin, serial, number);
        }
    }
}

// ---- guessing --------------------------------------------------------------

/// Who sends cancel requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    Network(Origin),
    /// At a Unix socket.
    User(u32),
}

impl fmt::Display for Sender {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sender::Network(_) => write!(to, "from an address"),
            Sender::User(uid) => write!(to, "of the user with number {uid}"),
        }
    }
}

/// What a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    Right,
    /// Of a session that is there.
    WrongKey,
    /// Its session may have ended.
    NoSession,
    /// For the server, which does not tell.
    Server,
}

impl Guess {
    /// In microseconds of what a sender has, which is a second's worth.
    fn cost_us(self) -> u64 {
        match self {
            Guess::Right => 1_000,
            Guess::NoSession => 10_000,
            Guess::Server => 20_000,
            Guess::WrongKey => MOST_COST_US,
        }
    }
}

const MOST_COST_US: u64 = 100_000;
/// What there is for all from where no session has come, of one sender's.
const OF_STRANGERS: u64 = 10;
const SECOND_US: u64 = 1_000_000;
/// Senders known at a time: those who have sent one within a second.
const MOST_SENDERS: usize = 65_536;

/// When each sender has all he can have again.
#[derive(Default)]
pub struct Guesses {
    each: HashMap<Sender, u64>,
    strangers: u64,
}

impl Guesses {
    /// Is a request from there looked at? There must be enough for a wrong one.
    fn may_guess(&mut self, from: Sender, has_session: bool, now_us: u64) -> bool {
        let is_enough =
            |full_us: u64, cost_us: u64| full_us.max(now_us) + cost_us <= now_us + SECOND_US;
        if !has_session && !is_enough(self.strangers, MOST_COST_US / OF_STRANGERS) {
            return false;
        }
        if let Some(full_us) = self.each.get(&from) {
            return is_enough(*full_us, MOST_COST_US);
        }
        if self.each.len() >= MOST_SENDERS {
            self.each.retain(|_, full_us| *full_us > now_us);
        }
        self.each.len() < MOST_SENDERS
    }

    fn has_guessed(&mut self, from: Sender, has_session: bool, guess: Guess, now_us: u64) {
        let full_us = self.each.entry(from).or_default();
        *full_us = (*full_us).max(now_us) + guess.cost_us();
        if !has_session {
            self.strangers = self.strangers.max(now_us) + guess.cost_us() / OF_STRANGERS;
        }
    }
}

impl Logins {
    /// None: it is gone.
    pub fn sender_of(&self, number: u32) -> Option<Sender> {
        let login = self.logins.get(number)?;
        Some(match Origin::of(&login.address) {
            Some(origin) => Sender::Network(origin),
            None => Sender::User(socket::peer(login.fd()).map_or(u32::MAX, |(_, uid)| uid)),
        })
    }

    /// `has_session`: one from there is logged in.
    pub fn may_guess(&mut self, from: Sender, has_session: bool) -> bool {
        self.guesses.may_guess(from, has_session, self.now.us)
    }

    pub fn has_guessed(&mut self, from: Sender, has_session: bool, guess: Guess) {
        (self.guesses).has_guessed(from, has_session, guess, self.now.us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::sessions::sockets::samples::v4;

    /// How many of so many are looked at.
    fn heard(all: &mut Guesses, from: Sender, tries: u32, guess: Guess, now_us: u64) -> u32 {
        let has_session = from != Sender::User(9);
        let mut heard = 0;
        for _ in 0..tries {
            if all.may_guess(from, has_session, now_us) {
                all.has_guessed(from, has_session, guess, now_us);
                heard += 1;
            }
        }
        heard
    }

    #[test]
    fn who_guesses_keys_is_not_heard_and_others_are() {
        let mut all = Guesses::default();
        let [one, other] = [1, 2].map(|last| Sender::Network(v4(last).unwrap()));
        let now_us = 77 * SECOND_US;
        assert_eq!(heard(&mut all, one, 1000, Guess::WrongKey, now_us), 10);
        assert_eq!(heard(&mut all, one, 10, Guess::Right, now_us), 0);
        assert_eq!(heard(&mut all, other, 500, Guess::Right, now_us), 500);
        assert_eq!(
            heard(&mut all, Sender::User(1), 80, Guess::NoSession, now_us),
            80
        );
        let later_us = now_us + SECOND_US;
        assert_eq!(heard(&mut all, one, 1000, Guess::WrongKey, later_us), 10);
    }

    #[test]
    fn strangers_of_many_addresses_have_one_allowance_and_are_bounded() {
        let mut all = Guesses::default();
        let (mut strangers, now_us) = (0, SECOND_US);
        for last in 0..1000 {
            let from = Sender::Network(v4(last).unwrap());
            if all.may_guess(from, false, now_us) {
                all.has_guessed(from, false, Guess::WrongKey, now_us);
                strangers += 1;
            }
        }
        assert_eq!(strangers, 100);
        let known = Sender::Network(v4(5000).unwrap());
        assert!(all.may_guess(known, true, now_us));
        for last in 0..2 * MOST_SENDERS as u32 {
            let from = Sender::Network(v4(last).unwrap());
            if all.may_guess(from, true, now_us) {
                all.has_guessed(from, true, Guess::WrongKey, now_us);
            }
        }
        assert_eq!(all.each.len(), MOST_SENDERS);
        assert!(all.may_guess(known, true, now_us + SECOND_US));
    }

    #[test]
    fn a_flood_of_one_address_costs_its_own_requests_alone() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.add(v4(1), 1, 1), None);
        for serial in 2..=MOST_WAITING as u64 {
            assert_eq!(waiting.add(v4(2), serial, serial as u32), None);
        }
        for serial in 100..1000 {
            let gone = waiting.add(v4(2), serial, serial as u32).unwrap();
            assert_ne!(gone, 1);
            assert_eq!(waiting.waiting.len(), MOST_WAITING);
        }
        assert_eq!(waiting.take(), Some((1, 1)));
        // The flood's last ones.
        let first = 1000 - (MOST_WAITING as u64 - 1);
        assert_eq!(waiting.take(), Some((first as u32, first)));
    }

    #[test]
    fn of_who_has_gone_nothing_is_kept() {
        let mut waiting = Waiting::default();
        waiting.add(v4(1), 1, 7);
        waiting.add(None, 2, 8);
        waiting.forget(1);
        waiting.forget(1);
        assert_eq!((waiting.take(), waiting.take()), (Some((8, 2)), None));
        waiting.forget(2);
        assert!(waiting.turns.next().is_none());
    }
}
