//! Clients identify themselves and log in; and superusers set how many may.

use super::coming_in::{CONTEXT_BYTES, LOOK_AGAIN_US};
use super::scenario::Scenario;
use super::settings::mark_of;
use crate::core::{NoSession, SessionId, TenantKey};

impl Scenario {
    /// Sometimes a superuser sets how many sessions there may be, at any level at which it can be
    /// set, or the configuration file sets from when on new sessions are native.
    pub(super) fn set_for_sessions(&mut self) {
        let Some(coming_in) = &mut self.coming_in else {
            return;
        };
        let random = &mut coming_in.random;
        if random.once_in(100) {
            let threshold = random.below(2) * random.between(1, 30) as usize;
            coming_in.threshold = threshold;
            // The next client is answered by the present state.
            coming_in.waited.clear();
            self.time_passes(LOOK_AGAIN_US);
            self.set_clock();
            self.limits.native_when_waiting = threshold;
            let limits = self.limits;
            self.shell.core.set_limits(limits);
            return self.shell.carry_out();
        }
        if !random.once_in(40) {
            return;
        }
        let value = random.below(16) as i32 - 1;
        let role = random.once_in(2).then(|| random.below(5) as u32);
        let database = random.once_in(2).then(|| random.below(3) as u32);
        if role.is_none() && database.is_none() && random.once_in(2) {
            coming_in.by_file = value;
            return self.shell.core.ask_limits_again();
        }
        match random.below(3) {
            // RESET
            0 => coming_in.set.remove(&(role, database)),
            _ => coming_in.set.insert((role, database), value),
        };
        let mark = match (role, database) {
            (None, None) => 0,
            _ => mark_of(database.unwrap_or(0), role.unwrap_or(0)),
        };
        self.shell.settings_change(mark);
    }

    /// A client identifies itself.
    pub(super) fn is_native(&mut self, key: &TenantKey) -> bool {
        let Some(coming_in) = &mut self.coming_in else {
            return false;
        };
        let shell = &mut self.shell;
        let is_native = shell.core.too_many_wait(&shell.world);
        coming_in.check_native(is_native, shell);
        self.summary.natives += u64::from(is_native);
        let group = (key.role_oid, key.database_oid);
        let has_no_memory = shell.core.has_no_memory_for(group, CONTEXT_BYTES);
        let known = coming_in.known.get(&group);
        let memory = known.and_then(|known| known.limits.memory);
        let clients = shell.world.clients.iter().flatten();
        let stored = clients.filter(|client| client.group == group);
        let stored: i64 = stored.map(|client| client.context_bytes).sum();
        let expected = memory.is_some_and(|most| most - stored < CONTEXT_BYTES as i64);
        assert_eq!(has_no_memory, expected, "{stored} bytes of {memory:?}");
        is_native
    }

    /// A client has logged in, and becomes a session if permitted.
    pub(super) fn begin_session(&mut self, key: TenantKey) -> Option<SessionId> {
        if let Some(coming_in) = &self.coming_in {
            let expected = coming_in.expected_limit(&key, &self.shell);
            let may = self.shell.core.may_come_in(&key, None);
            assert_eq!(may, expected, "one comes of {key:?}");
            self.summary.beyond_limit += u64::from(may.is_err());
            if let Some(tenant) = self.shell.core.find_tenant(&key).filter(|_| may.is_err()) {
                // Nor does a client come in that has not asked before.
                let shell = &mut self.shell;
                let begun = shell.core.begin_session(tenant, &shell.world);
                assert_eq!(begun.map(|_| ()), expected, "one comes of {key:?}");
            }
            may.ok()?;
        }
        let core = &mut self.shell.core;
        let found = core.find_tenant(&key);
        let tenant = found.or_else(|| core.create_tenant(key.clone()))?;
        self.shell.carry_out();
        let shell = &mut self.shell;
        let is_full = !shell.world.sessions.iter().any(|slot| slot.is_free);
        let begun = shell.core.begin_session(tenant, &shell.world);
        if let Some(coming_in) = &mut self.coming_in {
            // The limit was checked before a tenant was created.
            let expected = if is_full {
                Err(NoSession::Full)
            } else {
                Ok(())
            };
            assert_eq!(begun.map(|_| ()), expected, "one comes of {key:?}");
            self.summary.without_slot += u64::from(is_full);
            coming_in.forget(shell);
        }
        begun.ok()
    }
}
