//! For the log of a failed seed: which sessions are not served, and what each backend has in hand.

use super::scenario::Scenario;
use crate::core::sessions::Whereabouts;
use crate::core::{Core, Words};

impl Scenario {
    pub(super) fn unserved_sessions(&self) -> String {
        let mut text = String::new();
        let mut listed = 0;
        let place = |id| {
            self.shell
                .core
                .sessions()
                .get(id)
                .map(|session| session.whereabouts())
        };
        let mut ids: Vec<_> = self.shell.core.sessions().ids().collect();
        ids.sort_by_key(|id| {
            let client = self.shell.world.clients[*id as u32 as usize].as_ref();
            let asks = client.is_some_and(|it| it.asked > 0 || !it.greeted || it.has_gone);
            (!asks, !matches!(place(*id), Some(Whereabouts::Waiting(_))))
        });
        for id in ids {
            let Some(session) = self.shell.core.sessions().get(id) else {
                continue;
            };
            let index = id as u32 as usize;
            let Some(client) = self.shell.world.clients[index].as_ref() else {
                continue;
            };
            let is_unserved = client.asked > 0
                || !client.greeted
                || client.has_gone
                || !matches!(session.whereabouts(), Whereabouts::Idle);
            if is_unserved && listed < 5 {
                listed += 1;
                text += &format!(
                    "\n{id:x} of pool {} is {:?}: asked {} greeted {} gone {} armed {:?} owner {} shown {:?}",
                    session.pool(),
                    session.whereabouts(),
                    client.asked,
                    client.greeted,
                    client.has_gone,
                    client.armed,
                    self.shell.world.sessions[index].owner,
                    self.shell.world.sessions[index].shown,
                );
            }
        }
        for (slot, process) in self.shell.processes.iter().enumerate() {
            let words = &self.shell.world.backends[slot];
            if let Some(process) = process {
                text += &format!(
                    "\nbackend {slot} of pool {}: {words:?} {process:?}",
                    process.pool
                );
            }
        }
        for (number, pool) in self.shell.world.pools.iter().enumerate() {
            if pool.queued != 0 || !pool.queue.is_empty() {
                text += &format!("\npool {number}: {pool:?}");
            }
        }
        text += &self.shell.core.why_none_is_next(&self.shell.world);
        let clients = self.shell.world.clients.iter().flatten();
        let unserved =
            clients.filter(|client| client.asked > 0 || !client.greeted || client.has_gone);
        let processes = self.shell.processes.iter().flatten();
        let busy = processes.filter(|it| !it.rests(&self.shell.world) || !it.outbox.is_empty());
        text += &format!("\n{} unserved, {} busy", unserved.count(), busy.count());
        text += &format!(
            "\nfull {:?}, a queue is full {}, there is more: {}; skipping {}, waits {} us",
            self.shell.full,
            self.shell.core.has_full_queue(),
            self.shell.core.what_is_more(),
            self.shell.skipping.len(),
            self.shell.core.longest_wait_us(),
        );
        text + &format!("\n{:?}", self.limits)
    }
}

impl Core {
    /// For each pool with a waiting session: whose turn it is, and what may prevent it.
    fn why_none_is_next(&self, words: &impl Words) -> String {
        let mut text = String::new();
        for number in self.pools.existing().iter() {
            if self.sessions.waiting(number) == 0 {
                continue;
            }
            let next = self.next_tenant(number, words);
            let (owed, served) = self.pool(number).map_or((0, 0), |pool| {
                (pool.together.owed(), pool.together.served())
            });
            text += &format!(
                "\npool {number}: {} wait, {} servable; next {next:?}; {} of {} kept for {owed} owed, {served} served; \
                 keeps one free {}; {:?}",
                self.sessions.waiting(number),
                self.sessions.servable(number),
                self.kept(number),
                self.serving_backends(number),
                self.keeps_one_free(number),
                self.backends.lives(number),
            );
            for tenant in self.sessions.tenants_in_turn(number) {
                text += &format!(
                    "\n  tenant {tenant} in turn: has many {}, leaves it {}",
                    self.has_many(tenant, number),
                    self.leaves_it_to_others(tenant),
                );
            }
        }
        text + &format!(
            "\n{:?}, of no role {}",
            self.places(0),
            self.backends.of_no_role()
        )
    }
}
