//! The causes of shared/causes.inc and of native sessions: what each means, and what ends it.

/// The text of a cause in the views, what is the case, and what would end it.
pub struct Cause {
    pub text: &'static str,
    pub is: &'static str,
    pub end: &'static str,
}

const FOR_LIFE: &str = "This lasts until the session ends: there is no statement that undoes it.";
const SETTING: &str = "The session is shared again when the configuration no longer says so.";

const fn cause(text: &'static str, is: &'static str, end: &'static str) -> Cause {
    Cause { text, is, end }
}

#[rustfmt::skip]
const DEDICATED: &[Cause] = &[
    cause("advisory lock", "it holds an advisory lock of the session",
        "It is shared again after pg_advisory_unlock() of each lock, or pg_advisory_unlock_all()."),
    cause("held cursor", "a cursor WITH HOLD is open",
        "It is shared again after CLOSE of each such cursor, or CLOSE ALL."),
    cause("temporary object", "it has temporary tables or other temporary objects",
        "It is shared again after DROP of each of them, or DISCARD TEMP."),
    cause("listen", "it listens for notifications", "It is shared again after UNLISTEN *."),
    cause("loaded library", "it has loaded a library by LOAD", FOR_LIFE),
    cause("setseed", "it has called setseed(), and the state of random() is in the process", FOR_LIFE),
    cause("backup", "it runs a backup", "It is shared again after pg_backup_stop()."),
    cause("temporary replication slot", "it has a temporary replication slot",
        "It is shared again after pg_drop_replication_slot() of each of them."),
    cause("replication origin", "it has set up a replication origin",
        "It is shared again after pg_replication_origin_session_reset()."),
    cause("listed object", "it has used a function, extension or language of pg_baton.dedicated_objects", FOR_LIFE),
    cause("unlisted library", "it has used a library that is not known to keep no state \
         (pg_baton.stateless_libraries)", FOR_LIFE),
    cause("listed parameter", "it has set a parameter of pg_baton.dedicating_parameters", FOR_LIFE),
    cause("context memory", "its context does not fit into pg_baton.session_memory",
        "It is shared again when a context of it fits, for instance after DEALLOCATE ALL, or when other sessions have ended."),
    cause("pool memory", "the contexts of its role in this database have reached pg_baton.pool_memory",
        "It is shared again when a context of it fits, for instance after DEALLOCATE ALL, or when other sessions of the role have ended."),
    cause("dispatcher gone", "its dispatcher has ended", "It goes on as an ordinary connection until the next dispatcher has taken it over, or its client leaves."),
    cause("failed check", "a check of the server has failed, so no session can be shared",
        "The view pg_baton_failed_checks has the check; its result holds until the server restarts."),
    cause("pool mode", "pg_baton.pool_mode is dedicated for its role or database", SETTING),
    cause("few sessions", "there are no more sessions than pg_baton.sharing_threshold",
        "It is shared again when more sessions have logged in."),
    cause("other", "its backend has a reason that has no name of its own", "The server's log may say more."),
];

#[rustfmt::skip]
const NATIVE: &[Cause] = &[
    cause("replication", "replication connections are never shared", ""),
    cause("pg_baton.enabled", "pg_baton.enabled was off when it logged in", ""),
    cause("db_user_namespace", "db_user_namespace is on", ""),
    cause("pg_baton.native_dbuser_names", "pg_baton.native_dbuser_names names its database and user", ""),
    cause("pg_baton.pool_mode", "pg_baton.pool_mode is native for its role or database", ""),
    cause("pg_baton.native_when_waiting", "more sessions than pg_baton.native_when_waiting waited when it logged in", ""),
    cause("context memory", "pg_baton.session_memory had no room for its context when it logged in", ""),
    cause("pool memory", "pg_baton.pool_memory had no room for its context when it logged in", ""),
    cause("GSSAPI encryption", "its client encrypts by GSSAPI", ""),
    cause("gss_accept_delegation", "gss_accept_delegation is on and its client may delegate credentials", ""),
    cause("failed check", "a check of the server has failed, and the pool can open no backends (pg_baton_failed_checks)", ""),
];

/// A cause that this program does not know is of a newer library.
pub fn of(mode: &str, text: &str) -> Option<&'static Cause> {
    let causes = if mode == "native" { NATIVE } else { DEDICATED };
    causes.iter().find(|cause| cause.text == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_of_the_library_is_explained() {
        let list = include_str!("../../../shared/causes.inc");
        let texts: Vec<_> = (list.lines())
            .filter(|line| line.starts_with("BATON_CAUSE("))
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        assert!(texts.len() > 10);
        let missing: Vec<_> = (texts.iter())
            .filter(|text| of("dedicated", text).is_none())
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!(texts.len(), DEDICATED.len());
    }
}
