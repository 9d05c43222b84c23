//! How many sessions of a role in a database are served at a time under pg_baton.pool_max_backends:
//! counted beside the core, by what processes do.
//!
//! Sessions handed out before their tenant was counted are not counted, nor are dedicated sessions.

use super::shell::Shell;
use super::world::World;
use crate::core::SessionId;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Served {
    /// Orders the following events.
    step: u64,
    /// Since when each tenant is counted.
    counted_since: BTreeMap<u32, u64>,
    handed_out: BTreeMap<SessionId, u64>,
    /// The most sessions that were served within a limit.
    pub most_within_limit: usize,
}

impl Served {
    pub fn is_counted(&mut self, tenant: u32, is_so: bool) {
        self.step += 1;
        match is_so {
            true => self.counted_since.insert(tenant, self.step),
            false => self.counted_since.remove(&tenant),
        };
    }

    pub fn is_handed_out(&mut self, id: SessionId) {
        self.step += 1;
        self.handed_out.insert(id, self.step);
    }

    pub fn ends(&mut self, id: SessionId) {
        self.handed_out.remove(&id);
    }

    fn counts(&self, id: SessionId, world: &World) -> bool {
        let client = world.clients[id as u32 as usize].as_ref();
        let since = client.and_then(|client| self.counted_since.get(&client.tenant));
        since.is_some() && since < self.handed_out.get(&id)
    }
}

impl Shell {
    /// A session is handed out: its group stays within its limit.
    pub fn check_limit(&mut self, id: SessionId) {
        let of = |id: SessionId| {
            let client = self.world.clients[id as u32 as usize].as_ref();
            client.filter(|client| client.id == id).map(|it| it.group)
        };
        let Some(group) = of(id) else {
            return;
        };
        let limits = self.core.groups.get(group).and_then(|it| it.limits());
        // One, as long as the limit is not known.
        let Some(most) = limits.map_or(Some(1), |limits| limits.max_backends) else {
            return;
        };
        let queued = self.world.pools.iter().flat_map(|pool| &pool.queue);
        let processes = self.processes.iter().flatten();
        let served = processes.flat_map(|process| process.serves());
        let all: Vec<SessionId> = queued.copied().chain(served).collect();
        let counted = all.iter().filter(|id| of(**id) == Some(group));
        let counted: Vec<&SessionId> = counted
            .filter(|id| self.served.counts(**id, &self.world))
            .collect();
        assert!(
            counted.len() <= most,
            "{counted:x?} of {group:?} are served, and may be {most}"
        );
        self.served.most_within_limit = self.served.most_within_limit.max(counted.len());
    }
}
