//! A backend's process between two transactions, step by step as idle.c and handover.c write the
//! shared words: whatever may come in between there may come in between here.

use super::random::Random;
use super::settings::Needs;
use super::world::{Armed, Idles, World, TICKET_TAKEN};
use crate::core::{SessionId, Shown, Word};
use std::collections::VecDeque;

/// What the dispatcher sends on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToBackend {
    Assign(SessionId),
    Poke,
    /// Only wakes the backend.
    Retire,
    Recall(SessionId),
    Evict(SessionId),
    /// Ends the session if it is idle in a transaction since then.
    EndIdle(SessionId, i64),
}

/// What the backend sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromBackend {
    Release(SessionId),
    Greeted(SessionId),
    End(SessionId, bool),
    Dedicated(bool),
    Retiring,
    /// The backend leaves, as a session needs one that was started later.
    Outdated,
    /// The connection's end; the last message.
    Closed,
}

/// The backend's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The begin of wait_for_session's loop.
    Top,
    /// pass_baton, after the check for a request to retire.
    Queue,
    Taken,
    Lowered,
    /// The rest of pass_baton: the backend shows itself free, then looks again.
    Free,
    Listen,
    Sleep,
    /// A dedicated session's request has come: the backend shows it at work, and then looks whether
    /// it is paused.
    LookForPause,
    /// The request is held as long as the session is paused.
    Held,
    /// A transaction, until then.
    Run(u64),
    /// A transaction that waits for the lock, and takes this long when it has it.
    Blocked(u64),
    /// A transaction in which the backend waits for its client, until then.
    Idles(u64),
    /// Giving back: what is shown has been written; then come the owner, the word, and the message.
    GiveOwner(Word, Next),
    GiveWord(Word, Next),
    GiveTell(Next),
    /// Taking: named in the slot, then the owner, then greeted.
    TakeOwner,
    Greet,
    Exit,
}

/// What comes after a session was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Top,
    /// The session in hand is put in place.
    Take,
}

#[derive(Debug)]
pub struct Process {
    pub slot: u32,
    pub pool: u32,
    /// The last change of settings that existed when the backend was started.
    started: u64,
    /// The last change of settings that it has read.
    read: u64,
    pub inbox: VecDeque<ToBackend>,
    pub outbox: VecDeque<FromBackend>,
    step: Step,
    held: SessionId,
    /// The session that was given back last, to be reported.
    leaving: SessionId,
    /// Received, and not yet in place.
    in_hand: SessionId,
    retire_wanted: bool,
    /// It leaves because it has taken the ticket.
    has_ticket: bool,
    just_taken: bool,
    tells: bool,
    /// The session that it holds was greeted here.
    greeted_here: bool,
    dedicated: bool,
    /// It is dedicated because it was told to keep sessions.
    kept: bool,
    begun_us: u64,
    cpu_us: u64,
    pub has_ended: bool,
    /// Its dispatcher has died, and it has not connected to the next one: what it has to tell stays
    /// in its outbox.
    alone: bool,
}

impl Process {
    /// A process that has attached.
    pub fn new(slot: u32, pool: u32, started: u64, world: &mut World) -> Process {
        world.set_word(slot, Word::Idle);
        Process {
            slot,
            pool,
            started,
            read: started,
            inbox: VecDeque::new(),
            // The message "I am idle".
            outbox: VecDeque::from([FromBackend::Release(0)]),
            step: Step::Top,
            held: 0,
            leaving: 0,
            in_hand: 0,
            retire_wanted: false,
            has_ticket: false,
            just_taken: false,
            tells: false,
            greeted_here: false,
            dedicated: false,
            kept: false,
            begun_us: world.now_us,
            cpu_us: 0,
            has_ended: false,
            alone: false,
        }
    }

    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Its dispatcher dies. What it is about to hand over it hands over, or it sees first that the
    /// dispatcher has gone (dispatcher_is_there, idle.c); then it keeps what it has. Returns whether
    /// it stays: because of its session, or because it has to tell of others.
    pub fn loses_dispatcher(&mut self, world: &mut World, random: &mut Random) -> bool {
        let is_seen = random.once_in(2);
        while matches!(
            self.step,
            Step::Taken
                | Step::Lowered
                | Step::GiveOwner(..)
                | Step::GiveWord(..)
                | Step::GiveTell(_)
                | Step::TakeOwner
        ) || !is_seen && self.step == Step::Queue
        {
            self.step(world, random);
        }
        self.alone = true;
        self.inbox.clear();
        self.retire_wanted = false;
        self.has_ticket = false;
        if matches!(self.step, Step::Queue | Step::Free) {
            self.step = Step::Listen;
        }
        let is_kept = |told: &FromBackend| match told {
            FromBackend::Release(id) | FromBackend::Greeted(id) => world.client(*id).is_some(),
            _ => false,
        };
        self.outbox.retain(is_kept);
        let words = &mut world.backends[self.slot as usize];
        (words.word, words.retire, words.poked) = (Word::Busy, 0, false);
        let has_session = self.held != 0 && world.client(self.held).is_some();
        !self.has_ended && (has_session || !self.outbox.is_empty())
    }

