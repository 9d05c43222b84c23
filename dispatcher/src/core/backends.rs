//! The table of backends: which exist, and what each is.
//!
//! A backend is exactly one thing at a time, [`Life`], and only [`Backends::turn`] changes that;
//! the counts follow ([`Counts`]). The word of its slot (idle, busy, ...) is the backend's own and
//! changes all the time.

use super::stall::{IdleClient, Seen};
use std::collections::{HashMap, VecDeque};

/// What the dispatcher knows of one backend.
pub struct Backend {
    pool: u32,
    life: Life,
    /// The last measurement of whether a transaction holds it and does nothing (stall.rs).
    seen: Option<Seen>,
    /// What its client keeps it waiting for, and since when.
    idle_client: Option<IdleClient>,
    /// Its index in the list of leaving backends, if it is there.
    leaving_at: usize,
    started_us: u64,
    attached_us: u64,
    /// Distinguishes it from other backends that have had its slot.
    serial: u64,
    /// The role of its session, as last seen (stall.rs).
    role: Option<u32>,
}

impl Backend {
    pub fn pool(&self) -> u32 {
        self.pool
    }

    pub fn life(&self) -> Life {
        self.life
    }

    pub fn started_us(&self) -> u64 {
        self.started_us
    }

    pub fn attached_us(&self) -> u64 {
        self.attached_us
    }

    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// The role of its session, as last seen.
    pub fn role(&self) -> Option<u32> {
        self.role
    }

    fn counted(&self) -> Counted {
        Counted {
            pool: self.pool,
            life: self.life,
            is_of_role: self.role.is_some(),
        }
    }

    // ---- is it held? -------------------------------------------------------

    pub fn seen(&self) -> Option<Seen> {
        self.seen
    }

    pub fn idle_client(&self) -> Option<IdleClient> {
        self.idle_client
    }

    /// Is the backend, which is at work or was held, due to be measured?
    pub fn is_to_be_seen(&self, is_at_work: bool, now_us: u64) -> bool {
        match is_at_work {
            true => self.seen.is_none_or(|seen| seen.is_past(now_us)),
            false => self.life.is_held(),
        }
    }
}

/// All backends, by slot.
pub struct Backends {
    table: Vec<Option<Backend>>,
    /// Unused slots; the lowest last.
    free: Vec<u32>,
    counts: Counts,
    /// How many backends a role's sessions have, as last seen. A role without any has no entry.
    of_role: HashMap<u32, usize>,
    /// In no order.
    leaving: Vec<u32>,
    /// Since when each dedicated backend is dedicated, and its slot; the latest last.
    by_dedication: Vec<(u64, u32)>,
    /// No slot from here on has a backend.
    end: u32,
    /// Slots and serials of the backends started last, in this order; some have attached since.
    started: VecDeque<(u32, u64)>,
    next_serial: u64,
}

impl Backends {
    pub fn new(slots: usize, is_free: impl Fn(u32) -> bool) -> Backends {
        Backends {
            table: (0..slots).map(|_| None).collect(),
            free: (0..slots as u32)
                .rev()
                .filter(|slot| is_free(*slot))
                .collect(),
            counts: Counts::default(),
            of_role: HashMap::new(),
            leaving: Vec::new(),
            by_dedication: Vec::new(),
            end: 0,
            started: VecDeque::new(),
            next_serial: 0,
        }
    }

    /// All backends, starting and leaving ones included.
    pub fn total(&self) -> usize {
        self.counts.total
    }

    pub fn dedicated(&self) -> usize {
        self.counts.dedicated
    }

    /// Shared backends that transactions hold without doing anything.
    pub fn held(&self) -> usize {
        self.counts.held
    }

    /// A pool's backends, counted by their state.
    pub fn lives(&self, pool: u32) -> Lives {
        self.counts.lives(pool)
    }

    /// Since when each dedicated backend is dedicated, and its slot; the latest last.
    pub fn by_dedication(&self) -> &[(u64, u32)] {
        &self.by_dedication
    }

    /// No slot from here on has a backend. New backends take the lowest free slot, so this is
    /// usually little more than the number of backends.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Backends that serve any session of their pools, without held ones.
    pub fn shared_and_not_held(&self) -> usize {
        self.counts.shared_and_not_held
    }

    /// Of all pools: backends that start or are shared, and have no session for long.
    pub fn of_no_role(&self) -> usize {
        self.counts.of_no_role
    }

