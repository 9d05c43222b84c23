//! The columns of the dispatcher's rows (scheduler/views.rs), from 0. Most are those of docs/views.md.

/// `pg_baton_stats`, with names.
pub mod statistics {
    pub const ROLE: usize = 0;
    pub const DATABASE: usize = 1;
    pub const TRANSACTIONS: usize = 2;
    pub const REQUESTS: usize = 3;
    pub const STATEMENTS: usize = 4;
    pub const ERRORS: usize = 5;
    pub const ERRORS_BY_CLASS: usize = 6;
    pub const SENT: usize = 7;
    pub const TRANSACTION_TIME: usize = 8;
    pub const REQUEST_TIME: usize = 9;
    pub const WAITS: usize = 10;
    pub const WAIT_TIME: usize = 11;
    pub const DIRECT: usize = 12;
    pub const QUEUED: usize = 13;
    pub const HAND_OVER_TIME: usize = 14;
    pub const LOGINS: usize = 15;
    pub const TLS_LOGINS: usize = 16;
    pub const REFUSED: usize = 17;
    pub const REFUSED_BY_STATE: usize = 18;
    pub const CANCELS: usize = 19;
    pub const EVICTIONS: usize = 20;
    pub const SINCE: usize = 21;
    #[cfg(test)]
    pub const COUNT: usize = 22;
}

/// `pg_baton_dispatchers`.
pub mod dispatchers {
    pub const STARTED: usize = 1;
    pub const THREADS: usize = 2;
    pub const CONNECTIONS: usize = 3;
    pub const ACCEPTED: usize = 6;
    pub const LOGINS_FAILED: usize = 8;
    pub const ABANDONED: usize = 9;
    pub const BACKENDS_STARTED: usize = 14;
    pub const MEMORY: usize = 15;
    pub const MEMORY_LIMIT: usize = 16;
    pub const CPU_USER: usize = 17;
    pub const CPU_SYSTEM: usize = 18;
    pub const LOGIN_BY_SERVER: usize = 19;
    pub const LONGEST_TURN: usize = 20;
}

/// `pg_baton_pools`.
pub mod pools {
    pub const DATABASE: usize = 0;
    pub const STARTING: usize = 4;
    pub const IDLE: usize = 5;
    pub const BUSY: usize = 6;
    pub const DEDICATED: usize = 7;
    pub const WAITING: usize = 9;
    pub const LONGEST_WAIT: usize = 10;
    pub const WAIT_P50: usize = 11;
    pub const WAIT_P99: usize = 13;
}

/// `pg_baton_backends`.
pub mod backends {
    pub const DATABASE: usize = 4;
    pub const STATE: usize = 5;
    pub const CAUSE: usize = 7;
}

/// `pg_baton_pauses`.
pub mod pauses {
    pub const WAITING: usize = 4;
}

/// BATON_QUERY_SESSION_COUNTS.
pub mod sessions {
    pub const ROLE: usize = 0;
    pub const DATABASE: usize = 1;
    pub const STATE: usize = 2;
    pub const CAUSE: usize = 3;
    pub const COUNT: usize = 4;
}

/// BATON_QUERY_SESSIONS_AT_WORK.
pub mod at_work {
    pub const PID: usize = 0;
    pub const ROLE: usize = 1;
    pub const DATABASE: usize = 2;
    pub const APPLICATION: usize = 3;
    pub const STATE: usize = 4;
    pub const CAUSE: usize = 5;
    pub const STATE_AGE: usize = 6;
}

/// BATON_QUERY_DATABASE_TIMES.
pub mod times {
    pub const DATABASE: usize = 0;
    pub const WAITS: usize = 1;
    pub const TRANSACTIONS: usize = 3;
    pub const LOGINS: usize = 5;
    pub const GROWN: usize = 7;
    pub const SHRUNK: usize = 8;
}
