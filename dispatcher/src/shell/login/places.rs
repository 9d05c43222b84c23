//! Places for server processes that serve clients before these are admitted, and for cancel
//! requests. Both are few, are given out by a fair queue, and are bounded per address.
//!
//! Any client can make the server fork a process (for replication, LDAP, ...) and then send
//! nothing. So there are few such places, and a client that finds them all taken waits
//! ([`FairQueue`]). While clients wait, a place is taken from a client that has owed an answer
//! for a second: of the address with most such clients, the one that has owed it longest. A
//! client never loses its place while the server works for it or waits for another service.
//!
//! A place stands for a process. It is free again when the process has ended or has admitted
//! its client. Free of I/O.

use super::limits::Turns;
use super::Logins;
use crate::core::may_take;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

/// How long a client may owe an answer while others wait.
const MOST_OWED_US: u64 = 1_000_000;

/// A client that owes its server process an answer.
#[derive(Clone, Copy)]
struct Owing {
    since_us: u64,
    serial: u64,
    origin: Option<Origin>,
}

#[derive(Default)]
pub struct Places {
    queue: FairQueue,
    /// By login number.
    owing: HashMap<u32, Owing>,
    /// The same clients, ordered by when each began to owe.
    turns: Turns,
    /// Serials of clients whose places have been taken, and whose processes are about to end.
    leaving: HashSet<u64>,
}

impl Places {
    /// Queues a client.
    pub fn add(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        self.queue.add(origin, serial, number);
    }

    /// Gives a place to the next client, if fewer than `most` are taken. Returns its number and
    /// serial.
    pub fn take(&mut self, most: usize) -> Option<(u32, u64)> {
        self.queue.take(most)
    }

    pub fn taken(&self) -> usize {
        self.queue.placed()
    }

    /// The client's process has asked it for something.
    pub fn owes(&mut self, number: u32, serial: u64, now_us: u64) {
        let Some(origin) = self.queue.origin_of_placed(serial) else {
            return;
        };
        self.owes_nothing(number);
        let since_us = now_us;
        self.turns.insert(origin, since_us, number);
        self.owing.insert(
            number,
            Owing {
                since_us,
                serial,
                origin,
            },
        );
    }

    /// The client has answered, or is gone.
    pub fn owes_nothing(&mut self, number: u32) {
        if let Some(owing) = self.owing.remove(&number) {
            self.turns.remove(owing.origin, owing.since_us, number);
        }
    }

    /// The client no longer waits, its process has ended, or its process has admitted it.
    pub fn ended(&mut self, serial: u64) {
        self.queue.remove(serial);
        self.leaving.remove(&serial);
    }

    /// Takes the place of a client that owes an answer, if that serves a waiting client.
    /// Returns its number. It no longer owes anything, and keeps the place until its process
    /// ends.
    pub fn gives_way(&mut self, most: usize, now_us: u64) -> Option<u32> {
        let is_full = !self.queue.would_serve(most, 0, None);
        if !is_full || self.queue.waiting() <= self.leaving.len() {
            return None;
        }
        let number = self.turns.next()?;
        let owing = *self.owing.get(&number)?;
        let freed = 1 + self.leaving.len();
        if now_us < owing.since_us + MOST_OWED_US
            || !self.queue.would_serve(most, freed, Some(owing.origin))
        {
            return None;
        }
        self.owes_nothing(number);
        self.leaving.insert(owing.serial);
        Some(number)
    }
}

// ---- Fair queue -----------------------------------------------------------
//
// Clients that wait for one of few places, and clients that have one.
//
// The next place goes to the address with the fewest. Of the last places an address gets one
// only while it has fewer than are left, so one address cannot take them all. Within an
// address, places go alternately to the client that came first and to the client that came
// last. So a burst is served to its end, and a standing crowd does not keep other clients of
// its address out.
//
// Free of I/O. No operation is linear in the number of waiting clients.

/// The number of places divided by this is kept for addresses that have few; at least one place
/// if there are two or more.
const FEW_PART: usize = 4;

fn kept(most: usize) -> usize {
    (most / FEW_PART).max(usize::from(most > 1))
}

/// What an address has in the queue.
#[derive(Default)]
struct Share {
    /// Serial, in the order of arrival, and number.
    waiting: BTreeSet<(u64, u32)>,
    placed: usize,
    is_last_next: bool,
}

/// A client that waits or has a place.
struct One {
    origin: Option<Origin>,
    number: u32,
    is_placed: bool,
}