    /// Reserves this number of the pool's backends: they do not leave for another pool.
    pub fn reserve(&mut self, pool: u32, backends: usize) {
        self.counts.reserve(pool, backends);
    }

    pub fn reserve_of(&self, pool: u32) -> usize {
        self.counts.reserve_of(pool)
    }

    /// The reserved backends of all pools.
    pub fn reserved(&self) -> usize {
        self.counts.reserved()
    }

    /// Backends that have been told to leave, or have said so.
    pub fn leaving(&self) -> &[u32] {
        &self.leaving
    }

    /// Is a backend about to leave so that this pool may have its place? A backend whose session
    /// became dedicated after it was told stays for as long as that lasts.
    pub fn has_leaver_for(&self, pool: u32) -> bool {
        self.counts.has_leaver_for(pool)
    }

    /// This pool gets the leaving backend's place.
    pub fn goes_for(&mut self, slot: u32, pool: Option<u32>) {
        self.change(slot, |backend| {
            ensure!(backend.life.is_leaving());
            if let Life::Unwanted { room_for }
            | Life::Leaving { room_for, .. }
            | Life::Gone { room_for } = &mut backend.life
            {
                *room_for = pool;
            }
        });
    }

    /// The backend, which is leaving, says that it exits.
    pub fn exits(&mut self, slot: u32, now_us: u64) {
        self.change(slot, |backend| {
            if let Life::Leaving { exits_since_us, .. } = &mut backend.life {
                exits_since_us.get_or_insert(now_us);
            }
        });
    }

