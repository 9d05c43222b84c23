//! The shell's part on the simulated world: carries out the core's actions as the dispatcher's
//! `carry_out.rs` does, without system calls. Between two actions backends may go on.

use super::process::{Process, ToBackend};
use super::shell::{Opening, Shell};
use super::world::{Armed, TenantWords, FREE, NO_SESSION, QUEUE_HOLDS};
use crate::core::{
    index_of, Action, ClientOwes, Ending, Event, Says, SessionId, Shown, Why, Word, Words,
};

/// The actions that follow from one event must end. A claim may be lost again and again, but not
/// this often.
const MOST_ACTIONS: usize = 100_000;

impl Shell {
    pub fn carry_out(&mut self) {
        let mut done = 0;
        while let Some(action) = self.core.next_action() {
            done += 1;
            // Starting backends are bounded by max_connections, whatever clients send.
            let starts = matches!(action, Action::Open { .. } | Action::TellPool(..));
            self.costs.actions += u64::from(!starts);
            assert!(done < MOST_ACTIONS, "it never comes to an end: {action:?}");
            self.note(|| format!("    {action:?}"));
            if self.is_only_looked_at(&action) {
                continue;
            }
            self.act(action);
            if self.random.once_in(4) {
                self.step_backends(2);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        self.note(|| format!("    -> {event:?}"));
        self.costs.handle(&mut self.core, event, &self.world);
    }

    fn is_handed_out(&mut self, id: SessionId) {
        assert!(
            !self.core.is_session_paused(id),
            "{id:x} is paused, and is handed out"
        );
        self.turns.handed_out(&self.core, id);
        self.served.is_handed_out(id);
        self.check_limit(id);
    }

    fn any_of(&mut self, pool: u32) -> Option<u32> {
        let slots = self.core.pool_backends(pool);
        let at = slots.len().checked_sub(1)?;
        let at = self.random.below(at + 1);
        self.core.pool_backends(pool).get(at).copied()
    }

    fn act(&mut self, action: Action) {
        let now = self.world.now_us as i64;
        match action {
            Action::Claim { slot, seen, id } => {
                let pool = self.core.sessions().get(id).map(|session| session.pool());
                let queue = &self.world.pools[pool.expect("it is there") as usize].queue;
                assert!(
                    queue.is_empty() || self.world.force_migration,
                    "{id:x} overtakes who is in the ready queue"
                );
                self.core.check_turn(id);
                self.step_one(slot);
                if self.world.backend(slot) != seen {
                    self.claims_lost += 1;
                    return self.handle(Event::ClaimLost(id));
                }
                let pool = pool.expect("it is there");
                if self.cannot_send() {
                    self.full.push(pool);
                    let to_queue = false;
                    return self.handle(Event::NotSent { pool, id, to_queue });
                }
                self.world.set_word(slot, Word::Assigned);
                self.send(slot, ToBackend::Assign(id));
                self.is_handed_out(id);
                self.handle(Event::Claimed);
            }
            Action::Enqueue { pool, id } => {
                self.core.check_turn(id);
                let words = &mut self.world.pools[pool as usize];
                words.queued += 1;
                if let Some(slot) = self.any_of(pool) {
                    self.step_one(slot);
                }
                if self.cannot_send() {
                    self.world.pools[pool as usize].queued -= 1;
                    self.full.push(pool);
                    let to_queue = true;
                    return self.handle(Event::NotSent { pool, id, to_queue });
                }
                let words = &mut self.world.pools[pool as usize];
                if words.queue.len() >= QUEUE_HOLDS {
                    words.queued -= 1;
                    self.queue_was_full += 1;
                    self.full.push(pool);
                    return self.handle(Event::QueueFull { pool, id });
                }
                words.queue.push_back(id);
                self.is_handed_out(id);
                self.handle(Event::Queued);
            }
            Action::HoldBack(pool) => {
                let words = &mut self.world.pools[pool as usize];
                let was_held_back = std::mem::replace(&mut words.is_held_back, true);
                if let Some(slot) = self.any_of(pool) {
                    self.step_one(slot);
                }
                if !was_held_back && self.world.pools[pool as usize].queued <= 0 {
                    self.handle(Event::QueueIsLow(pool));
                }
            }
            Action::Poke(slot) => {
                let words = &mut self.world.backends[slot as usize];
                if !std::mem::replace(&mut words.poked, true) {
                    self.send(slot, ToBackend::Poke);
                }
            }
            Action::TakeBack(pool) => {
                while let Some(id) = self.world.pools[pool as usize].queue.pop_front() {
                    self.world.pools[pool as usize].queued -= 1;
                    self.turns.taken_back(&self.core, id);
                    self.handle(Event::TakenBack(id));
                }
                self.handle(Event::QueueDrained(pool));
            }
            Action::CloseQueue(pool) => {
                let slots = self.processes.iter().flatten();
                let takes = |it: &&Process| it.pool == pool && !it.has_ended;
                let mut of_pool = slots.filter(takes);
                assert!(
                    of_pool.next().is_none(),
                    "a queue closed that one takes from"
                );
                let words = &mut self.world.pools[pool as usize];
                assert!(words.queue.is_empty(), "a queue closed with somebody in it");
                words.queued = 0;
                self.full.retain(|other| *other != pool);
            }
            Action::ResetCounter(pool) => self.world.pools[pool as usize].queued = 0,
            Action::ShowWaiting(id) => {
                let words = self.world.session(id);
                words.shown = Shown::Waiting;
                words.since_us = now;
            }
            Action::Arm(id) => {
                let words = self.world.session(id);
                words.owner = 0;
                words.shown = Shown::Idle;
                words.since_us = now;
                self.arm(id, Armed::Fully);
            }
            Action::ArmForEnd(id) => self.arm(id, Armed::ForEnd),
            Action::Look { id, look } => {
                let says = self.look(id);
                self.handle(Event::Said { id, look, says });
            }
            Action::Skip { id, later, .. } => {
                self.skipping.push(id);
                self.waits_ended += 1;
                if later {
                    self.arm(id, Armed::Fully);
                } else {
                    self.skip_on(id);
                }
            }
            Action::SkipOn(id) => self.skip_on(id),
            Action::End { id, why, .. } => {
                if why == Why::WaitedTooLong {
                    self.waits_ended += 1;
                }
                let client = self.world.clients[index_of(id) as usize].take();
                assert!(
                    client.is_some_and(|client| client.id == id),
                    "a session ended that was not there: {id:x}"
                );
                *self.world.session(id) = NO_SESSION;
                self.served.ends(id);
                self.skipping.retain(|other| *other != id);
            }
            Action::CancelOnBackend(_) | Action::TerminateOnBackend(_) => {}
            Action::MarkCancel(id) => self.world.session(id).cancelled = true,
            Action::ClearCancel(id) => self.world.session(id).cancelled = false,
            Action::Open { slot, pool } => {
                self.core.check_opened(pool);
                self.core.check_starts_as(pool);
                self.turns.opened(&self.core, pool, &self.world);
                assert_eq!(self.world.backend(slot), Word::Free);
                self.opened += 1;
                self.world.set_word(slot, Word::Starting);
                let mut at_us = self.world.now_us + self.random.between(1, self.start_us);
                if self.are_some_lost && self.opened % 16 == 5 {
                    at_us = u64::MAX;
                }
                self.openings.push(Opening {
                    slot,
                    pool,
                    at_us,
                    change: self.world.settings.changes,
                });
            }
            Action::Retire(slot) => {
                self.world.backends[slot as usize].retire = 1;
                self.send(slot, ToBackend::Retire);
            }
            Action::Recall { slot, id } => {
                let held = match id {
                    0 => self.world.backend_session(slot),
                    id => id,
                };
                self.send(slot, ToBackend::Recall(held));
            }
            Action::Evict { slot, id } => {
                self.core.check_evicted(slot);
                self.send(slot, ToBackend::Evict(id));
            }
            Action::EndIdle {
                slot,
                id,
                waits_for,
                idle_us,
            } => {
                let process = self.processes[slot as usize].as_ref();
                let process = process.filter(|it| it.held() == id && !it.has_ended);
                if let Some(since_us) = process.and_then(Process::idles_since_us) {
                    let really_us = self.world.now_us - since_us;
                    self.core.check_idle_ended(slot, idle_us, really_us);
                }
                self.idle_ended += 1;
                match waits_for {
                    ClientOwes::Request { since } => self.send(slot, ToBackend::EndIdle(id, since)),
                    ClientOwes::Reading { .. }
                        if process.is_none_or(|it| !it.is_unread(&self.world)) => {}
                    ClientOwes::Reading { .. } => {
                        if let Some(client) = self.world.client(id) {
                            client.has_gone = true;
                        }
                    }
                }
            }
            Action::Keep { tenant, keeps } => match tenant {
                Some(tenant) => self.world.tenants[tenant as usize].keeps = keeps,
                None => self.world.keeps = keeps,
            },
            Action::Count { tenant, is_counted } => {
                self.served.is_counted(tenant, is_counted);
                self.world.tenants[tenant as usize].is_counted = is_counted;
            }
            Action::Pause { tenant, is_paused } => {
                self.world.tenants[tenant as usize].is_paused = is_paused;
            }
            Action::TellPause { asker, state } => self.pauses.told(asker, state),
            Action::ShowMemoryLeft { tenant, left } => {
                self.world.tenants[tenant as usize].memory_left = left;
            }
            Action::WakeForMemory(pool) => {
                assert!(
                    self.core.pool_dedicated(pool) > 0,
                    "there is nobody to wake"
                );
                self.woken_for_memory += 1;
            }
            Action::FreeSlot(slot) => {
                let openings = self.openings.iter();
                let mut lost = openings.filter(|it| it.slot == slot && it.at_us == u64::MAX);
                self.given_up += u64::from(lost.next().is_some());
                self.openings.retain(|opening| opening.slot != slot);
                self.processes[slot as usize] = None;
                self.world.backends[slot as usize] = FREE;
            }
            Action::Offer { ticket, slots } => {
                self.core.check_offer(&slots);
                for slot in &slots {
                    self.world.backends[*slot as usize].retire = ticket;
                }
                self.world.ticket = ticket;
                for slot in slots {
                    if self.world.backend(slot).is_free() {
                        self.send(slot, ToBackend::Retire);
                    }
                }
            }
            Action::TakeTicketBack(ticket) => {
                let is_ours = self.world.ticket == ticket;
                if is_ours {
                    self.world.ticket = 0;
                }
                self.handle(Event::TicketBack(is_ours));
            }
            Action::Measure(slot) => {
                let process = self.processes[slot as usize].as_ref();
                let (held, was_surplus) = (self.core.held_count(), self.core.is_surplus());
                let event = Event::Measured {
                    slot,
                    transactions: self.world.backends[slot as usize].served,
                    cpu_us: process.map_or(0, |process| process.cpu_us(self.world.now_us)),
                    is_unread: process.is_some_and(|process| process.is_unread(&self.world)),
                };
                self.handle(event);
                self.core.check_held(held, self.waited_us, was_surplus);
            }
            Action::ClearTicket { slot, ticket } => {
                let retire = &mut self.world.backends[slot as usize].retire;
                if *retire == ticket {
                    *retire = 0;
                }
            }
            Action::AskLimits { role, database } => self.asked_limits.push((role, database)),
            Action::PoolDropped(pool) => {
                assert!(self.world.pools[pool as usize].queue.is_empty());
                self.full.retain(|other| *other != pool);
                self.world.pools[pool as usize].queued = 0;
            }
            Action::TenantDropped(tenant) => {
                self.world.tenants[tenant as usize] = TenantWords::default();
                self.served.is_counted(tenant, false);
            }
            Action::Exempt { .. }
            | Action::TellPauseOver(_)
            | Action::TellWhoIsIn { .. }
            | Action::TellPool(_)
            | Action::CheckQueue(_)
            | Action::TellFailure(_)
            | Action::ForgetAllGreetings => {}
            Action::Then(then) => self.handle(Event::Then(then)),
        }
    }

    /// Simulates ETOOMANYREFS: by a counter, so that seeds without it stay the same.
    fn cannot_send(&mut self) -> bool {
        self.sent += 1;
        self.is_short && self.sent % 13 < 2
    }

    fn arm(&mut self, id: SessionId, armed: Armed) {
        if let Some(client) = self.world.client(id) {
            client.armed = armed;
        }
    }

    fn look(&mut self, id: SessionId) -> Says {
        match self.world.client(id) {
            Some(client) if client.asked > 0 => Says::Something,
            Some(client) if client.has_gone => Says::Leaves,
            Some(_) => Says::Nothing,
            None => Says::Broken,
        }
    }

    fn skip_on(&mut self, id: SessionId) {
        let Some(client) = self.world.client(id) else {
            return self.handle(Event::Ended(id, Ending::Cut));
        };
        if client.has_gone {
            return self.handle(Event::Ended(id, Ending::Cut));
        }
        if client.asked > 0 {
            client.asked -= 1;
            client.answered += 1;
        }
        self.skipping.retain(|other| *other != id);
        self.handle(Event::Skipped(id));
    }

    /// Lets one backend go on, sometimes until it has nothing to do.
    fn step_one(&mut self, slot: u32) {
        let steps = match self.random.below(4) {
            0 => 12,
            1 => self.random.below(6),
            _ => 0,
        };
        for _ in 0..steps {
            if let Some(process) = self.processes[slot as usize].as_mut() {
                process.step(&mut self.world, &mut self.random);
            }
        }
    }

    fn send(&mut self, slot: u32, message: ToBackend) {
        if let Some(process) = self.processes[slot as usize].as_mut() {
            if !process.has_ended && !process.is_alone() {
                process.inbox.push_back(message);
            }
        }
    }
}