#[derive(Default)]
pub struct FairQueue {
    shares: HashMap<Option<Origin>, Share>,
    /// Addresses with waiting clients: those with the fewest places first, and of these the one
    /// whose first client came first.
    order: BTreeSet<(usize, u64, Option<Origin>)>,
    /// By serial.
    all: HashMap<u64, One>,
    placed: usize,
}

impl FairQueue {
    /// Queues a client.
    pub fn add(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        let is_placed = false;
        self.all.insert(
            serial,
            One {
                origin,
                number,
                is_placed,
            },
        );
        self.change(origin, |share| {
            share.waiting.insert((serial, number));
        });
    }

    /// Gives a place to the next client, if `most` places leave one for it. Returns its number
    /// and serial.
    pub fn take(&mut self, most: usize) -> Option<(u32, u64)> {
        let (_, _, origin) = *self.order.first()?;
        if !self.would_serve(most, 0, None) {
            return None;
        }
        let share = self.shares.get(&origin)?;
        let next = match share.is_last_next {
            true => share.waiting.last(),
            false => share.waiting.first(),
        };
        let (serial, number) = *next?;
        self.all.get_mut(&serial)?.is_placed = true;
        self.placed += 1;
        self.change(origin, |share| {
            share.waiting.remove(&(serial, number));
            share.placed += 1;
            share.is_last_next = !share.is_last_next;
        });
        Some((number, serial))
    }

    /// Would the next client get a place if `freed` more places, taken from the address `from`,
    /// were free?
    pub fn would_serve(&self, most: usize, freed: usize, from: Option<Option<Origin>>) -> bool {
        let Some((own, _, origin)) = self.order.first() else {
            return false;
        };
        let own = match from == Some(*origin) {
            true => own.saturating_sub(freed),
            false => *own,
        };
        let left = most.saturating_sub(self.placed.saturating_sub(freed));
        may_take(own, left, kept(most)) > 0
    }

    /// Removes a client that no longer waits, or has left its place.
    pub fn remove(&mut self, serial: u64) {
        let Some(one) = self.all.remove(&serial) else {
            return;
        };
        self.placed -= usize::from(one.is_placed);
        self.change(one.origin, |share| {
            share.placed -= usize::from(one.is_placed);
            share.waiting.remove(&(serial, one.number));
        });
    }

    pub fn waiting(&self) -> usize {
        self.all.len() - self.placed
    }

    pub fn placed(&self) -> usize {
        self.placed
    }

    /// The address of a client that has a place.
    pub fn origin_of_placed(&self, serial: u64) -> Option<Option<Origin>> {
        let one = self.all.get(&serial).filter(|one| one.is_placed)?;
        Some(one.origin)
    }

    fn change(&mut self, origin: Option<Origin>, change: impl FnOnce(&mut Share)) {
        let share = self.shares.entry(origin).or_default();
        let place = |share: &Share| {
            let (first, _) = *share.waiting.first()?;
            Some((share.placed, first, origin))
        };
        let before = place(share);
        change(share);
        let after = place(share);
        if share.waiting.is_empty() && share.placed == 0 {
            self.shares.remove(&origin);
        }
        if let Some(before) = before {
            self.order.remove(&before);
        }
        if let Some(after) = after {
            self.order.insert(after);
        }
    }
}

// ---- Cancel requests ------------------------------------------------------
//
// Cancel requests: how many a sender may send, and the queue of those that the server must
// carry out.
//
// A key of protocol 3.0 has four bytes, and the process IDs of sessions are not secret. Without
// a limit a key could be guessed in hours. So each request costs its sender part of an
// allowance, and a wrong key costs most. A sender whose allowance is used up is ignored until
// it has grown again. A sender is an address (for IPv6 a network of 64 bits), or a user of the
// machine at a Unix socket. The addresses from which no session has come share one more
// allowance.
//
// Any client can send a request for the server, and each costs the postmaster a fork. So few
// are under way at a time, in places of their own beside those of logins. A few more wait
// ([`FairQueue`]). Beyond that, a new request replaces one of the address that has most. A lost
// request is nothing new to a client: cancel requests are never confirmed.
//
// Free of I/O.

/// Requests under way to the server at a time.
pub const CANCELS_AT_ONCE: usize = 8;
const MOST_WAITING: usize = 64;

/// Requests that wait or are under way, by the serial of their login.
#[derive(Default)]
pub struct Waiting {
    queue: FairQueue,
    waiting: HashMap<u64, (u32, Option<Origin>)>,
    turns: Turns,
}