    /// The sessions that the next dispatcher adopts with it: its own, and those of which it has
    /// something to tell.
    pub fn has(&self) -> Vec<SessionId> {
        let told = self.outbox.iter().filter_map(|told| match told {
            FromBackend::Release(id) | FromBackend::Greeted(id) => Some(*id),
            _ => None,
        });
        let mut all: Vec<SessionId> = told.chain((self.held != 0).then_some(self.held)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Has it to tell that it has greeted the session?
    pub fn has_just_greeted(&self, id: SessionId) -> bool {
        self.outbox.contains(&FromBackend::Greeted(id))
    }

    /// It connects to the next dispatcher, if it is between two transactions (is_adopted, idle.c).
    pub fn comes_again(&mut self) -> bool {
        let comes = self.alone
            && !self.has_ended
            && matches!(self.step, Step::Top | Step::Listen | Step::Sleep);
        if comes {
            self.alone = false;
            self.retire_wanted = true;
            self.step = Step::Top;
            if self.dedicated {
                self.outbox.push_back(FromBackend::Dedicated(true));
            }
        }
        comes
    }

    /// CPU time that it has used: the full time of each transaction.
    pub fn cpu_us(&self, now_us: u64) -> u64 {
        match self.step {
            Step::Run(_) => self.cpu_us + now_us.saturating_sub(self.begun_us),
            _ => self.cpu_us,
        }
    }

    pub fn is_blocked(&self) -> bool {
        matches!(self.step, Step::Blocked(_))
    }

    /// Since when it waits for its client.
    pub fn idles_since_us(&self) -> Option<u64> {
        matches!(self.step, Step::Idles(_)).then_some(self.begun_us)
    }

    /// Its client does not read.
    pub fn is_unread(&self, world: &World) -> bool {
        let client = world.clients[self.held as u32 as usize].as_ref();
        self.idles_since_us().is_some() && client.is_some_and(|it| it.idles == Idles::Unread)
    }

    pub fn has_ticket(&self) -> bool {
        self.has_ticket
    }

    pub fn held(&self) -> SessionId {
        self.held
    }

    /// Does it sleep, and wakes only by time or by other processes?
    pub fn rests(&self, world: &World) -> bool {
        match self.step {
            Step::Sleep => self.inbox.is_empty() && !self.client_speaks(world),
            Step::Run(until_us) => world.now_us < until_us,
            Step::Blocked(_) => world.is_locked(),
            Step::Held => self.inbox.is_empty(),
            Step::Idles(until_us) => {
                world.now_us < until_us && self.inbox.is_empty() && !self.client_has_gone(world)
            }
            Step::Exit => true,
            _ => false,
        }
    }

    /// Does it sleep without a pending message, and was all read that it has sent?
    pub fn sleeps(&self) -> bool {
        self.step == Step::Sleep && self.inbox.is_empty() && self.outbox.is_empty()
    }

    fn client_speaks(&self, world: &World) -> bool {
        let client = world.clients[self.held as u32 as usize].as_ref();
        self.held != 0
            && client.is_some_and(|client| {
                client.id == self.held && (client.asked > 0 || client.has_gone)
            })
    }

    fn client_has_gone(&self, world: &World) -> bool {
        let client = world.clients[self.held as u32 as usize].as_ref();
        client.is_none_or(|client| client.id != self.held || client.has_gone || client.closed)
    }

    fn claim(&self, world: &mut World, word: Word) -> bool {
        if world.backends[self.slot as usize].word == Word::Assigned {
            return false;
        }
        world.set_word(self.slot, word);
        true
    }

    fn retire_asked(&mut self, world: &mut World) -> bool {
        match world.backends[self.slot as usize].retire {
            0 => false,
            1 => true,
            ticket if world.ticket == ticket => {
                world.ticket = TICKET_TAKEN | self.slot;
                self.has_ticket = true;
                true
            }
            _ => false,
        }
    }

    /// Is it where an error or an interrupt may end it?
    pub fn may_end(&self) -> bool {
        let step = self.step;
        matches!(
            step,
            Step::Top
                | Step::Listen
                | Step::Sleep
                | Step::Held
                | Step::Run(_)
                | Step::Blocked(_)
                | Step::Idles(_)
                | Step::Greet
        )
    }

    /// Ends the process. `in_order`: it gives back the session that it has in hand.
    pub fn die(&mut self, in_order: bool) {
        if self.alone {
            self.outbox.clear();
        }
        if in_order && self.in_hand != 0 {
            self.outbox.push_back(FromBackend::Release(self.in_hand));
        }
        self.outbox.push_back(FromBackend::Closed);
        self.step = Step::Exit;
        self.has_ended = true;
    }

    /// Has it received a session that is in no place yet?
    pub fn has_in_hand(&self) -> bool {
        self.in_hand != 0
    }

    /// What users' own code may do to it: it makes false statements about itself, in any order,
    /// keeps the session that it has in hand, and ends.
    pub fn lies_and_ends(&mut self, random: &mut Random) {
        for _ in 0..random.below(4) {
            let lie = match random.below(3) {
                0 => FromBackend::Dedicated(random.once_in(2)),
                _ => FromBackend::Retiring,
            };
            self.outbox.push_back(lie);
        }
        self.die(false);
    }

    pub fn step(&mut self, world: &mut World, random: &mut Random) {
        let slot = self.slot as usize;
        self.step = match self.step {
            Step::Exit => Step::Exit,
            Step::Top => self.top(world),
            Step::Queue => {
                if self.retire_asked(world) {
                    self.retire_wanted = true;
                }
                let may_take = self.held == 0 || !world.force_migration;
                if !self.retire_wanted && may_take && world.pools[self.pool as usize].queued > 0 {
                    if self.claim(world, Word::Busy) {
                        Step::Taken
                    } else {
                        Step::Listen
                    }
                } else {
                    self.give_back_or_rest(world)
                }
            }
            Step::Taken => match world.pools[self.pool as usize].queue.pop_front() {
                Some(id) => {
                    self.in_hand = id;
                    Step::Lowered
                }
                None => self.give_back_or_rest(world),
            },
            Step::Lowered => {
                let pool = &mut world.pools[self.pool as usize];
                pool.queued -= 1;
                if pool.queued <= 0 && std::mem::take(&mut pool.is_held_back) {
                    self.outbox.push_back(FromBackend::Release(0));
                }
                self.take_instead(world)
            }
            Step::Free => {
                // The counter alone must not keep it awake.
                let pool = &world.pools[self.pool as usize];
                let word = world.backends[slot].word;
                if pool.queued > 0 && !pool.queue.is_empty() && word != Word::Assigned {
                    Step::Top
                } else {
                    Step::Listen
                }
            }
            Step::Listen => self.listen(world),
            Step::Sleep => self.wake(world),
            Step::LookForPause if self.is_paused(world) => {
                world.session(self.held).shown = Shown::Waiting;
                Step::Held
            }
            Step::LookForPause => self.run(world),
            Step::Held if self.inbox.is_empty() => Step::Held,
            Step::Held => {
                let id = self.held;
                match self.wake(world) {
                    Step::Top | Step::Sleep if self.held == id => {
                        world.session(id).shown = Shown::Other;
                        Step::LookForPause
                    }
                    step => step,
                }
            }
            Step::Run(until_us) if world.now_us < until_us => Step::Run(until_us),
            Step::Run(_) => self.end_transaction(world, random),
            Step::Blocked(_) if world.is_locked() => self.step,
            Step::Blocked(takes_us) => {
                self.begun_us = world.now_us;
                Step::Run(world.now_us + takes_us)
            }
            Step::Idles(until_us) => self.idle_in_transaction(until_us, world, random),
            Step::GiveOwner(word, next) => {
                world.session(self.leaving).owner = 0;
                world.backends[slot].session = 0;
                Step::GiveWord(word, next)
            }
            Step::GiveWord(word, next) => {
                world.set_word(self.slot, word);
                Step::GiveTell(next)
            }
            Step::GiveTell(next) => {
                let id = std::mem::take(&mut self.leaving);
                if self.tells {
                    self.outbox.push_back(FromBackend::Release(id));
                } else if let Some(client) = world.client(id) {
                    client.armed = Armed::Fully;
                }
                match next {
                    Next::Top => Step::Top,
                    Next::Take => self.take(world),
                }
            }
            Step::TakeOwner => {
                let (id, number) = (self.held, self.slot + 1);
                self.in_hand = 0;
                let now = world.now_us as i64;
                let words = world.session(id);
                words.owner = number;
                words.shown = Shown::Other;
                words.since_us = now;
                words.last_backend = number;
                self.just_taken = true;
                let needs = world.client(id).map_or(Needs::default(), |it| it.needs);
                let is_greeted = world.client(id).is_none_or(|it| it.greeted);
                assert!(
                    self.started >= needs.start && (is_greeted || self.read >= needs.change),
                    "{id:x} is served by what was set before it came"
                );
                match world.client(id) {
                    Some(client) if !client.greeted => Step::Greet,
                    _ => Step::Top,
                }
            }
            Step::Greet => {
                if let Some(client) = world.client(self.held) {
                    client.greeted = true;
                }
                self.greeted_here = true;
                self.outbox.push_back(FromBackend::Greeted(self.held));
                Step::Top
            }
        };
    }

    /// Is it told to keep its session?
    fn is_told_to_keep(&self, world: &World) -> bool {
        world.keeps || world.tenant_of(self.held).is_some_and(|it| it.keeps)
    }

    /// Is it told to keep its session no longer than a transaction lasts, and to report it?
    fn is_counted(&self, world: &World) -> bool {
        world.tenant_of(self.held).is_some_and(|it| it.is_counted)
    }

    /// The sessions that it serves, or is about to, as far as they may count for a limit.
    pub fn serves(&self) -> impl Iterator<Item = SessionId> + '_ {
        let is_at_work = matches!(self.step, Step::Run(_) | Step::Blocked(_) | Step::Idles(_));
        let held = (is_at_work && !self.dedicated).then_some(self.held);
        let in_hand = (self.in_hand != 0 && self.in_hand != self.held).then_some(self.in_hand);
        let assigned = self.inbox.iter().filter_map(|message| match message {
            ToBackend::Assign(id) => Some(*id),
            _ => None,
        });
        let all = held.into_iter().chain(in_hand).chain(assigned);
        all.filter(|_| !self.has_ended)
    }

    /// The sessions whose transaction it runs, or that it is about to put in place.
    pub fn runs_or_takes(&self) -> impl Iterator<Item = SessionId> + '_ {
        let is_at_work = matches!(self.step, Step::Run(_) | Step::Blocked(_) | Step::Idles(_));
        let own = is_at_work.then_some(self.held);
        let in_hand = (self.in_hand != 0).then_some(self.in_hand);
        own.into_iter().chain(in_hand)
    }