    pub fn get(&self, slot: u32) -> Option<&Backend> {
        self.table.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Backend> {
        self.table.get_mut(slot as usize)?.as_mut()
    }

    pub fn life(&self, slot: u32) -> Option<Life> {
        self.get(slot).map(|backend| backend.life)
    }

    /// May this backend be given a session?
    #[cfg(test)]
    pub fn may_serve(&self, slot: u32) -> bool {
        self.life(slot).is_some_and(Life::may_serve)
    }

    /// Can all sessions of its pool count on it?
    pub fn may_be_held(&self, slot: u32) -> bool {
        self.life(slot).is_some_and(Life::may_be_held)
    }

    pub fn is_shared(&self, slot: u32) -> bool {
        self.life(slot).is_some_and(Life::is_shared)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Backend)> {
        let numbered = self.table.iter().enumerate();
        numbered.filter_map(|(slot, backend)| Some((slot as u32, backend.as_ref()?)))
    }

    /// Takes a slot for a new backend.
    pub fn start(&mut self, pool: u32, now_us: u64) -> Option<u32> {
        let slot = self.free.pop()?;
        self.begin(slot, pool, now_us);
        self.started.push_back((slot, self.next_serial));
        Some(slot)
    }

    /// Could this slot have a backend of an earlier dispatcher?
    pub fn may_be_adopted(&self, slot: u32) -> bool {
        matches!(self.table.get(slot as usize), Some(None)) && !self.free.contains(&slot)
    }

    /// A backend that an earlier dispatcher has started. The slot may be adopted. Returns the
    /// backend's serial.
    pub fn adopt(&mut self, slot: u32, pool: u32, now_us: u64) -> u64 {
        ensure!(self.may_be_adopted(slot));
        self.begin(slot, pool, now_us);
        self.attached(slot, now_us);
        self.next_serial
    }

    fn begin(&mut self, slot: u32, pool: u32, now_us: u64) {
        self.next_serial += 1;
        self.table[slot as usize] = Some(Backend {
            pool,
            life: Life::Starting { is_held: false },
            seen: None,
            idle_client: None,
            leaving_at: 0,
            started_us: now_us,
            attached_us: now_us,
            serial: self.next_serial,
            role: None,
        });
        self.end = self.end.max(slot + 1);
        let is = self.get(slot).map(Backend::counted);
        self.counts.change(None, is);
        ensure!(self.counts.total <= self.table.len() && slot < self.end);
    }

    // ---- the roles of their sessions ----------------------------------------

    pub fn of_role(&self, role: u32) -> usize {
        self.of_role.get(&role).copied().unwrap_or(0)
    }

    /// Roles that have a backend.
    #[cfg(test)]
    pub fn roles(&self) -> usize {
        self.of_role.len()
    }

    /// Notes the role of the session that has the backend, or that no session has it.
    pub fn is_of_role(&mut self, slot: u32, role: Option<u32>) {
        let was = self.get(slot).and_then(Backend::role);
        if was == role || self.get(slot).is_none() {
            return;
        }
        self.change(slot, |backend| backend.role = role);
        if let Some(role) = role {
            *self.of_role.entry(role).or_default() += 1;
        }
        if let Some(was) = was {
            if let Some(count) = self.of_role.get_mut(&was) {
                *count -= 1;
                if *count == 0 {
                    self.of_role.remove(&was);
                }
            }
        }
    }

    /// The next backend that was started before `then_us` and is still starting; each is named
    /// once.
    pub fn next_started_before(&mut self, then_us: u64) -> Option<u32> {
        while let Some((slot, serial)) = self.started.front().copied() {
            let backend = self.get(slot).filter(|backend| backend.serial == serial);
            let is_starting = backend.is_some_and(|backend| backend.life.is_starting());
            if is_starting && backend.is_some_and(|backend| backend.started_us >= then_us) {
                return None;
            }
            self.started.pop_front();
            if is_starting {
                return Some(slot);
            }
        }
        None
    }

    /// Changes what a backend is. No other function does.
    pub fn turn(&mut self, slot: u32, to: Life) {
        self.change(slot, |backend| {
            let was = backend.life;
            ensure!(was.may_become(to), "{was:?} to {to:?}");
            backend.life = to;
        });
    }

    /// Notes the last measurement, if the backend is at work; and whether it is held.
    pub fn is_seen(&mut self, slot: u32, seen: Option<Seen>, held: bool) {
        self.set_held(slot, held);
        if let Some(backend) = self.get_mut(slot) {
            backend.seen = seen;
        }
    }

    pub fn set_idle_client(&mut self, slot: u32, is: Option<IdleClient>) {
        if let Some(backend) = self.get_mut(slot) {
            backend.idle_client = is;
        }
    }

    fn set_held(&mut self, slot: u32, held: bool) {
        self.change(slot, |backend| {
            if let Life::Starting { is_held }
            | Life::Attached(Serves::All { is_held })
            | Life::Leaving {
                serves: Serves::All { is_held },
                ..
            } = &mut backend.life
            {
                *is_held = held;
            }
        });
    }

    pub fn attached(&mut self, slot: u32, now_us: u64) {
        let Some(backend) = self.get_mut(slot) else {
            return;
        };
        backend.attached_us = now_us;
        let to = match backend.life {
            Life::Unwanted { room_for } => Life::Leaving {
                serves: Serves::All { is_held: false },
                room_for,
                exits_since_us: None,
            },
            life => Life::Attached(Serves::All {
                is_held: life.is_held(),
            }),
        };
        self.turn(slot, to);
    }

    /// True if that is new.
    pub fn set_dedicated(&mut self, slot: u32, dedicated: bool, now_us: u64) -> bool {
        let to = match dedicated {
            true => Serves::One { since_us: now_us },
            false => Serves::All { is_held: false },
        };
        let to = match self.life(slot) {
            Some(Life::Attached(was)) if was.is_one() != dedicated => Life::Attached(to),
            Some(Life::Leaving {
                serves,
                room_for,
                exits_since_us,
            }) if serves.is_one() != dedicated => Life::Leaving {
                serves: to,
                room_for,
                exits_since_us,
            },
            _ => return false,
        };
        self.turn(slot, to);
        true
    }

    /// Tells the backend to leave, so that this pool may have its place. False if it is leaving, or
    /// does not exist.
    pub fn retire(&mut self, slot: u32, room_for: Option<u32>) -> bool {
        let to = match self.life(slot) {
            Some(Life::Starting { .. }) => Life::Unwanted { room_for },
            Some(Life::Attached(serves)) => Life::Leaving {
                serves,
                room_for,
                exits_since_us: None,
            },
            Some(Life::Unwanted { .. } | Life::Leaving { .. } | Life::Gone { .. }) | None => {
                return false
            }
        };
        self.turn(slot, to);
        true
    }

    /// The backend's process has ended. False if that is known, or there is no such backend.
    pub fn is_gone(&mut self, slot: u32) -> bool {
        let Some(life) = self.life(slot).filter(|life| !life.is_gone()) else {
            return false;
        };
        let room_for = life.room_for();
        self.turn(slot, Life::Gone { room_for });
        true
    }

    /// Frees a slot.
    pub fn remove(&mut self, slot: u32) -> Option<Backend> {
        self.leaves_no_more(slot);
        self.is_of_role(slot, None);
        let backend = self.table.get_mut(slot as usize)?.take()?;
        ensure!(
            backend.life.is_starting() || backend.life.is_gone(),
            "it is alive"
        );
        self.counts.change(Some(backend.counted()), None);
        while self.end > 0 && self.get(self.end - 1).is_none() {
            self.end -= 1;
        }
        self.release(slot);
        Some(backend)
    }

    /// The slot is unused from now on.
    pub fn release(&mut self, slot: u32) {
        let at = self.free.partition_point(|other| *other > slot);
        if self.free.get(at) != Some(&slot) {
            self.free.insert(at, slot);
        }
    }

    fn change(&mut self, slot: u32, change: impl FnOnce(&mut Backend)) {
        let Some(Some(backend)) = self.table.get_mut(slot as usize) else {
            return;
        };
        let was = backend.counted();
        change(backend);
        let is = backend.counted();
        if is.life.is_leaving() && !was.life.is_leaving() {
            backend.leaving_at = self.leaving.len();
            self.leaving.push(slot);
        }
        self.counts.change(Some(was), Some(is));
        let (was_since, is_since) = (was.life.dedicated_since_us(), is.life.dedicated_since_us());
        if was_since != is_since {
            self.move_by_dedication(slot, was_since, is_since);
        }
        if was.life.is_leaving() && !is.life.is_leaving() {
            self.leaves_no_more(slot);
        }
    }

    fn move_by_dedication(&mut self, slot: u32, was_us: Option<u64>, is_us: Option<u64>) {
        if let Some(was_us) = was_us {
            if let Ok(at) = self.by_dedication.binary_search(&(was_us, slot)) {
                self.by_dedication.remove(at);
            }
        }
        if let Some(is_us) = is_us {
            let place = (is_us, slot);
            let at = self.by_dedication.partition_point(|other| *other < place);
            self.by_dedication.insert(at, place);
        }
    }

    fn leaves_no_more(&mut self, slot: u32) {
        let Some(at) = self.get(slot).map(|backend| backend.leaving_at) else {
            return;
        };
        if self.leaving.get(at) != Some(&slot) {
            return;
        }
        self.leaving.swap_remove(at);
        if let Some(moved) = self.leaving.get(at).copied() {
            if let Some(backend) = self.get_mut(moved) {
                backend.leaving_at = at;
            }
        }
    }

    /// Checks that counts and lists agree with the table.
    #[cfg(test)]
    pub fn check(&self) {
        let mut by_dedication = Vec::new();
        let mut all = Vec::new();
        for (slot, backend) in self.iter() {
            assert!(slot < self.end, "the end of the table");
            all.push(backend.counted());
            let since_us = backend.life.dedicated_since_us();
            by_dedication.extend(since_us.map(|since_us| (since_us, slot)));
            let leaves = self.leaving.iter().filter(|other| **other == slot).count();
            assert_eq!(leaves, usize::from(backend.life.is_leaving()), "leaving");
        }
        self.counts.check(&all);
        by_dedication.sort_unstable();
        assert_eq!(
            by_dedication, self.by_dedication,
            "since when they are dedicated"
        );
    }
}

// ----------------------------------------------------------------------------
// What a backend is, and how many backends of a pool are in which state.

/// What a backend is. A backend is held if its start, or a transaction that does nothing, keeps it
/// from other sessions for long (stall.rs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is logging in, and has not attached yet.
    Starting {
        is_held: bool,
    },
    /// Still starting; it is to exit once it has attached.
    Unwanted {
        room_for: Option<u32>,
    },
    Attached(Serves),
    /// It is to exit, and gets no more sessions. It stays until its transaction has ended, and so
    /// does its extra place.
    Leaving {
        serves: Serves,
        /// The pool that may have its place.
        room_for: Option<u32>,
        /// Since when it says that it exits: it has no session then.
        exits_since_us: Option<u64>,
    },
    /// Its process has ended. The slot stays reserved until all sessions that it may have had are
    /// found (reap.rs).
    Gone {
        room_for: Option<u32>,
    },
}

