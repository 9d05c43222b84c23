//! The events of a dispatcher's life: clients, deaths, limits, clocks.

use super::coming_in::SUPERUSER;
use super::random::Random;
use super::scenario::Scenario;
use super::settings::mark_of;
use super::world::{Armed, Client, Idles};
use crate::core::{Event, SessionId, Shown, TenantKey};
use crate::protocol::opening::Failure;

impl Scenario {
    pub(super) fn something_happens(&mut self) {
        self.set_for_sessions();
        let at_once = self.at_once;
        for _ in 0..self.random().below(6) * at_once {
            match self.random().below(100) {
                0..=24 => self.log_in(),
                25..=79 => self.ask(),
                80..=83 => self.hang_up(),
                84 => self.lock(),
                85..=88 => self.cancel(),
                _ if !self.is_troubled => {}
                89..=91 => self.backend_dies(),
                // As often as elsewhere: it concerns everything that exists.
                _ if at_once > 1 && !self.random().once_in(at_once) => {}
                92 => self.crash(),
                93..=94 => self.change_limits(),
                95 => self.hold(),
                96 => self.settings_change(),
                97 => self.may_start = !self.may_start || self.random().once_in(2),
                _ => {
                    let by = self.random().between(0, 20_000_000) as i64 - 10_000_000;
                    self.shell.world.timestamp += by;
                }
            }
        }
        let pause_us = match self.random().below(10) {
            0..=5 => self.random().between(1, 500),
            6..=8 => self.random().between(500, 20_000),
            _ => self.random().between(20_000, 1_500_000),
        };
        self.time_passes(pause_us);
        if self.shell.are_some_lost && self.summary.steps % 200 == 199 {
            // The machine was asleep.
            self.time_passes(61_000_000);
        }
    }

    pub(super) fn time_passes(&mut self, pause_us: u64) {
        self.shell.world.now_us += pause_us;
        self.shell.world.timestamp += pause_us as i64;
    }

    /// Up to five tenants share a pool. In some seeds only those of roles with even numbers do, and
    /// each of the others has a pool of its own.
    fn key(&self, number: u32) -> TenantKey {
        let role = number % 5;
        TenantKey {
            user: format!("user {role}").into_bytes(),
            database: format!("database {}", number % 3).into_bytes(),
            role_oid: role,
            database_oid: number % 3,
            superuser: self.coming_in.is_some() && role == SUPERUSER,
            options: vec![(b"number".to_vec(), (number / 15).to_string().into_bytes())],
            is_apart: self.are_some_apart && role % 2 == 1,
        }
    }

    fn log_in(&mut self) {
        if self.shell.core.sessions().live() >= self.most_sessions && self.coming_in.is_none() {
            return;
        }
        let number = self.pools;
        let number = self.random().below(number as usize) as u32;
        let key = self.key(number);
        let group = (key.role_oid, key.database_oid);
        if self.is_native(&key) {
            return;
        }
        let Some(id) = self.begin_session(key) else {
            return;
        };
        self.summary.sessions += 1;
        let session = self.shell.core.sessions().get(id).expect("it is there");
        let (tenant, pool) = (session.tenant(), session.pool());
        let is_held = self.shell.core.is_held(pool);
        let greeted = self.random().once_in(2) && !is_held;
        let is_long = self.random().once_in(40);
        let transaction_us = self
            .random()
            .between(5, if is_long { 2_000_000 } else { 2_000 });
        // Not drawn at random, and not in seeds that were kept before this existed.
        let (idles, transaction_us) = match id as u32 % 4 {
            0 if self.limits.extra_idle_timeout_us > 0 => (Idles::InTransaction, 3_000_000),
            1 if self.limits.extra_idle_timeout_us > 0 => (Idles::Unread, 3_000_000),
            _ => (Idles::Not, transaction_us),
        };
        let idle_timeout_us = match self.random().below(20) {
            0 => self.random().between(1_000_000, 4_000_000) as i64,
            _ => 0,
        };
        let words = self.shell.world.session(id);
        words.is_free = false;
        words.idle_timeout_us = idle_timeout_us;
        let index = id as u32 as usize;
        self.shell.world.clients[index] = Some(Client {
            id,
            group,
            tenant,
            needs: self.shell.world.settings.needed_by(group),
            context_bytes: 0,
            asked: 0,
            answered: 0,
            has_gone: false,
            armed: if greeted { Armed::Fully } else { Armed::ForEnd },
            greeted,
            closed: false,
            asks_since_us: 0,
            taints: 0,
            transaction_us,
            wants_lock: false,
            idles,
        });
        if !greeted {
            self.shell.tell(Event::ToGreet(id));
        } else {
            let now = self.shell.world.now_us as i64;
            let words = self.shell.world.session(id);
            words.shown = crate::core::Shown::Idle;
            words.since_us = now;
        }
    }