    /// Does it keep its session while it sleeps, though it is no longer told to?
    pub fn keeps_in_vain(&self, world: &World) -> bool {
        self.sleeps() && self.kept && !self.alone && !self.is_told_to_keep(world)
    }

    fn top(&mut self, world: &mut World) -> Step {
        if self.held == 0 {
            self.dedicated = false;
            self.kept = false;
            self.just_taken = false;
        } else if !self.just_taken {
            let tainted = world
                .client(self.held)
                .is_some_and(|client| client.taints > 0);
            // Not while it shows itself free, as it may have been claimed.
            let is_busy = world.backends[self.slot as usize].word == Word::Busy;
            self.kept = !tainted && is_busy && self.is_told_to_keep(world);
            let taints = tainted || self.kept;
            if taints != self.dedicated {
                self.dedicated = taints;
                world.backends[self.slot as usize].keeps = taints;
                if !self.alone {
                    self.outbox.push_back(FromBackend::Dedicated(taints));
                }
            }
        }
        if self.alone && self.held == 0 && self.outbox.is_empty() {
            self.die(true);
            return Step::Exit;
        }
        if self.dedicated || self.just_taken || self.alone {
            Step::Listen
        } else {
            Step::Queue
        }
    }

    fn give_back_or_rest(&mut self, world: &mut World) -> Step {
        let is_newcomer = self.held != 0 && world.session(self.held).transactions == 1;
        let is_counted = self.is_counted(world);
        let tells = world.force_migration || is_counted;
        if self.held != 0 && (tells || self.retire_wanted || is_newcomer) {
            if !self.claim(world, Word::Busy) {
                return Step::Listen;
            }
            let word = if self.retire_wanted {
                Word::Retiring
            } else {
                Word::Idle
            };
            return self.give_back(world, word, Next::Top, tells);
        }
        if self.held == 0 && self.retire_wanted && self.claim(world, Word::Retiring) {
            self.outbox.push_back(FromBackend::Retiring);
            self.die(true);
            return Step::Exit;
        }
        if world.backends[self.slot as usize].word == Word::Busy {
            let word = if self.held != 0 {
                Word::Linger
            } else {
                Word::Idle
            };
            world.set_word(self.slot, word);
        }
        let pool = &mut world.pools[self.pool as usize];
        if pool.queued <= 0 && std::mem::take(&mut pool.is_held_back) {
            self.outbox.push_back(FromBackend::Release(0));
        }
        Step::Free
    }