/// Which sessions an attached backend serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// It is shared: it serves any session of its pool.
    All { is_held: bool },
    /// It is dedicated: it serves one session only, for now.
    One { since_us: u64 },
}

impl Serves {
    fn is_one(self) -> bool {
        matches!(self, Serves::One { .. })
    }
}

impl Life {
    pub fn is_starting(self) -> bool {
        matches!(self, Life::Starting { .. } | Life::Unwanted { .. })
    }

    /// May it be given a session?
    #[cfg(test)]
    pub fn may_serve(self) -> bool {
        matches!(self, Life::Attached(_))
    }

    pub fn is_shared(self) -> bool {
        matches!(self, Life::Attached(Serves::All { .. }))
    }

    pub fn is_leaving(self) -> bool {
        matches!(
            self,
            Life::Unwanted { .. } | Life::Leaving { .. } | Life::Gone { .. }
        )
    }

    pub fn is_gone(self) -> bool {
        matches!(self, Life::Gone { .. })
    }

    /// The sessions that it serves, if it has attached and its process has not ended.
    fn serves(self) -> Option<Serves> {
        match self {
            Life::Attached(serves) | Life::Leaving { serves, .. } => Some(serves),
            Life::Starting { .. } | Life::Unwanted { .. } | Life::Gone { .. } => None,
        }
    }

