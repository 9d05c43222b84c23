//! Views are answered.
//!
//! Sessions, backends and pools are many: their rows are made and sent a slice at a
//! time, and everybody else is served in between.

use super::Dispatcher;
use crate::shell::link::connections::Then;
use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::{Row, Writer};
use crate::shell::scheduler::{Rows, View};
use crate::shell::sys::process;
use crate::shell::work;
use std::collections::HashMap;

/// Looked at for all readers in a round: rows of so many sessions take a millisecond, with
/// sending them.
pub(super) const ROWS_A_ROUND: usize = 256;

/// Who reads, and how far he has come, by control connection.
#[derive(Default)]
pub struct Readers {
    at: HashMap<u32, Reader>,
}

struct Reader {
    rows: Rows,
    /// Behind them, where sessions are asked for: the next native one.
    next_native: u32,
}

impl Readers {
    pub fn forget(&mut self, number: u32) {
        self.at.remove(&number);
    }
}

impl Dispatcher {
    /// The next slice, if the one before has been taken.
    pub(super) fn read_on(&mut self, number: u32) {
        let Some(at) = self.readers.at.get_mut(&number) else {
            return;
        };
        if self.connections.has_unsent(number) {
            return;
        }
        // Its event comes again.
        let most = self.rows_left;
        if most == 0 {
            return;
        }
        let mut rows = self.scheduler.rows(&mut at.rows, most as u32);
        if rows.is_none() && at.rows.view == View::Sessions {
            rows = (self.natives).rows(&mut at.next_native, most);
        }
        if let Some(rows) = rows {
            self.rows_left = 0;
            self.turns.work += rows.len() * work::ROW;
            return self.connections.send_all(number, rows, Then::More);
        }
        self.readers.forget(number);
        let done = vec![Writer::new(MSG_DONE, 0).finish()];
        self.connections.send_all(number, done, Then::Close);
    }

    /// The rows of one view, and the end of them; none of one that is not known.
    pub(super) fn answer_query(&mut self, number: u32, what: u32) {
        let view = match what {
            QUERY_SESSIONS => Some(View::Sessions),
            QUERY_BACKENDS => Some(View::Backends),
            QUERY_POOLS => Some(View::Pools),
            QUERY_TENANTS => Some(View::Tenants),
            QUERY_POOL_SETTINGS => Some(View::PoolSettings),
            _ => None,
        };
        if let Some(view) = view {
            let rows = Rows::of(view);
            let next_native = 0;
            let reader = Reader { rows, next_native };
            self.readers.at.insert(number, reader);
            return self.connections.send_all(number, Vec::new(), Then::More);
        }
        let mut rows = match what {
            QUERY_DISPATCHERS => vec![self.dispatcher_row()],
            _ => Vec::new(),
        };
        rows.push(Writer::new(MSG_DONE, 0).finish());
        self.connections.send_all(number, rows, Then::Close);
    }

    fn dispatcher_row(&self) -> Vec<u8> {
        let (user_us, system_us) = process::cpu_time_us();
        let counts = self.scheduler.counts();
        let (accepted, logins_failed) = self.logins.counts();
        let (used, limit) = self.scheduler.memory();
        let sessions = self.scheduler.live_sessions();
        Row::new()
            .number(std::process::id())
            .number(self.started_at)
            .number(self.threads)
            .number(sessions + self.logins.len())
            .number(sessions)
            .number(self.scheduler.waiting())
            .number(accepted)
            .number(counts.sessions)
            .number(logins_failed)
            .number(self.cancels)
            .number(counts.assigned + counts.queued)
            .number(counts.assigned)
            .number(counts.queued)
            .number(counts.backends_started)
            .number(used)
            .number(limit)
            .number(user_us)
            .number(system_us)
            .flag(Some(self.parameters.login_by_server))
            .number(self.turns.longest_us)
            .finish()
    }
}
