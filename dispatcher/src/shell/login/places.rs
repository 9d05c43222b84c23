//! Server processes that serve clients before these are let in, and cancel requests: both
//! are few, wait in a fair queue, and have a bound for each address.
//!
//! Anybody can have the server fork one (replication, LDAP, ...) and then say nothing. So
//! there are few such places, and who comes when all are taken waits ([`FairQueue`]). While
//! some wait, a place is taken from a client that has been asked and has owed the answer
//! for a second: of the address with most of these the one that owes longest. From a client
//! for whom the server is at work, or asks somebody else, none is ever taken.
//!
//! A place is that of a process: it is free again when that has ended, or has let its
//! client in. Free of I/O.

use super::limits::Turns;
use super::Logins;
use crate::core::may_take;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

/// So long a client may owe an answer while others wait.
const MOST_OWED_US: u64 = 1_000_000;

/// It is this client's turn.
#[derive(Clone, Copy)]
struct Owing {
    since_us: u64,
    serial: u64,
    origin: Option<Origin>,
}

#[derive(Default)]
pub struct Places {
    queue: FairQueue,
    /// By number.
    owing: HashMap<u32, Owing>,
    /// By when each began to owe.
    turns: Turns,
    /// Their processes are about to end: their places have been taken from them.
    leaving: HashSet<u64>,
}

impl Places {
    /// One more waits for one.
    pub fn add(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        self.queue.add(origin, serial, number);
    }

    /// The next one, number and serial: it has one of so many places.
    pub fn take(&mut self, most: usize) -> Option<(u32, u64)> {
        self.queue.take(most)
    }

    pub fn taken(&self) -> usize {
        self.queue.placed()
    }

    /// It has been asked, by the process that it has.
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

    /// It has answered, or is gone.
    pub fn owes_nothing(&mut self, number: u32) {
        if let Some(owing) = self.owing.remove(&number) {
            self.turns.remove(owing.origin, owing.since_us, number);
        }
    }

    /// It waits no more, or its process has ended or is no such any more.
    pub fn ended(&mut self, serial: u64) {
        self.queue.remove(serial);
        self.leaving.remove(&serial);
    }

    /// Whose place is taken now; it owes nothing any more, and has it until its process ends.
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
// Who waits for one of few places, and who has one.
//
// The next place goes to the address that has fewest, and of the last ones an address gets
// some only while it has fewer than are left: whatever one does, another gets one. Within an address they
// go in turn to who came first and to who came last: so a burst is served to its end, and
// a crowd that stands there keeps nobody else of its address from coming in.
//
// Free of I/O. Nothing here is linear in who waits.

/// Of all places this part is for addresses that have few; of two and more one at least.
const FEW_PART: usize = 4;

fn kept(most: usize) -> usize {
    (most / FEW_PART).max(usize::from(most > 1))
}

/// What an address has.
#[derive(Default)]
struct Share {
    /// Serial, in the order they came, and number.
    waiting: BTreeSet<(u64, u32)>,
    placed: usize,
    is_last_next: bool,
}

/// One that waits, or has a place.
struct One {
    origin: Option<Origin>,
    number: u32,
    is_placed: bool,
}

#[derive(Default)]
pub struct FairQueue {
    shares: HashMap<Option<Origin>, Share>,
    /// Addresses of which some wait: those that have fewest places first, and of these the one
    /// whose first came first.
    order: BTreeSet<(usize, u64, Option<Origin>)>,
    /// By serial.
    all: HashMap<u64, One>,
    placed: usize,
}

impl FairQueue {
    /// One more waits.
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

    /// The next one, number and serial: it has a place now, one of so many.
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

    /// Would the next one get a place if so many more were free, which `from` had?
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

    /// It waits no more, or has left its place.
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

    /// Where one is from that has a place.
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
// Cancel requests: who may send how many, and those that are the server's to obey, which
// wait to be brought to it.
//
// A key of protocol 3.0 has four bytes, and sessions' process IDs are no secret: without a
// limit it would be guessed in hours. So each request costs its sender, most of all one
// with a wrong key, and who has used up what he had is not heard until he has some again.
// A sender is an address (of IPv6 a network of 64 bits), or a user of the machine at a Unix
// socket. Those from where no session has come share one more allowance.
//
// Of the others, anybody may send one, and each costs the postmaster a fork. So few are on their way
// at one time, beside the clients for whom the server is asked for a backend; a few
// wait ([`FairQueue`]), and one more takes the place of one of the address
// that has most. A request that is lost is nothing new to who sends one.
//
// Free of I/O.

/// On their way to the server.
pub const CANCELS_AT_ONCE: usize = 8;
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
        let next = self.queue.take(CANCELS_AT_ONCE)?;
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

    const MOST: usize = 8;
    const LATER_US: u64 = 10 * MOST_OWED_US;

    /// Clients from there; all that get a place begin to owe an answer, a millisecond after each other.
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
    fn while_nobody_waits_all_may_owe_as_long_as_they_like() {
        let mut places = places(&[1, 1, 1]);
        assert_eq!(places.gives_way(MOST, LATER_US), None);
    }

    #[test]
    fn who_owes_longest_of_the_address_with_most_gives_way_to_each_that_waits() {
        let mut places = places(&[2, 1, 1, 3, 4, 5, 6]);
        places.add(v4(7), 107, 7);
        assert_eq!(places.take(MOST), Some((7, 107)));
        places.owes(7, 107, 8000);
        places.add(v4(8), 200, 50);
        places.add(v4(9), 201, 51);
        assert_eq!(places.gives_way(MOST, MOST_OWED_US), None);
        // Of address 1, and then of those that have one each.
        assert_eq!(places.gives_way(MOST, LATER_US), Some(1));
        assert_eq!(places.gives_way(MOST, LATER_US), Some(0));
        // As many as wait, and none again until their processes have ended.
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        assert_eq!(places.take(MOST), None);
        places.ended(101);
        assert_eq!(places.take(MOST), Some((50, 200)));
        places.ended(100);
        assert_eq!(places.take(MOST), Some((51, 201)));
        assert!(places.leaving.is_empty());
    }

    #[test]
    fn for_whom_the_server_works_keeps_its_place() {
        let mut places = places(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(places.taken(), 8);
        for number in 0..8 {
            places.owes_nothing(number);
        }
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        // Asked once more, it has another second.
        places.owes(3, 103, LATER_US);
        let until_us = LATER_US + MOST_OWED_US;
        assert_eq!(places.gives_way(MOST, until_us - 1), None);
        assert_eq!(places.gives_way(MOST, until_us), Some(3));
    }

    #[test]
    fn nobody_gives_way_to_who_would_not_get_the_place() {
        // Address 1 has all that one may have, and is served; 2 and 3 say nothing.
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
    fn who_waits_or_has_gone_owes_nothing() {
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
    fn who_has_fewest_is_next_however_many_others_came_before() {
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
    fn a_burst_is_served_to_its_end_and_who_comes_last_does_not_wait_for_all_of_it() {
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
    fn of_who_has_gone_nothing_is_kept() {
        let mut queue = queue([1, 2, 1]);
        assert_eq!(queue.take(MOST_PLACES), Some((0, 0)));
        for serial in [0, 0, 1, 2, 9] {
            queue.remove(serial);
        }
        assert_eq!((queue.placed(), queue.waiting()), (0, 0));
        assert!(queue.shares.is_empty() && queue.order.is_empty() && queue.all.is_empty());
    }

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
    fn of_who_has_gone_no_cancel_request_is_kept() {
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