    pub fn may_be_held(self) -> bool {
        match self {
            Life::Starting { .. } => true,
            life => life.serves().is_some_and(|serves| !serves.is_one()),
        }
    }

    pub fn is_held(self) -> bool {
        match self {
            Life::Starting { is_held } => is_held,
            life => life.serves() == Some(Serves::All { is_held: true }),
        }
    }

    pub fn is_dedicated(self) -> bool {
        self.serves().is_some_and(Serves::is_one)
    }

    pub fn dedicated_since_us(self) -> Option<u64> {
        match self.serves()? {
            Serves::One { since_us } => Some(since_us),
            Serves::All { .. } => None,
        }
    }

    /// The pool that may have its place when it has left.
    pub fn room_for(self) -> Option<u32> {
        match self {
            Life::Unwanted { room_for }
            | Life::Leaving { room_for, .. }
            | Life::Gone { room_for } => room_for,
            Life::Starting { .. } | Life::Attached(_) => None,
        }
    }

    pub fn exits_since_us(self) -> Option<u64> {
        match self {
            Life::Leaving { exits_since_us, .. } => exits_since_us,
            _ => None,
        }
    }

    pub fn may_become(self, to: Life) -> bool {
        match self {
            _ if to.is_gone() => !self.is_gone(),
            Life::Starting { .. } => !to.is_dedicated(),
            Life::Unwanted { .. } => matches!(to, Life::Leaving { .. }) && !to.is_dedicated(),
            Life::Gone { .. } => false,
            Life::Attached(_) | Life::Leaving { .. } => {
                !to.is_starting() && (!self.is_leaving() || to.is_leaving())
            }
        }
    }
}

/// The backends of a pool, counted by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    starting: u32,
    unwanted: u32,
    shared: u32,
    dedicated: u32,
    leaving: u32,
    /// Shared backends that no transaction holds.
    for_all: u32,
    of_no_role: u32,
}

impl Lives {
    /// Counts a change of one backend; None before it exists and after it is gone.
    pub fn count(&mut self, was: Option<Counted>, is: Option<Counted>) {
        if let Some(is) = is {
            self.add(is, 1);
        }
        if let Some(was) = was {
            self.add(was, -1);
        }
    }

    fn add(&mut self, one: Counted, by: i32) {
        let add = |count: &mut u32, counts: bool| {
            *count = count.wrapping_add_signed(if counts { by } else { 0 });
        };
        match one.life {
            Life::Starting { .. } => add(&mut self.starting, true),
            Life::Unwanted { .. } => add(&mut self.unwanted, true),
            Life::Attached(Serves::All { .. }) => add(&mut self.shared, true),
            Life::Attached(Serves::One { .. }) => add(&mut self.dedicated, true),
            Life::Leaving { .. } => add(&mut self.leaving, true),
            Life::Gone { .. } => {}
        }
        add(&mut self.for_all, one.is_for_all());
        add(&mut self.of_no_role, one.is_of_no_role());
    }

    pub fn shared(&self) -> usize {
        self.shared as usize
    }

    pub fn shared_and_not_held(&self) -> usize {
        self.for_all as usize
    }

