//! Whether the dispatcher answers, and whether a load balancer may send clients here.

use crate::ask::{Health, Row};

/// Columns of `pg_baton_pauses`.
const DATABASE: usize = 0;
const ROLE: usize = 1;

/// The state of the server, for checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The dispatcher, or the launcher, does not answer.
    Silent(&'static str),
    Stopping,
    Primary,
    Standby,
}

fn is_of_all(pause: &Row) -> bool {
    pause.text(DATABASE).is_none() && pause.text(ROLE).is_none()
}

/// Are all sessions paused?
fn is_paused(health: &Health) -> bool {
    health
        .pauses
        .as_ref()
        .is_some_and(|pauses| pauses.iter().any(is_of_all))
}

/// What the server is, whatever is paused.
fn state(health: &Health) -> State {
    match (&health.pauses, &health.server) {
        (None, _) => State::Silent("the dispatcher does not answer"),
        (_, None) => State::Silent("the launcher does not answer"),
        (_, Some(server)) if server.is_stopping => State::Stopping,
        (_, Some(server)) if server.in_recovery => State::Standby,
        _ => State::Primary,
    }
}

/// What a path checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The dispatcher answers.
    Alive,
    /// Clients may come, and are served.
    Ready,
    /// The server is a primary, whose sessions may be paused: a load balancer that took it for down
    /// would end the sessions that a pause keeps.
    Primary,
    Replica,
}

impl Check {
    pub fn of(path: &str) -> Option<Check> {
        match path {
            "/healthz" => Some(Check::Alive),
            "/readyz" => Some(Check::Ready),
            "/primary" => Some(Check::Primary),
            "/replica" => Some(Check::Replica),
            _ => None,
        }
    }

    /// Whether the check passes, and the answer's one line.
    pub fn passes(self, health: &Health) -> (bool, &'static str) {
        if self == Check::Alive {
            return match health.pauses {
                Some(_) => (true, "ok"),
                None => (false, "the dispatcher does not answer"),
            };
        }
        match state(health) {
            State::Silent(why) => (false, why),
            State::Stopping => (false, "stopping"),
            State::Primary | State::Standby if self == Check::Ready && is_paused(health) => {
                (false, "paused")
            }
            State::Primary => (self != Check::Replica, "primary"),
            State::Standby => (self != Check::Primary, "standby"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Server;

    #[test]
    fn each_check_passes_in_its_states() {
        let health = |in_recovery, is_stopping, pauses| Health {
            server: Some(Server {
                in_recovery,
                is_stopping,
                ..Server::default()
            }),
            pauses,
        };
        let one_database = Row::of(&["16384"]);
        let cases = [
            (Health::default(), [false; 4]),
            (health(false, false, None), [false; 4]),
            (
                health(false, false, Some(vec![])),
                [true, true, true, false],
            ),
            (health(true, false, Some(vec![])), [true, true, false, true]),
            (
                health(false, true, Some(vec![])),
                [true, false, false, false],
            ),
            (
                health(false, false, Some(vec![Row::default()])),
                [true, false, true, false],
            ),
            (
                health(false, false, Some(vec![one_database])),
                [true, true, true, false],
            ),
            (
                Health {
                    server: None,
                    pauses: Some(vec![]),
                },
                [true, false, false, false],
            ),
        ];
        for (health, expected) in cases {
            let paths = ["/healthz", "/readyz", "/primary", "/replica"];
            let found = paths.map(|path| Check::of(path).unwrap().passes(&health).0);
            assert_eq!(found, expected, "{health:?}");
        }
        assert_eq!(Check::of("/"), None);
    }
}
