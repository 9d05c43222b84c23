//! May a client that has proved itself come in?

use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::launcher::Answer;
use crate::dispatcher::pools::pool::PoolKey;
use crate::protocol::startup::Startup;
use crate::protocol::Report;

/// Its CONNECTION LIMIT is reached.
fn too_many(what: &str, name: &[u8]) -> Report {
    let name = String::from_utf8_lossy(name);
    Report::fatal(
        b"53300",
        format!("too many connections for {what} \"{name}\""),
    )
}

impl Dispatcher {
    /// What a new client is told while nobody can be served.
    pub fn not_now(&self) -> Option<Report> {
        if self.stopping.is_some() {
            return Some(Report::fatal(
                b"57P03",
                "the database system is shutting down",
            ));
        }
        if !self.link.is_up() {
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
        let count = |same: &dyn Fn(&PoolKey) -> bool| -> i64 {
            let pools = self.pools.iter().flatten();
            pools
                .filter(|pool| same(&pool.key))
                .map(|pool| i64::from(pool.sessions))
                .sum()
        };
        // The launcher gives a limit of a role that may log in; a refusal
        // beside it is the database's, which comes later.
        let with_it = || count(&|key| key.user == startup.user) + 1;
        if !answer.fits(answer.role_limit, answer.role_backends, with_it) {
            return Err(too_many("role", &startup.user));
        }
        if let Some(report) = &answer.refusal {
            return Err(report.clone());
        }
        if self.sessions.live() >= self.parameters.max_sessions as usize {
            return Err(Report::fatal(b"53300", "sorry, too many clients already"));
        }
        let with_it = || count(&|key| key.database == startup.database) + 1;
        if !answer.fits(answer.database_limit, answer.database_backends, with_it) {
            return Err(too_many("database", &startup.database));
        }
        Ok(())
    }
}
