//! The dispatcher dies in the midst of everything, and the next one adopts what it has left, as
//! shell/scheduler/adopt.rs does.

use super::pauses::Pauses;
use super::scenario::Scenario;
use super::served::Served;
use super::settings::mark_of;
use super::shell::Shell;
use super::turns::Turns;
use super::world::{Armed, PoolWords, TenantWords, FREE, NO_SESSION};
use crate::core::sessions::Whereabouts;
use crate::core::{index_of, Core, Ending, Event, Need, SessionId, Shown, TenantKey};
use std::collections::BTreeMap;

/// How many sessions were adopted.
#[derive(Debug, Default)]
pub(super) struct Adopted {
    free: usize,
    on_backends: usize,
    given_back: usize,
    ungreeted: usize,
    /// They ended with their backends.
    lost: usize,
}

impl Adopted {
    pub(super) fn add(&mut self, other: &Adopted) {
        self.free += other.free;
        self.on_backends += other.on_backends;
        self.given_back += other.given_back;
        self.ungreeted += other.ungreeted;
        self.lost += other.lost;
    }

    pub(super) fn all_have_happened(&self) -> bool {
        self.free > 0 && self.on_backends > 0 && self.given_back > 0 && self.ungreeted > 0
    }
}

/// A session that the dead dispatcher has left.
struct Left {
    id: SessionId,
    key: TenantKey,
    /// The backend that has it, or has to tell of it.
    holder: Option<(u32, Need)>,
}

impl Scenario {
    pub(super) fn die_midway(&mut self, steps: usize) -> Adopted {
        // It follows what one dispatcher has been told of limits.
        self.coming_in = None;
        let mut adopted = Adopted::default();
        for _ in 0..3 {
            self.live_for(steps);
            adopted.add(&self.dispatcher_dies());
        }
        self.live_for(steps);
        self.come_to_rest();
        self.stop();
        adopted
    }

    fn dispatcher_dies(&mut self) -> Adopted {
        let mut adopted = Adopted::default();
        let shell = &mut self.shell;
        // The queues close with the dispatcher.
        let pools = &mut shell.world.pools;
        pools.iter_mut().for_each(|pool| pool.queue.clear());
        let mut alive: BTreeMap<SessionId, u32> = BTreeMap::new();
        for slot in 0..shell.processes.len() {
            let Some(process) = shell.processes[slot].as_mut() else {
                shell.world.backends[slot] = FREE;
                continue;
            };
            if process.loses_dispatcher(&mut shell.world, &mut shell.random) {
                alive.extend(process.has().into_iter().map(|id| (id, slot as u32)));
            } else {
                shell.processes[slot] = None;
                shell.world.backends[slot] = FREE;
            }
        }
        let mut left = Vec::new();
        for index in 0..shell.world.clients.len() {
            let Some(client) = shell.world.clients[index].as_ref() else {
                continue;
            };
            let (id, is_greeted) = (client.id, client.greeted);
            let owner = shell.world.sessions[index].owner;
            let key = shell.core.tenant_key(client.tenant);
            let key = key.map(|key| TenantKey::clone(key));
            let holder = alive.get(&id).copied();
            let Some(key) =
                key.filter(|_| owner == 0 || holder.map(|slot| slot + 1) == Some(owner))
            else {
                // Its backend has ended, too.
                adopted.lost += 1;
                shell.world.clients[index] = None;
                shell.world.sessions[index] = NO_SESSION;
                continue;
            };
            let need = |slot: u32| {
                let process = shell.processes[slot as usize].as_ref();
                match !is_greeted || process.is_some_and(|it| it.has_just_greeted(id)) {
                    true => Need::Greeting,
                    false => Need::Return,
                }
            };
            match holder {
                None => adopted.free += 1,
                Some(_) if owner == 0 => adopted.given_back += 1,
                Some(_) => adopted.on_backends += 1,
            }
            adopted.ungreeted += usize::from(!is_greeted);
            let holder = holder.map(|slot| (slot, need(slot)));
            left.push(Left { id, key, holder });
        }
        self.next_dispatcher();
        self.shell.note(|| "the next dispatcher".to_string());
        left.sort_by_key(|it| it.holder.is_some());
        left.iter().for_each(|one| self.adopt(one));
        adopted
    }

