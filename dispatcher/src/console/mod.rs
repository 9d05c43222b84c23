//! The console: what a client that connects to the database `pgbouncer` may say, and what it is
//! answered, in the layout of a release of PgBouncer. docs/console.md has the commands and the columns.
//!
//! Everything here is free of I/O, and knows nothing of sessions and pools: bytes and numbers go
//! in, commands and messages come out. `shell/console.rs` has the connections, and
//! `shell/scheduler/console_rows.rs` the numbers.
//!
//! | module | what it does |
//! |---|---|
//! | [`command`] | the commands, and how they are read |
//! | [`tables`] | the columns of each result, and the encoding of its rows |
//! | [`conversation`] | the protocol: simple queries, and prepared statements and portals |
//! | [`averages`] | what happened per second, of what is counted since the start |

pub mod averages;
pub mod command;
pub mod conversation;
pub mod tables;

/// The name of the database that the console answers to (BATON_CONSOLE_DATABASE).
pub const DATABASE: &[u8] = b"pgbouncer";

/// The release of PgBouncer whose layout the results have (pg_baton.console_version).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    V1_24,
    #[default]
    V1_25,
    V1_26,
}

impl Layout {
    /// Of a value of the parameter.
    pub fn parse(text: &str) -> Option<Layout> {
        match text {
            "1.24" => Some(Layout::V1_24),
            "1.25" => Some(Layout::V1_25),
            "1.26" => Some(Layout::V1_26),
            _ => None,
        }
    }

    pub fn release(self) -> &'static str {
        match self {
            Layout::V1_24 => "1.24.1",
            Layout::V1_25 => "1.25.2",
            Layout::V1_26 => "1.26.1",
        }
    }

    /// 1.26 counts logins; the columns are otherwise those of 1.24.
    fn counts_logins(self) -> bool {
        self == Layout::V1_26
    }
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The privileges of pg_monitor: SHOW.
    Show,
    /// A superuser.
    All,
}