impl Waiting {
    /// Queues a request. Returns the number of the login that gives way, if the queue is full.
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

    /// Starts the next request. Returns its login's number and serial.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        let next = self.queue.take(CANCELS_AT_ONCE)?;
        self.waits_no_more(next.1);
        Some(next)
    }

    /// The login of the request has ended.
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

// ---- allowances ------------------------------------------------------------

/// The sender of a cancel request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    Network(Origin),
    /// The user ID of a client at a Unix socket.
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

/// What a cancel request turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    Right,
    /// For a session that exists.
    WrongKey,
    /// The session may have ended.
    NoSession,
    /// For the server, which does not report the result.
    Server,
}

impl Guess {
    /// Cost in microseconds of the sender's allowance, which is one second.
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
/// The shared allowance of addresses without a session, in allowances of one sender.
const OF_STRANGERS: u64 = 10;
const SECOND_US: u64 = 1_000_000;
/// Bound on the senders that are remembered: those with a request within the last second.
const MOST_SENDERS: usize = 65_536;

/// For each sender, the time at which its allowance is full again.
#[derive(Default)]
pub struct Guesses {
    each: HashMap<Sender, u64>,
    strangers: u64,
}

impl Guesses {
    /// May a request of this sender be examined? The allowance must suffice for a wrong one.
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
    /// The sender of a cancel request; None if the login is gone.
    pub fn sender_of(&self, number: u32) -> Option<Sender> {
        let login = self.logins.get(number)?;
        Some(match Origin::of(&login.address) {
            Some(origin) => Sender::Network(origin),
            None => Sender::User(socket::peer(login.fd()).map_or(u32::MAX, |(_, uid)| uid)),
        })
    }

    /// `has_session`: a session from this sender exists.
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

    const MOST: usize = 8;
    const LATER_US: u64 = 10 * MOST_OWED_US;

    /// Clients of these addresses. Those that get a place begin to owe an answer a millisecond
    /// apart.
    fn places(origins: &[u32]) -> Places {
        let mut places = Places::default();
        for (at, origin) in origins.iter().enumerate() {
            places.add(v4(*origin), 100 + at as u64, at as u32);
        }
        let mut now_us = 0;
        while let Some((number, serial)) = places.take(MOST) {
            now_us += 1000;
            places.owes(number, serial, now_us);
        }
        places
    }

    #[test]
    fn logins_may_owe_answers_without_limit_while_no_login_waits() {
        let mut places = places(&[1, 1, 1]);
        assert_eq!(places.gives_way(MOST, LATER_US), None);
    }

    #[test]
    fn longest_owing_login_of_fullest_address_gives_way_per_waiter() {
        let mut places = places(&[2, 1, 1, 3, 4, 5, 6]);
        places.add(v4(7), 107, 7);
        assert_eq!(places.take(MOST), Some((7, 107)));
        places.owes(7, 107, 8000);
        places.add(v4(8), 200, 50);
        places.add(v4(9), 201, 51);
        assert_eq!(places.gives_way(MOST, MOST_OWED_US), None);
        // First those of address 1, then those of addresses with one each.
        assert_eq!(places.gives_way(MOST, LATER_US), Some(1));
        assert_eq!(places.gives_way(MOST, LATER_US), Some(0));
        // As many as wait. No further one gives way until the processes of these have ended.
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        assert_eq!(places.take(MOST), None);
        places.ended(101);
        assert_eq!(places.take(MOST), Some((50, 200)));
        places.ended(100);
        assert_eq!(places.take(MOST), Some((51, 201)));
        assert!(places.leaving.is_empty());
    }