    /// Backends that start or are shared, and that no session has for long.
    pub fn of_no_role(&self) -> usize {
        self.of_no_role as usize
    }

    /// As [`Life::is_starting`].
    pub fn starting(&self) -> usize {
        (self.starting + self.unwanted) as usize
    }

    /// As [`Life::may_serve`].
    pub fn may_serve(&self) -> usize {
        (self.shared + self.dedicated) as usize
    }

    /// Backends that serve the pool's sessions in turn, or are starting to.
    pub fn expected(&self) -> usize {
        (self.starting + self.shared) as usize
    }

    /// Backends that have attached, and whose processes have not ended.
    pub fn attached(&self) -> usize {
        (self.shared + self.dedicated + self.leaving) as usize
    }
}

// ----------------------------------------------------------------------------
// Counts of backends by state. They are updated as each backend changes, so that no question needs
// a pass over all backends.

/// What counts of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub pool: u32,
    pub life: Life,
    /// A session of some role has it for long.
    pub is_of_role: bool,
}

impl Counted {
    pub fn is_for_all(self) -> bool {
        self.life.is_shared() && !self.life.is_held()
    }

    /// It starts or is shared, and no session has it for long.
    pub fn is_of_no_role(self) -> bool {
        let is_expected = self.life.is_shared() || matches!(self.life, Life::Starting { .. });
        is_expected && !self.is_of_role
    }

    /// A backend whose session became dedicated after it was told to leave stays for as long as
    /// that lasts.
    fn goes_for(self) -> Option<u32> {
        self.life.room_for().filter(|_| !self.life.is_dedicated())
    }
}

/// Of all backends, and by pool. Vectors are no longer than they have to be.
#[derive(Debug, Default)]
pub struct Counts {
    pub total: usize,
    pub dedicated: usize,
    /// Shared backends that transactions hold without doing anything.
    pub held: usize,
    /// Backends that serve any session of their pools, without held ones.
    pub shared_and_not_held: usize,
    /// Backends that start or are shared, and that no session has.
    pub of_no_role: usize,
    lives: Vec<Lives>,
    /// By pool: how many of its backends, if it has that many, leave for no other pool;
    reserves: Vec<usize>,
    /// and how many of those exist, of all pools.
    reserved: usize,
    /// How many backends are about to leave for each pool; no entry is 0.
    go_for: HashMap<u32, usize>,
}

impl Counts {
    /// Counts a change of one backend; None before it exists and after it is gone.
    pub fn change(&mut self, was: Option<Counted>, is: Option<Counted>) {
        let Some(pool) = is.or(was).map(|one| one.pool as usize) else {
            return;
        };
        self.total = self.total + usize::from(is.is_some()) - usize::from(was.is_some());
        let follow = |count: &mut usize, counts: fn(Counted) -> bool| {
            *count += usize::from(is.is_some_and(counts));
            *count -= usize::from(was.is_some_and(counts));
        };
        follow(&mut self.dedicated, |one| one.life.is_dedicated());
        follow(&mut self.held, |one| one.life.is_held());
        follow(&mut self.shared_and_not_held, Counted::is_for_all);
        follow(&mut self.of_no_role, Counted::is_of_no_role);
        let goes_for = |one: Option<Counted>| one.and_then(Counted::goes_for);
        if goes_for(was) != goes_for(is) {
            self.count_going(goes_for(was), goes_for(is));
        }
        if self.lives.len() <= pool {
            self.lives.resize(pool + 1, Lives::default());
        }
        self.reserved -= self.reserved_of(pool);
        self.lives[pool].count(was, is);
        self.reserved += self.reserved_of(pool);
    }

    fn count_going(&mut self, was: Option<u32>, is: Option<u32>) {
        if let Some(is) = is {
            *self.go_for.entry(is).or_default() += 1;
        }
        if let Some(count) = was.and_then(|was| self.go_for.get_mut(&was)) {
            *count -= 1;
        }
        if let Some(was) = was.filter(|was| self.go_for.get(was) == Some(&0)) {
            self.go_for.remove(&was);
        }
    }

    /// A pool's backends, counted by their state.
    pub fn lives(&self, pool: u32) -> Lives {
        self.lives.get(pool as usize).copied().unwrap_or_default()
    }

    /// Is a backend about to leave so that this pool may have its place?
    pub fn has_leaver_for(&self, pool: u32) -> bool {
        self.go_for.contains_key(&pool)
    }