    fn some_client(&mut self) -> Option<&mut Client> {
        let count = self.shell.world.clients.len();
        let first = self.random().below(count);
        let mut order = (first..count).chain(0..first);
        let index = order.find(|index| self.shell.world.clients[*index].is_some())?;
        self.shell.world.clients[index].as_mut()
    }

    pub(super) fn ask(&mut self) {
        let now_us = self.shell.world.now_us;
        let many = if self.random().once_in(20) { 40 } else { 1 };
        for _ in 0..many {
            if let Some(client) = self.some_client() {
                if client.greeted && client.asked == 0 && !client.has_gone {
                    client.asked = 1;
                    client.asks_since_us = now_us;
                }
            }
        }
    }

    /// Silent clients ask for the lock that one of them has.
    fn lock(&mut self) {
        let now_us = self.shell.world.now_us;
        let most = self.may_be_blocked();
        if self.shell.world.is_locked() || most == 0 {
            return;
        }
        let Some(holder) = self.some_silent() else {
            return;
        };
        self.shell.world.lock = Some(holder);
        self.summary.locks += 1;
        for _ in 0..self.random().between(1, most as u64) {
            let other = self.some_silent().filter(|id| *id != holder);
            if let Some(client) = other.and_then(|id| self.shell.world.client(id)) {
                client.wants_lock = true;
                client.asked = 1;
                client.asks_since_us = now_us;
            }
        }
    }

    fn some_silent(&mut self) -> Option<SessionId> {
        let client = self.some_client()?;
        let is_silent =
            client.greeted && client.asked == 0 && !client.has_gone && !client.wants_lock;
        let id = client.id;
        let shown = self.shell.world.session(id).shown;
        (is_silent && shown == Shown::Idle).then_some(id)
    }

    /// How many backends may be held while one is left for others.
    pub(super) fn may_be_blocked(&self) -> usize {
        let extra = (self.limits.ceiling).saturating_sub(self.limits.max_backends);
        extra.min(self.limits.max_extra.unwrap_or(extra))
    }

    fn hang_up(&mut self) {
        if let Some(client) = self.some_client() {
            client.has_gone = true;
        }
    }

    fn cancel(&mut self) {
        if let Some(id) = self.some_client().map(|client| client.id) {
            self.summary.cancels += 1;
            self.shell.tell(Event::Cancel(id));
        }
    }

    fn backend_dies(&mut self) {
        let slots = self.shell.processes.len();
        let slot = self.random().below(slots);
        if self.has_liars && self.random().once_in(2) {
            return self.backend_lies(slot);
        }
        if let Some(process) = self.shell.processes[slot].as_mut() {
            if !process.has_ended && process.may_end() {
                process.die(true);
                self.summary.deaths += 1;
            }
        }
    }

    /// Usually at a moment when only the backend knows which session it has.
    fn backend_lies(&mut self, slot: usize) {
        let shell = &mut self.shell;
        let Some(process) = shell.processes[slot].as_mut() else {
            return;
        };
        for _ in 0..shell.random.below(30) {
            if !process.has_in_hand() {
                process.step(&mut shell.world, &mut shell.random);
            }
        }
        if !process.has_ended {
            self.summary.lost_in_hand += u64::from(process.has_in_hand());
            process.lies_and_ends(&mut shell.random);
        }
    }

