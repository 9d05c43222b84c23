//! May a client that has proved itself come in, and who has waited too long?

use crate::core::PoolKey;
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::launcher::Answer;
use crate::protocol::startup::Startup;
use crate::protocol::Report;
use tracing::debug;

/// Its CONNECTION LIMIT is reached.
fn too_many(what: &str, name: &[u8]) -> Report {
    let name = String::from_utf8_lossy(name);
    Report::fatal(
        b"53300",
        format!("too many connections for {what} \"{name}\""),
    )
}

impl Dispatcher {
    /// What a new client is told while nobody can be served. A launcher that
    /// has just gone is back in a second, and client and question wait for it;
    /// if it stays away the server has restarted after a crash.
    pub fn not_now(&self) -> Option<Report> {
        if self.stopping.is_some() {
            return Some(Report::fatal(
                b"57P03",
                "the database system is shutting down",
            ));
        }
        if self.link.is_away(self.now_us) {
            return Some(Report::fatal(
                b"57P03",
                "the database system is in recovery mode",
            ));
        }
        None
    }

    /// The checks of InitPostgres (postinit.c), in its order: the role and its
    /// limit, the server's limit, the database and its limit.
    pub fn admit(&self, startup: &Startup, answer: &Answer) -> Result<(), Report> {
        if let Some(report) = self.not_now() {
            return Err(report);
        }
        let count = |same: &dyn Fn(&PoolKey) -> bool| -> i64 { self.core.count_sessions(same) };
        // The launcher gives a limit of a role that may log in; a refusal
        // beside it is the database's, which comes later. Who had the name
        // before does not count.
        let with_it = || count(&|key| key.role_oid == answer.role) + 1;
        if !answer.fits(answer.role_limit, answer.role_backends, with_it) {
            return Err(too_many("role", &startup.user));
        }
        if let Some(report) = &answer.refusal {
            return Err(report.clone());
        }
        if self.core.sessions().live() >= self.parameters.max_sessions as usize {
            return Err(Report::fatal(b"53300", "sorry, too many clients already"));
        }
        let with_it = || count(&|key| key.database_oid == answer.database) + 1;
        if !answer.fits(answer.database_limit, answer.database_backends, with_it) {
            return Err(too_many("database", &startup.database));
        }
        let limit = self
            .core
            .session_limit_reached((answer.role, answer.database));
        if let Some(limit) = limit.filter(|_| !answer.superuser) {
            let report = too_many("role", &startup.user).with_detail(format!(
                "Parameter \"pg_baton.pool_max_sessions\" is {limit} for this role in this database."
            ));
            return Err(report);
        }
        Ok(())
    }

    /// Tells those who wait for a launcher that does not come.
    pub fn expire_questions(&mut self) {
        let Some(report) = self.not_now() else {
            return;
        };
        let waiting: Vec<u32> = (self.logins.iter())
            .filter(|(_, login)| login.waits_for_an_answer())
            .map(|(number, _)| number)
            .collect();
        for number in waiting {
            self.fail_login(number, &report);
        }
    }

    /// Drops the logins whose time is up, without a word, as stock does.
    pub fn expire_logins(&mut self) {
        let now_us = self.now_us;
        let late: Vec<u32> = self
            .logins
            .iter()
            .filter(|(_, login)| login.deadline_us <= now_us || self.is_late(login))
            .map(|(number, _)| number)
            .collect();
        for number in late {
            debug!("a client did not log in in time");
            self.drop_login(number);
        }
    }
}