    // ---- reserves ----------------------------------------------------------

    /// Reserves this number of the pool's backends: they do not leave for another pool.
    pub fn reserve(&mut self, pool: u32, backends: usize) {
        let pool = pool as usize;
        if self.reserves.len() <= pool {
            if backends == 0 {
                return;
            }
            self.reserves.resize(pool + 1, 0);
        }
        self.reserved -= self.reserved_of(pool);
        self.reserves[pool] = backends;
        self.reserved += self.reserved_of(pool);
    }

    pub fn reserve_of(&self, pool: u32) -> usize {
        self.reserves.get(pool as usize).copied().unwrap_or(0)
    }

    /// Of the backends that serve any session of their pools.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    fn reserved_of(&self, pool: usize) -> usize {
        let reserve = self.reserve_of(pool as u32);
        reserve.min(self.lives.get(pool).map_or(0, Lives::shared))
    }

    #[cfg(test)]
    pub fn check(&self, all: &[Counted]) {
        let mut lives = vec![Lives::default(); self.lives.len()];
        let mut go_for: HashMap<u32, usize> = HashMap::new();
        for one in all {
            lives[one.pool as usize].count(None, Some(*one));
            let stays = one.life.is_dedicated() || !one.life.is_leaving();
            if let Some(pool) = one.life.room_for().filter(|_| !stays) {
                *go_for.entry(pool).or_default() += 1;
            }
        }
        assert_eq!(lives, self.lives, "what pools' backends are");
        assert_eq!(go_for, self.go_for, "for whom they go");
        let count = |counts: fn(&&Counted) -> bool| all.iter().filter(counts).count();
        let for_all = count(|one| one.life.is_shared() && !one.life.is_held());
        assert_eq!(for_all, self.shared_and_not_held, "not held");
        let of_no_role = count(|one| one.is_of_no_role());
        assert_eq!(of_no_role, self.of_no_role, "of no role");
        assert_eq!(count(|one| one.life.is_held()), self.held, "held backends");
        assert_eq!(all.len(), self.total, "all backends");
        let dedicated = count(|one| one.life.is_dedicated());
        assert_eq!(dedicated, self.dedicated, "dedicated backends");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_what_each_backend_is() {
        let mut backends = Backends::new(3, |slot| slot != 1);
        assert_eq!(backends.start(0, 0), Some(0));
        assert_eq!(backends.start(0, 0), Some(2));
        assert_eq!(backends.start(0, 0), None);
        backends.attached(0, 5);
        assert!(backends.set_dedicated(0, true, 9) && !backends.set_dedicated(0, true, 9));
        assert!(backends.may_serve(0) && !backends.is_shared(0));
        let lives = backends.lives(0);
        assert_eq!(
            (lives.starting(), lives.expected(), lives.shared()),
            (1, 1, 0)
        );
        assert_eq!((lives.may_serve(), lives.attached()), (1, 1));
        assert_eq!(
            (backends.by_dedication(), backends.end()),
            (&[(9, 0)][..], 3)
        );
        assert_eq!((backends.total(), backends.dedicated()), (2, 1));
        assert!(backends.retire(0, None) && !backends.retire(0, Some(1)));
        assert_eq!((backends.dedicated(), backends.leaving()), (1, &[0][..]));
        assert!(backends.set_dedicated(0, false, 9) && !backends.may_serve(0));
        // A backend that is told to leave before it has attached leaves when it has.
        assert!(backends.retire(2, Some(1)) && backends.has_leaver_for(1));
        backends.attached(2, 5);
        let life = backends.life(2).unwrap();
        assert!(life.is_leaving() && !life.is_starting());
        assert_eq!((life.is_dedicated(), life.room_for()), (false, Some(1)));
        assert!(!backends.set_dedicated(2, false, 9));
        for slot in [0, 2] {
            assert!(backends.is_gone(slot));
            assert!(backends.remove(slot).is_some() && backends.remove(slot).is_none());
        }
        assert_eq!((backends.total(), backends.dedicated()), (0, 0));
        assert!(backends.leaving().is_empty() && backends.by_dedication().is_empty());
        assert_eq!((backends.lives(0), backends.end()), (Lives::default(), 0));
        backends.release(1);
        backends.release(1);
        assert_eq!(backends.free, [2, 1, 0]);
    }
}