    fn give_back(&mut self, world: &mut World, word: Word, next: Next, tells: bool) -> Step {
        self.tells = tells || std::mem::take(&mut self.greeted_here);
        self.leaving = std::mem::take(&mut self.held);
        let now = world.now_us as i64;
        let words = world.session(self.leaving);
        words.shown = Shown::Idle;
        words.since_us = now;
        Step::GiveOwner(word, next)
    }

    fn take_instead(&mut self, world: &mut World) -> Step {
        if self.held != 0 {
            // Sometimes the session has changes to report.
            let has_news = world.session(self.held).transactions % 3 == 0;
            let tells = has_news || self.is_counted(world);
            return self.give_back(world, Word::Busy, Next::Take, tells);
        }
        self.take(world)
    }

    /// Compares what the session needs of settings: a backend that is too old for the session gives
    /// it back and ends.
    fn take(&mut self, world: &mut World) -> Step {
        if let Some(client) = world.client(self.in_hand) {
            let (needs, greeted) = (client.needs, client.greeted);
            if self.started < needs.start {
                self.outbox.push_back(FromBackend::Outdated);
                self.die(true);
                return Step::Exit;
            }
            if !greeted && self.read < needs.change {
                self.read = world.settings.changes;
            }
        }
        self.held = self.in_hand;
        world.backends[self.slot as usize].session = self.held;
        Step::TakeOwner
    }