    /// It knows nothing yet.
    fn next_dispatcher(&mut self) {
        let shell = &mut self.shell;
        let world = &mut shell.world;
        world.pools.fill(PoolWords::default());
        world.tenants.fill(TenantWords::default());
        world.ticket = 0;
        world.keeps = false;
        let (sessions, pools) = (world.sessions.len() as u32, world.pools.len());
        let seed = shell.random.below(1 << 30) as u32;
        let slots = world.backends.len();
        shell.core = Core::new(self.limits, sessions, pools, slots, seed, mark_of, world);
        shell.openings.clear();
        shell.asked_limits.clear();
        shell.skipping.clear();
        shell.full.clear();
        shell.unanswered.clear();
        shell.told.slots.clear();
        shell.pauses = Pauses::default();
        shell.turns = Turns::default();
        shell.served = Served::default();
        self.holds.clear();
        self.set_clock();
        self.shell.carry_out();
    }

    fn adopt(&mut self, one: &Left) {
        let shell = &mut self.shell;
        let found = shell.core.find_tenant(&one.key);
        let tenant = found.or_else(|| shell.core.create_tenant(one.key.clone()));
        shell.carry_out();
        let tenant = tenant.expect("there is room for all that there were");
        shell.note(|| format!("adopts {:x}, with {:?}", one.id, one.holder));
        assert!(shell.core.adopt_session(tenant, one.id, one.holder));
        shell.carry_out();
        let pool = shell.core.pool_of_tenant(tenant).expect("it has one");
        if let Some(process) = one
            .holder
            .and_then(|it| shell.processes[it.0 as usize].as_mut())
        {
            process.pool = pool;
        }
        let now_us = shell.world.now_us as i64;
        let index = index_of(one.id) as usize;
        let client = shell.world.clients[index].as_mut().expect("it is there");
        client.tenant = tenant;
        client.armed = match one.holder {
            Some(_) => Armed::Not,
            None if client.greeted => Armed::Fully,
            None => Armed::ForEnd,
        };
        let (is_greeted, grown) = (client.greeted, client.context_bytes);
        if one.holder.is_none() {
            let words = &mut shell.world.sessions[index];
            words.last_backend = 0;
            words.cancelled = false;
            if words.shown != Shown::Idle && is_greeted {
                (words.shown, words.since_us) = (Shown::Idle, now_us);
            }
        }
        shell.tell(Event::Stored { id: one.id, grown });
        if one.holder.is_none() && !is_greeted {
            shell.tell(Event::ToGreet(one.id));
        }
    }

    /// Some backends of the dead dispatcher connect to this one (hello_again, scheduler/attach.rs).
    pub(super) fn adopted_come_again(&mut self) {
        let shell = &mut self.shell;
        for slot in 0..shell.processes.len() {
            let Some(process) = shell.processes[slot].as_mut().filter(|it| it.is_alone()) else {
                continue;
            };
            if shell.random.once_in(2) || !process.comes_again() {
                continue;
            }
            let has = process.has();
            shell.note(|| format!("{slot} comes again with {has:x?}"));
            shell.end_all_but(slot as u32, &has);
        }
    }
}

impl Shell {
    /// Ends the sessions with which a backend was adopted that has not connected yet, but for these.
    pub(super) fn end_all_but(&mut self, slot: u32, has: &[SessionId]) {
        let sessions = self.core.sessions();
        let ends = |id: &SessionId| {
            let place = sessions.get(*id).map(|session| session.whereabouts());
            matches!(place, Some(Whereabouts::Sent(to, _)) if to == slot) && !has.contains(id)
        };
        let ended: Vec<SessionId> = sessions.ids().filter(ends).collect();
        for id in ended {
            self.tell(Event::Ended(id, Ending::Cut));
        }
    }
}
