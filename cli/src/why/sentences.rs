//! What is known of a session, in sentences: one fact each. No input or output is here.

use super::causes;
use crate::text::{count, counted, duration, from_hex, name, plain};
use serde_json::Value;

/// Processes have smaller numbers; sessions of the pool have greater ones.
const LARGEST_PROCESS: i64 = 1 << 23;

/// The facts of `facts::question`, in words; None if the server knows no such process ID.
pub fn sentences(facts: &Value) -> Option<Vec<String>> {
    let mut said = Vec::new();
    if facts["session"].is_object() {
        introduce(facts, &mut said);
        locate(facts, &mut said);
        explain_cause(facts, &mut said);
        explain_locks(facts, &mut said);
        foretell(facts, &mut said);
    } else if facts["process"].is_object() {
        explain_process(facts, &mut said);
        explain_locks(facts, &mut said);
    } else if facts["activity"].is_object() {
        explain_stranger(facts, &mut said);
        explain_locks(facts, &mut said);
    } else {
        return None;
    }
    Some(said)
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

fn number(object: &Value, key: &str) -> i64 {
    object[key].as_i64().unwrap_or_default()
}

fn time(object: &Value, key: &str) -> String {
    duration(object[key].as_f64().unwrap_or_default())
}

fn list(facts: &Value, key: &str) -> Vec<Value> {
    facts[key].as_array().cloned().unwrap_or_default()
}

fn is_native(session: &Value) -> bool {
    text(session, "mode") == "native"
}

fn is_dedicated(session: &Value) -> bool {
    text(session, "mode") == "dedicated"
}

fn introduce(facts: &Value, said: &mut Vec<String>) {
    let session = &facts["session"];
    let mut client = match text(session, "client") {
        "" => "by a Unix socket".to_owned(),
        address => format!("from {address}"),
    };
    if session["tls"] == Value::Bool(true) {
        client += ", by TLS";
    }
    let application = plain(&from_hex(text(session, "application")));
    if !application.is_empty() {
        client += &format!(", application {}", name(&application));
    }
    said.push(format!(
        "Session {} is of role {} in database {}: {client}.",
        facts["pid"],
        name(text(session, "user")),
        name(text(session, "database")),
    ));
    let mut history = format!("It logged in {} ago", time(session, "login_age"));
    if session["transactions"].is_number() {
        history += &format!(
            " and has completed {}; {} it came to another backend than the one before",
            counted(number(session, "transactions"), "transaction"),
            counted(number(session, "migrations"), "time"),
        );
    }
    said.push(history + ".");
}

fn locate(facts: &Value, said: &mut Vec<String>) {
    let session = &facts["session"];
    let activity = &facts["activity"];
    let (age, backend) = (time(session, "age"), &session["backend"]);
    let is_held = backend.is_number();
    let is_paused = !list(facts, "pauses").is_empty();
    said.push(match text(session, "state") {
        _ if is_native(session) => {
            let state = match text(activity, "state") {
                "" => String::new(),
                state => format!(", {} for {}", state, time(activity, "age")),
            };
            format!(
                "It is native, an ordinary connection: process {backend} serves no other{state}."
            )
        }
        "login" => format!("It is logging in, for {age}."),
        "waiting" if is_paused => format!("It has waited for {age}, for the end of a pause."),
        "waiting" if is_held => {
            format!("It has waited for {age}: backend {backend} holds its request back.")
        }
        "waiting" => format!("It has waited for a backend for {age}."),
        "active" => format!("It has been active for {age}, on backend {backend}."),
        "idle in transaction" => format!(
            "It has been idle in a transaction for {age}, on backend {backend}: its client has not sent the next statement."
        ),
        _ if !is_held => {
            format!("It has been idle for {age}. The dispatcher holds it; no backend serves it.")
        }
        _ if is_dedicated(session) => {
            format!("It has been idle for {age}. Backend {backend} is kept for it.")
        }
        _ => format!(
            "It has been idle for {age}. Backend {backend} had it last and still listens to its client; any other session can have this backend."
        ),
    });
    let state = text(session, "state");
    let is_working = state == "active" || state == "idle in transaction" || is_native(session);
    if is_working {
        if activity["transaction_age"].is_number() {
            said.push(format!(
                "Its transaction began {} ago.",
                time(activity, "transaction_age")
            ));
        }
        match (text(activity, "wait_type"), text(activity, "wait")) {
            ("" | "Lock" | "Client", _) => {}
            (kind, event) => said.push(format!("It waits for {kind}: {event}.")),
        }
    }
    let query = plain(&from_hex(text(activity, "query")));
    if !query.is_empty() && state != "waiting" && state != "login" {
        let which = match text(activity, "state") {
            "active" => "Its query",
            _ => "Its last query",
        };
        said.push(format!("{which}: {query}"));
    }
}

fn explain_cause(facts: &Value, said: &mut Vec<String>) {
    let session = &facts["session"];
    let (mode, cause) = (text(session, "mode"), text(session, "cause"));
    if cause.is_empty() {
        return;
    }
    let known = causes::of(mode, cause);
    let is = known.map_or("", |known| known.is);
    let colon = if is.is_empty() { "" } else { ": " };
    if is_native(session) {
        said.push(format!("It is native because of {cause}{colon}{is}."));
        return;
    }
    said.push(format!("It is dedicated because of {cause}{colon}{is}."));
    let locks = number(facts, "advisory_locks");
    if cause == "advisory lock" && locks > 0 {
        said.push(format!("It holds {}.", counted(locks, "advisory lock")));
    }
    if let Some(known) = known {
        said.push(known.end.to_owned());
    }
}

fn explain_locks(facts: &Value, said: &mut Vec<String>) {
    let activity = &facts["activity"];
    let blockers = list(facts, "blockers");
    if text(activity, "wait_type") == "Lock" && !blockers.is_empty() {
        said.push(format!("It waits for a lock ({}).", text(activity, "wait")));
    }
    for blocker in &blockers {
        said.push(match number(blocker, "pid") {
            0 => "A prepared transaction blocks it: pg_prepared_xacts has all of them.".to_owned(),
            pid => {
                let state = match text(blocker, "state") {
                    "" => "unknown",
                    state => state,
                };
                let also = match blocker["waits"] {
                    Value::Bool(true) => "; it waits for a lock itself",
                    _ => "",
                };
                format!(
                    "{} blocks it: role {}, {state} for {}, in a transaction for {}{also}.",
                    called(pid),
                    name(text(blocker, "user")),
                    time(blocker, "age"),
                    time(blocker, "transaction_age"),
                )
            }
        });
    }
    let blocked: Vec<_> = (list(facts, "blocked").iter())
        .map(Value::to_string)
        .collect();
    if !blocked.is_empty() {
        let shown = blocked.iter().take(10).cloned().collect::<Vec<_>>();
        let more = if blocked.len() > shown.len() {
            " and others"
        } else {
            ""
        };
        said.push(format!(
            "It blocks {} that wait{} for its locks: {}{more}.",
            counted(blocked.len() as i64, "session"),
            if blocked.len() == 1 { "s" } else { "" },
            shown.join(", "),
        ));
    }
}

fn called(pid: i64) -> String {
    let what = if pid > LARGEST_PROCESS {
        "Session"
    } else {
        "Process"
    };
    format!("{what} {pid}")
}

/// What the pool does next with the session.
fn foretell(facts: &Value, said: &mut Vec<String>) {
    let session = &facts["session"];
    let pauses = list(facts, "pauses");
    for pause in &pauses {
        let whose = match (text(pause, "database"), text(pause, "user")) {
            ("", "") => "all sessions".to_owned(),
            (database, "") => format!("sessions of database {}", name(database)),
            ("", user) => format!("sessions of role {}", name(user)),
            (database, user) => format!(
                "sessions of role {} in database {}",
                name(user),
                name(database)
            ),
        };
        said.push(format!(
            "A pause of {whose} holds back its next transaction for up to {} (pg_baton_resume() ends it).",
            time(pause, "left")
        ));
    }
    let state = text(session, "state");
    if is_native(session) || state == "login" || !pauses.is_empty() {
        return;
    }
    let pool = &facts["pool"];
    let database = name(text(session, "database"));
    let waiting = number(pool, "waiting");
    match (state, is_dedicated(session)) {
        ("waiting", false) => foretell_wait(facts, said),
        ("waiting", true) => {}
        ("idle", true) => said.push("Its next transaction runs on the same backend.".to_owned()),
        ("idle", false) => said.push(format!(
            "Its next transaction can run on any backend of database {database}: {} of {} idle now.",
            count(number(pool, "idle")),
            match number(pool, "backends") {
                1 => "1 is".to_owned(),
                many => format!("{} are", count(many)),
            },
        )),
        (_, true) => said.push("It keeps its backend after this transaction.".to_owned()),
        (_, false) => said.push(format!(
            "When its transaction ends, its backend can serve another session: {} for one in database {database}.",
            match waiting {
                1 => "1 waits".to_owned(),
                many => format!("{} wait", count(many)),
            }
        )),
    }
}

fn foretell_wait(facts: &Value, said: &mut Vec<String>) {
    let session = &facts["session"];
    let pool = &facts["pool"];
    let (user, database) = (name(text(session, "user")), name(text(session, "database")));
    for holder in list(facts, "holders") {
        let other = text(&holder, "database");
        let elsewhere = if name(other) == database {
            String::new()
        } else {
            format!(" in database {}", name(other))
        };
        let kept = match text(&holder, "cause") {
            "" => String::new(),
            cause => format!(", dedicated ({cause})"),
        };
        said.push(format!(
            "Session {} has backend {}: role {}{elsewhere}, {} for {}{kept}.",
            holder["pid"],
            holder["backend"],
            name(text(&holder, "user")),
            text(&holder, "state"),
            time(&holder, "age"),
        ));
    }
    let (served, limit) = (
        number(facts, "served_of_user"),
        number(facts, "limit_of_user"),
    );
    if limit > 0 && served >= limit {
        said.push(format!(
            "Role {user} may have {} in this database (pg_baton.pool_max_backends) and has {served}: the session goes on when one of them is free.",
            counted(limit, "backend"),
        ));
    } else {
        said.push(format!(
            "It gets a backend when one is free and its turn has come: {} wait{} in database {database}, the first for {}.",
            counted(number(pool, "waiting"), "session"),
            if number(pool, "waiting") == 1 { "s" } else { "" },
            time(pool, "longest_wait"),
        ));
    }
    let starting = number(pool, "starting");
    if starting > 0 {
        said.push(format!(
            "The pool is starting {}.",
            counted(starting, "backend")
        ));
    }
    let parameters = &facts["parameters"];
    let timeout = parameters["wait_timeout"].as_f64().unwrap_or_default();
    if timeout > 0.0 {
        let left = timeout - session["age"].as_f64().unwrap_or_default();
        said.push(format!(
            "Without a backend, its statement fails in {} (53300, pg_baton.session_wait_timeout); the session goes on.",
            duration(left.max(0.0))
        ));
    }
}

fn explain_process(facts: &Value, said: &mut Vec<String>) {
    let process = &facts["process"];
    said.push(format!(
        "Process {} is a backend of the pool in database {}, {} for {}.",
        facts["pid"],
        name(text(process, "database")),
        text(process, "state"),
        time(process, "age"),
    ));
    said.push(match process["session"].as_i64() {
        Some(session) => {
            format!("It serves session {session} now: baton why {session} explains that.")
        }
        None => "It serves no session now.".to_owned(),
    });
}

/// The dispatcher does not know it.
fn explain_stranger(facts: &Value, said: &mut Vec<String>) {
    let activity = &facts["activity"];
    let pid = number(facts, "pid");
    let kind = match text(activity, "type") {
        "" => "process",
        kind => kind,
    };
    if pid > LARGEST_PROCESS {
        said.push(format!(
            "Session {pid} is of role {} in database {}; the dispatcher does not know it.",
            name(text(activity, "user")),
            name(text(activity, "database")),
        ));
        said.push(
            "It was on a backend when its dispatcher ended, or has only just come or gone. If it was, it goes on as an ordinary connection."
                .to_owned(),
        );
    } else if kind == "client backend" {
        said.push(format!(
            "Process {pid} is no session of the pool but a connection on the server's own port: role {} in database {}.",
            name(text(activity, "user")),
            name(text(activity, "database")),
        ));
    } else {
        said.push(format!(
            "Process {pid} is no session but a process of the server: {kind}."
        ));
    }
    if !text(activity, "state").is_empty() {
        said.push(format!(
            "It has been {} for {}.",
            text(activity, "state"),
            time(activity, "age")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PID: i64 = 533_043_403;

    /// A session's facts, with these differences.
    fn facts(session: Value, more: Value) -> Value {
        let mut all = json!({
            "pid": PID,
            "session": {
                "user": "app", "database": "shop", "application": "776562", "client": "10.0.0.1",
                "mode": "shared", "state": "idle", "cause": null, "backend": null,
                "login_age": 200.0, "age": 12.5, "transactions": 42, "migrations": 1, "tls": false
            },
            "activity": {"state": "idle", "wait_type": "Client", "wait": "ClientRead", "query": "", "type": "client backend"},
            "pool": {"backends": 4, "idle": 2, "waiting": 0, "starting": 0, "longest_wait": null},
            "parameters": {"max_backends": 4, "wait_timeout": 60.0},
            "served_of_user": 1, "limit_of_user": -1
        });
        merge(&mut all["session"], session);
        merge(&mut all, more);
        all
    }

    fn merge(into: &mut Value, from: Value) {
        for (key, value) in from.as_object().unwrap() {
            match value {
                Value::Object(_) if into[key].is_object() => merge(&mut into[key], value.clone()),
                _ => into[key] = value.clone(),
            }
        }
    }

    fn said(session: Value, more: Value) -> String {
        let said = sentences(&facts(session, more)).unwrap();
        assert!(said.iter().all(|one| !one.contains('\n')));
        said.join("\n")
    }

    #[test]
    fn an_idle_session_is_in_the_dispatcher() {
        assert_eq!(
            said(json!({}), json!({})),
            "Session 533043403 is of role app in database shop: from 10.0.0.1, application web.\n\
             It logged in 3 min ago and has completed 42 transactions; 1 time it came to another backend than the one before.\n\
             It has been idle for 12 s. The dispatcher holds it; no backend serves it.\n\
             Its next transaction can run on any backend of database shop: 2 of 4 are idle now."
        );
    }

    #[test]
    fn a_dedicated_session_has_a_cause_and_what_ends_it() {
        let session = json!({"mode": "dedicated", "cause": "listen", "backend": 77});
        let said = said(session, json!({}));
        assert!(said.contains("Backend 77 is kept for it."), "{said}");
        assert!(said.contains("because of listen: it listens for notifications."));
        assert!(said.contains("UNLISTEN"));
        assert!(said.contains("runs on the same backend"));
    }

    #[test]
    fn a_cause_of_a_newer_library_is_named() {
        let session = json!({"mode": "dedicated", "cause": "new one", "backend": 77});
        assert!(said(session, json!({})).contains("It is dedicated because of new one."));
    }

    #[test]
    fn a_waiting_session_is_told_who_has_the_backends() {
        let holder = json!({"pid": 533_000_001, "backend": 78, "user": "my app", "database": "shop",
            "state": "idle in transaction", "age": 42.0, "cause": null});
        let pool = json!({"waiting": 2, "longest_wait": 3.5, "starting": 1});
        let told = said(
            json!({"state": "waiting", "age": 3.0}),
            json!({"holders": [holder], "pool": pool}),
        );
        assert!(
            told.contains("It has waited for a backend for 3.0 s."),
            "{told}"
        );
        assert!(told.contains(
            "Session 533000001 has backend 78: role \"my app\", idle in transaction for 42 s."
        ));
        assert!(told.contains("2 sessions wait in database shop, the first for 3.5 s."));
        assert!(told.contains("starting 1 backend."));
        assert!(told.contains("fails in 57 s (53300"));
        let told = said(
            json!({"state": "waiting"}),
            json!({"limit_of_user": 1, "parameters": {"wait_timeout": 0.0}}),
        );
        assert!(told.contains("pool_max_backends) and has 1"), "{told}");
        assert!(!told.contains("53300"));
    }

    #[test]
    fn a_paused_session_is_told_when_the_pause_ends() {
        let pause = json!({"user": "app", "database": null, "left": 200.0});
        let told = said(json!({"state": "waiting"}), json!({"pauses": [pause]}));
        assert!(told.contains("for the end of a pause."), "{told}");
        assert!(told.contains(
            "A pause of sessions of role app holds back its next transaction for up to 3 min"
        ));
        assert!(!told.contains("53300"));
    }

    #[test]
    fn a_blocked_session_is_told_who_blocks_it() {
        let blockers = json!([
            {"pid": 0},
            {"pid": 99, "user": "admin", "state": "active", "age": 5.0, "transaction_age": 6.0, "waits": true},
        ]);
        let told = said(
            json!({"state": "active", "backend": 77}),
            json!({"blockers": blockers, "activity": {"state": "active", "wait_type": "Lock", "wait": "relation", "query": "53454c4543540a31", "transaction_age": 2.0}}),
        );
        assert!(told.contains("active for 12 s, on backend 77."), "{told}");
        assert!(told.contains("It waits for a lock (relation)."));
        assert!(told.contains("A prepared transaction blocks it"));
        assert!(told.contains("Process 99 blocks it: role admin, active for 5.0 s, in a transaction for 6.0 s; it waits for a lock itself."));
        assert!(told.contains("Its query: SELECT 1"));
        let told = said(
            json!({"state": "idle in transaction", "backend": 77}),
            json!({"blocked": [5, 6]}),
        );
        assert!(
            told.contains("It blocks 2 sessions that wait for its locks: 5, 6."),
            "{told}"
        );
    }

    #[test]
    fn other_processes_are_told_apart() {
        let of = |facts: Value| sentences(&facts).map(|said| said.join("\n"));
        assert_eq!(
            of(json!({"pid": 7, "session": null, "process": null, "activity": null})),
            None
        );
        let process = json!({"state": "idle", "database": "shop", "session": null, "age": 1.0});
        let told = of(json!({"pid": 7, "process": process})).unwrap();
        assert!(told.contains("a backend of the pool") && told.contains("serves no session"));
        let activity = json!({"type": "client backend", "user": "app", "database": "shop", "state": "idle", "age": 1.0});
        let told = of(json!({"pid": 7, "activity": activity})).unwrap();
        assert!(told.contains("server's own port"));
        let told = of(json!({"pid": PID, "activity": activity})).unwrap();
        assert!(told.contains("the dispatcher does not know it"));
        let told = of(json!({"pid": 7, "activity": {"type": "checkpointer"}})).unwrap();
        assert!(told.contains("checkpointer"));
    }
}