    fn listen(&mut self, world: &mut World) -> Step {
        if self.held == 0 {
            return Step::Sleep;
        }
        let id = self.held;
        let (asked, has_gone) = match world.client(id) {
            Some(client) => (client.asked > 0, client.has_gone),
            // The session's socket was shut down.
            None => (false, true),
        };
        if asked || has_gone {
            if !self.claim(world, Word::Busy) {
                return Step::Sleep;
            }
            if !asked {
                return self.end_session(world, true);
            }
            self.just_taken = false;
            world.session(id).shown = Shown::Other;
            if world.has_pauses && self.dedicated {
                return Step::LookForPause;
            }
            return self.run(world);
        }
        if self.just_taken {
            // Greeted, or its message went elsewhere.
            self.just_taken = false;
            let now = world.now_us as i64;
            let words = world.session(id);
            words.cancelled = false;
            words.shown = Shown::Idle;
            words.since_us = now;
            return Step::Top;
        }
        Step::Sleep
    }

    /// Is the session that it keeps paused?
    fn is_paused(&self, world: &World) -> bool {
        world.tenant_of(self.held).is_some_and(|it| it.is_paused)
    }

    /// Runs the request that has come.
    fn run(&mut self, world: &mut World) -> Step {
        let id = self.held;
        let now_us = world.now_us;
        let transaction_us = world.client(id).map_or(0, |client| client.transaction_us);
        if let Some(client) = world.client(id) {
            client.asked = client.asked.saturating_sub(1);
        }
        let cancelled = std::mem::take(&mut world.session(id).cancelled);
        let takes_us = if cancelled { 1 } else { transaction_us };
        let wants_lock = world
            .client(id)
            .is_some_and(|client| std::mem::take(&mut client.wants_lock));
        if wants_lock && !cancelled {
            return Step::Blocked(takes_us);
        }
        self.begun_us = now_us;
        let idles = world.client(id).map_or(Idles::Not, |client| client.idles);
        if idles == Idles::Not || cancelled {
            return Step::Run(now_us + takes_us);
        }
        if idles == Idles::InTransaction {
            let now = world.now_us as i64;
            let words = world.session(id);
            (words.shown, words.since_us) = (Shown::InTransaction, now);
        }
        Step::Idles(now_us + takes_us)
    }

