//! The end of a seed's run: all obstacles are removed, all sessions are served, nothing happens any
//! more, and when the dispatcher stops nothing is left.

use super::scenario::{Scenario, SWEEP_US};
use crate::core::{index_of, Event, SessionId, Word};

/// After all obstacles are removed, this time without an answer counts as for ever: four times the
/// wait that is urgent where there is no limit.
const NOTHING_HAPPENS_US: u64 = 120_000_000;

impl Scenario {
    /// No new events occur and all obstacles are removed: then all sessions are served.
    pub(super) fn come_to_rest(&mut self) {
        self.is_troubled = false;
        self.may_start = true;
        self.shell.start_us = 4_000;
        self.shell.are_some_lost = false;
        let now_us = self.shell.world.now_us;
        for opening in &mut self.shell.openings {
            opening.at_us = opening.at_us.min(now_us + 4_000);
        }
        self.end_pauses();
        self.shell.unanswered.clear();
        for number in std::mem::take(&mut self.holds) {
            self.shell.tell(Event::HoldEnded(number));
        }
        self.limits.session_wait_timeout_us = 0;
        self.limits.sharing_threshold = 0;
        self.limits.backend_lifetime_us = 0;
        let limits = self.limits;
        self.shell.core.set_limits(limits);
        self.shell.core.ask_limits_again();
        self.shell.carry_out();
        for client in self.shell.world.clients.iter_mut().flatten() {
            client.taints = client.taints.min(1);
            client.transaction_us = client.transaction_us.min(2_000);
        }
        let sessions = self.shell.core.sessions().live() as u64;
        let (mut before, mut since_us) = (self.progress(), self.shell.world.now_us);
        for _ in 0..4_000 + 400 * sessions {
            if self.is_at_rest() {
                break;
            }
            let now_us = self.shell.world.now_us;
            let progress = self.progress();
            if progress != before {
                (before, since_us) = (progress, now_us);
            }
            assert!(
                now_us < since_us + NOTHING_HAPPENS_US,
                "nobody is served any more: {}",
                self.unserved_sessions()
            );
            self.unlock_if_hopeless();
            // The client that has the lock asks for something, after all.
            let lock = self.shell.world.lock;
            if let Some(client) = lock.and_then(|id| self.shell.world.client(id)) {
                client.asked = client.asked.max(1);
            }
            // A dedicated session does not stay dedicated for ever.
            for client in self.shell.world.clients.iter_mut().flatten() {
                client.taints = 0;
            }
            let slots = self.shell.processes.len();
            self.shell.step_backends(8 * slots);
            self.openings_go_on();
            self.answer_question();
            let mut pause_us = self.random().between(100, 20_000);
            if self.at_once > 1 && self.shell.core.has_more() {
                // The event loop does not sleep; a sweep of very many sessions would never end.
                pause_us = 200;
            }
            self.time_passes(pause_us);
            self.round();
        }
        assert!(
            self.is_at_rest(),
            "somebody is not served: {}",
            self.unserved_sessions()
        );
        self.rest();
        self.summary.transactions += (self.shell.world.sessions.iter())
            .map(|words| words.transactions)
            .sum::<u64>();
    }

    /// Figures that change as long as sessions are served.
    fn progress(&self) -> (u64, usize) {
        let words = self.shell.world.sessions.iter();
        let transactions = words.map(|words| words.transactions).sum();
        (transactions, self.shell.core.sessions().live())
    }

    /// Idle backends leave, down to those that are kept; then nothing happens.
    fn rest(&mut self) {
        let mut opened = 0;
        let idle_us = self.limits.backend_idle_timeout_us as u64;
        // Surplus backends leave one after the other, some four in a second.
        let backends = self.shell.core.places(0).total as u64;
        let rests_s = if self.at_once > 1 {
            64.max(backends / 3)
        } else {
            16
        };
        for second in 0..rests_s {
            if second == 6 {
                // A session that ends later by idle_session_timeout leaves its place to a pool that
                // lacks one.
                for words in &mut self.shell.world.sessions {
                    words.idle_timeout_us = 0;
                }
            }
            if second == rests_s - 4 {
                opened = self.shell.opened;
            }
            self.time_passes(SWEEP_US.max(idle_us));
            for _ in 0..4 {
                let slots = self.shell.processes.len();
                self.shell.step_backends(40 * slots);
                self.time_passes(5_000);
                self.openings_go_on();
                self.round();
                // The event loop does not sleep while it has more to do.
                while self.at_once > 1 && self.shell.core.has_more() {
                    self.time_passes(100);
                    self.round();
                }
            }
        }
        self.shell.check_rest(opened);
    }

    /// Releases the lock if more backends wait for it than could be replaced, or if limits forbid
    /// to serve its holder.
    fn unlock_if_hopeless(&mut self) {
        let wanting = self.shell.world.clients.iter().flatten();
        let blocked = wanting.filter(|client| client.wants_lock).count()
            + (self.shell.processes.iter().flatten())
                .filter(|process| process.is_blocked())
                .count();
        let most = self.may_be_blocked();
        let core = &self.shell.core;
        // A role that has its share gets no more, whichever of its sessions wait for the lock.
        let has_its_share = (self.shell.world.lock)
            .and_then(|id| core.sessions().get(id))
            .is_some_and(|session| core.leaves_it_to_others(session.tenant()));
        if blocked + core.dedicated_count() > most || core.has_own_limits() || has_its_share {
            self.shell.world.lock = None;
        }
    }