    #[test]
    fn a_login_that_the_server_works_for_keeps_its_place() {
        let mut places = places(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(places.taken(), 8);
        for number in 0..8 {
            places.owes_nothing(number);
        }
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        // After another question the client has another second.
        places.owes(3, 103, LATER_US);
        let until_us = LATER_US + MOST_OWED_US;
        assert_eq!(places.gives_way(MOST, until_us - 1), None);
        assert_eq!(places.gives_way(MOST, until_us), Some(3));
    }

    #[test]
    fn no_login_gives_way_to_a_login_that_would_not_get_the_place() {
        // Address 1 has all places that an address may have, and is being served. Addresses 2
        // and 3 send nothing.
        let mut places = places(&[1, 1, 1, 1, 1, 1, 1, 2, 3]);
        assert_eq!(places.taken(), 6);
        for number in 0..7 {
            places.owes_nothing(number);
        }
        for other in [40, 50] {
            places.add(v4(other), 300 + u64::from(other), other);
            assert_eq!(places.take(MOST), Some((other, 300 + u64::from(other))));
        }
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        places.add(v4(6), 400, 60);
        assert_eq!(places.gives_way(MOST, LATER_US), Some(7));
    }

    #[test]
    fn a_login_that_waits_or_has_gone_owes_nothing() {
        let mut places = places(&[1, 1, 2]);
        places.add(v4(3), 200, 50);
        places.owes(50, 200, 1);
        assert_eq!(places.owing.len(), 3);
        for (number, serial) in [(0, 100), (1, 101), (2, 102), (50, 200)] {
            places.owes_nothing(number);
            places.ended(serial);
        }
        assert!(places.owing.is_empty() && places.turns.next().is_none());
        assert_eq!(places.taken(), 0);
    }

    const MOST_PLACES: usize = 12;

    fn queue(origins: impl IntoIterator<Item = u32>) -> FairQueue {
        let mut queue = FairQueue::default();
        for (serial, origin) in origins.into_iter().enumerate() {
            queue.add(v4(origin), serial as u64, serial as u32);
        }
        queue
    }

    fn take_all(queue: &mut FairQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.take(MOST_PLACES))
            .map(|(_, serial)| serial)
            .collect()
    }

    #[test]
    fn one_address_leaves_a_quarter_to_others() {
        let mut queue = queue([1; 100]);
        assert_eq!(take_all(&mut queue).len(), 9);
        for other in 2..5 {
            queue.add(v4(other), 1000 + u64::from(other), other);
            assert_eq!(
                queue.take(MOST_PLACES),
                Some((other, 1000 + u64::from(other)))
            );
        }
        queue.add(v4(5), 2000, 0);
        assert_eq!(queue.take(MOST_PLACES), None);
        assert_eq!((queue.placed(), queue.waiting()), (12, 92));
    }

    #[test]
    fn address_with_fewest_is_next_however_many_came_before() {
        let mut queue = queue([1; 1000]);
        let placed = take_all(&mut queue);
        queue.add(v4(2), 5000, 7);
        queue.add(v4(2), 5001, 8);
        assert_eq!(take_all(&mut queue), [5000, 5001]);
        queue.remove(placed[0]);
        queue.remove(placed[1]);
        queue.add(v4(3), 5002, 9);
        assert_eq!(queue.take(MOST_PLACES), Some((9, 5002)));
    }

    #[test]
    fn a_burst_is_served_whole_and_the_last_does_not_wait_for_all() {
        let mut queue = queue([1; 1000]);
        let mut placed = take_all(&mut queue);
        queue.add(v4(1), 5000, 7);
        let mut served = placed.len();
        let mut waited = None;
        while let Some(first) = placed.pop() {
            queue.remove(first);
            for serial in take_all(&mut queue) {
                served += 1;
                placed.push(serial);
                if serial == 5000 {
                    waited = Some(served);
                }
            }
        }
        assert_eq!(served, 1001);
        assert!(waited.is_some_and(|waited| waited <= 9 + 2), "{waited:?}");
        assert!(queue.shares.is_empty() && queue.order.is_empty() && queue.all.is_empty());
    }

    #[test]
    fn few_places_are_places() {
        for most in 1..5 {
            let mut queue = queue([1; 9]);
            let taken = std::iter::from_fn(|| queue.take(most)).count();
            assert_eq!(taken, most - usize::from(most > 1), "{most}");
        }
        assert_eq!(queue([1]).take(0), None);
    }

    #[test]
    fn queue_keeps_nothing_of_a_login_that_has_gone() {
        let mut queue = queue([1, 2, 1]);
        assert_eq!(queue.take(MOST_PLACES), Some((0, 0)));
        for serial in [0, 0, 1, 2, 9] {
            queue.remove(serial);
        }
        assert_eq!((queue.placed(), queue.waiting()), (0, 0));
        assert!(queue.shares.is_empty() && queue.order.is_empty() && queue.all.is_empty());
    }

    /// How many of `tries` requests are examined.
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
    fn a_sender_that_guesses_keys_is_not_heard_and_others_are() {
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
    fn many_strange_addresses_share_one_allowance_and_are_bounded() {
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
        // The last requests of the flood.
        let first = 1000 - (MOST_WAITING as u64 - 1);
        assert_eq!(waiting.take(), Some((first as u32, first)));
    }

    #[test]
    fn no_cancel_request_of_a_connection_that_has_gone_is_kept() {
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