    /// The client has gone, or the session was told to end.
    fn end_session(&mut self, world: &mut World, left: bool) -> Step {
        let id = std::mem::take(&mut self.held);
        self.greeted_here = false;
        world.session(id).owner = 0;
        world.backends[self.slot as usize].session = 0;
        self.dedicated = false;
        world.backends[self.slot as usize].keeps = false;
        if self.alone {
            // The socket's end tells it.
            return Step::Top;
        }
        world.set_word(self.slot, Word::Idle);
        self.outbox.push_back(FromBackend::End(id, left));
        Step::Top
    }

    fn wake(&mut self, world: &mut World) -> Step {
        let Some(message) = self.inbox.pop_front() else {
            if self.client_speaks(world) {
                return Step::Listen;
            }
            return Step::Sleep;
        };
        match message {
            ToBackend::Assign(id) => {
                world.set_word(self.slot, Word::Busy);
                self.in_hand = id;
                if self.held != 0 && self.dedicated {
                    // The held session cannot leave: the new one goes elsewhere.
                    self.outbox.push_back(FromBackend::Release(id));
                    self.in_hand = 0;
                    return Step::Top;
                }
                return self.take_instead(world);
            }
            ToBackend::Recall(id) => {
                let has_it = id != 0 && self.held == id;
                if has_it && !self.dedicated && self.claim(world, Word::Busy) {
                    return self.give_back(world, Word::Idle, Next::Top, true);
                }
            }
            ToBackend::Evict(id) => {
                if self.dedicated && self.held == id {
                    return self.end_session(world, false);
                }
            }
            ToBackend::Poke => world.backends[self.slot as usize].poked = false,
            ToBackend::Retire | ToBackend::EndIdle(..) => {}
        }
        if self.inbox.is_empty() {
            Step::Top
        } else {
            Step::Sleep
        }
    }

    /// Messages are read at once meanwhile, unless the backend waits to write.
    fn idle_in_transaction(
        &mut self,
        until_us: u64,
        world: &mut World,
        random: &mut Random,
    ) -> Step {
        if world.now_us >= until_us || self.client_has_gone(world) {
            // It has used no CPU time.
            self.begun_us = world.now_us;
            return self.end_transaction(world, random);
        }
        if world.session(self.held).shown != Shown::InTransaction {
            return self.step;
        }
        match self.inbox.pop_front() {
            Some(ToBackend::EndIdle(id, since))
                if id == self.held && since == world.session(id).since_us =>
            {
                self.die(true);
            }
            Some(ToBackend::Poke) => world.backends[self.slot as usize].poked = false,
            _ => {}
        }
        self.step
    }

    fn end_transaction(&mut self, world: &mut World, random: &mut Random) -> Step {
        let id = self.held;
        world.backends[self.slot as usize].served += 1;
        self.cpu_us += world.now_us - self.begun_us.min(world.now_us);
        if world.lock == Some(id) {
            world.lock = None;
        }
        let now = world.now_us as i64;
        let words = world.session(id);
        words.transactions += 1;
        words.shown = Shown::Idle;
        words.since_us = now;
        let is_plain = world.is_plain;
        if let Some(client) = world.client(id) {
            client.answered += 1;
            if is_plain {
                return Step::Top;
            }
            client.taints = match client.taints {
                0 if random.once_in(30) => random.below(5) as u32,
                taints => taints.saturating_sub(1),
            };
        }
        Step::Top
    }
}