    fn is_at_rest(&self) -> bool {
        let world = &self.shell.world;
        let clients = world.clients.iter().flatten();
        let mut unserved =
            clients.filter(|client| client.asked > 0 || !client.greeted || client.has_gone);
        let processes = self.shell.processes.iter().flatten();
        let mut busy =
            processes.filter(|process| !process.rests(world) || !process.outbox.is_empty());
        unserved.next().is_none()
            && busy.next().is_none()
            && self.shell.skipping.is_empty()
            && world
                .pools
                .iter()
                .all(|pool| pool.queue.is_empty() && pool.queued == 0)
            && self.shell.full.is_empty()
            && !self.shell.core.has_full_queue()
            && !self.shell.core.has_more()
            && self.shell.core.longest_wait_us() == 0
    }

    /// In the midst of everything, another dispatcher is to follow: sessions that no backend has
    /// end. (A backend may give back another meanwhile, whose client sees the connection close.)
    pub(super) fn hand_back_midway(&mut self, steps: usize) {
        self.live_for(steps);
        let (core, world) = (&self.shell.core, &self.shell.world);
        let all = core.sessions().ids();
        let ours: Vec<SessionId> = all.filter(|id| core.is_ours(*id, world)).collect();
        self.shell.tell(Event::HandBack);
        let (core, world) = (&self.shell.core, &self.shell.world);
        for id in ours {
            assert!(core.sessions().get(id).is_none(), "session {id} is left");
        }
        assert!(world.pools.iter().all(|pool| pool.queue.is_empty()));
    }

    /// Some time of a shutdown. Dedicated sessions stay; the server ends them.
    fn stopping_goes_on(&mut self, turn: usize) {
        for process in self.shell.processes.iter_mut().flatten() {
            if turn > 1_000 && !process.has_ended && process.may_end() {
                process.die(true);
            }
        }
        let slots = self.shell.processes.len();
        self.shell.step_backends(8 * slots);
        self.openings_go_on();
        self.time_passes(5_000);
        self.round();
    }

    /// In the midst of everything, the server stops, and sessions are held: none ends that no backend
    /// has, and none gets a backend.
    pub(super) fn hold_midway(&mut self, steps: usize) {
        self.live_for(steps);
        self.shell.tell(Event::Stop { holds: true });
        let (core, world) = (&self.shell.core, &self.shell.world);
        // Its own timeout may end a session meanwhile.
        let is_in = |id: &SessionId| {
            let index = index_of(*id) as usize;
            let client = world.clients[index].as_ref();
            client.is_some_and(|client| client.greeted && !client.has_gone)
                && world.sessions[index].idle_timeout_us == 0
        };
        let all = core.sessions().ids();
        let ours = all.filter(|id| is_in(id) && core.is_ours(*id, world));
        let ours: Vec<SessionId> = ours.collect();
        for turn in 0..3_000 {
            self.ask();
            self.stopping_goes_on(turn);
            if self.shell.core.backend_count() == 0 {
                break;
            }
        }
        // Those that the last backends had are looked for.
        for _ in 0..200 {
            self.time_passes(SWEEP_US);
            self.shell.tell(Event::Tick);
            self.round();
        }
        let (core, world) = (&self.shell.core, &self.shell.world);
        assert_eq!(core.backend_count(), 0);
        for id in &ours {
            assert!(core.sessions().get(*id).is_some(), "session {id} has ended");
        }
        for id in core.sessions().ids() {
            assert!(
                core.is_ours(id, world),
                "session {id} is not held: {:?}",
                core.locate(id, world)
            );
        }
        self.shell.tell(Event::HandBack);
        assert_eq!(self.shell.core.sessions().live(), 0);
    }

    /// Everything ends, and nothing is left.
    pub(super) fn stop(&mut self) {
        self.shell.tell(Event::Stop { holds: false });
        for turn in 0..3_000 {
            self.stopping_goes_on(turn);
            if self.shell.core.backend_count() == 0 && !self.shell.core.is_ending() {
                break;
            }
        }
        for turn in 0..200 {
            self.time_passes(SWEEP_US);
            self.round();
            if turn > 1 && !self.shell.core.is_ending() {
                break;
            }
        }
        self.shell.tell(Event::Tick);
        assert!(!self.shell.core.is_ending(), "it never comes to an end");
        assert!(
            self.shell.core.sessions().live() == 0,
            "sessions are left: {} {:?}",
            self.unserved_sessions(),
            self.shell
                .core
                .sessions()
                .ids()
                .map(|id| { self.shell.world.sessions[id as u32 as usize].clone() })
                .collect::<Vec<_>>(),
        );
        self.shell.core.check_is_empty();
        let free = Word::Free;
        assert!(self
            .shell
            .world
            .backends
            .iter()
            .all(|words| words.word == free));
        assert!(self.shell.world.clients.iter().all(Option::is_none));
        assert!(self.shell.skipping.is_empty());
    }
}