    /// A backend dies of a bug: the server ends all.
    fn crash(&mut self) {
        if !self.random().once_in(4) {
            return;
        }
        self.summary.crashes += 1;
        self.has_crashed = true;
        for process in self.shell.processes.iter_mut().flatten() {
            if !process.has_ended {
                process.die(false);
            }
        }
        let slots: Vec<u32> = self
            .shell
            .openings
            .iter()
            .map(|opening| opening.slot)
            .collect();
        for slot in slots {
            self.fail(slot, Failure::Protocol("the server has gone".into()));
        }
    }

    pub(super) fn fail(&mut self, slot: u32, failure: Failure) {
        let shell = &mut self.shell;
        shell.note(|| format!("opening {slot} fails: {failure:?}"));
        shell.openings.retain(|opening| opening.slot != slot);
        shell.core.open_failed(slot, failure, &shell.world);
        shell.carry_out();
    }

    fn change_limits(&mut self) {
        let slots = self.shell.processes.len();
        let max_backends = self.random().between(1, slots as u64) as usize;
        self.limits.max_backends = max_backends;
        self.limits.max_dedicated = None;
        self.limits.sharing_threshold = self.random().below(2) * self.random().below(12);
        if self.random().once_in(3) {
            self.limits.force_migration = self.random().once_in(4);
            self.shell.turns.is_forced();
            self.shell.world.force_migration = self.limits.force_migration;
        }
        if self.shell.are_some_lost {
            self.change_the_others();
        }
        let limits = self.limits;
        self.shell.core.set_limits(limits);
    }

    /// Only in seeds that are not among the kept ones, which stay the same.
    fn change_the_others(&mut self) {
        let slots = self.shell.processes.len();
        self.limits.ceiling = self.random().between(1, slots as u64) as usize;
        self.limits.max_extra = self.random().once_in(3).then(|| self.random().below(5));
        self.limits.max_dedicated = self.random().once_in(2).then(|| self.random().below(5));
        self.limits.min_backends = self.random().below(3);
        let some_us = |random: &mut Random, least, most| match random.below(2) {
            0 => 0,
            _ => random.between(least, most),
        };
        let random = self.random();
        let wait_us = some_us(random, 50_000, 3_000_000);
        let idle_us = some_us(random, 10_000, 2_000_000);
        let lifetime_us = some_us(random, 1_000_000, 20_000_000);
        self.ticks_since_change = 0;
        self.limits.session_wait_timeout_us = wait_us;
        self.limits.backend_idle_timeout_us = idle_us as i64;
        self.limits.backend_lifetime_us = lifetime_us;
    }

    fn hold(&mut self) {
        let number = self.random().below(3) as u32;
        if let Some(at) = self.holds.iter().position(|held| *held == number) {
            self.holds.swap_remove(at);
            self.shell.unanswered.remove(&number);
            return self.shell.tell(Event::HoldEnded(number));
        }
        self.summary.holds += 1;
        self.holds.push(number);
        let forced = self.random().once_in(2);
        let shell = &mut self.shell;
        // Not drawn at random, so that kept seeds keep their meaning.
        let ids = shell.core.sessions().ids();
        let own = ids.filter(|_| !forced && shell.world.now_us % 4 == 0);
        let own = own.last().unwrap_or(0);
        shell.unanswered.insert(number);
        let core = &mut shell.core;
        core.hold(number, number, forced, own, &shell.world);
        shell.carry_out();
    }

    fn settings_change(&mut self) {
        let role = self.random().below(6) as u32;
        // Not drawn at random, so that kept seeds keep their meaning.
        match self.shell.world.now_us % 2 {
            _ if role < 5 => self.shell.settings_change(mark_of(0, role)),
            // Beyond the existing roles: all of them.
            0 => self.shell.settings_change(0),
            _ => self.shell.starts_change(),
        }
    }
}
