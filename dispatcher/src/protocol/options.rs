//! The `options` of a startup packet: command-line switches in one text.
//!
//! The text is split as by pg_split_opts (utils/init/postinit.c), and read as by
//! process_postgres_switches (tcop/postgres.c) with glibc's getopt. That includes getopt's
//! habits: switches may be bundled (`-es`), an argument may be attached to its switch or follow
//! it, `--` ends the switches, and words that are no switches are moved behind them and then
//! rejected.

use super::report::Report;

/// One setting: name and value.
pub type Setting = (Vec<u8>, Vec<u8>);

/// getopt's list in process_postgres_switches, as far as a client can use it.
const SWITCHES: &[u8] = b"B:bc:C:D:d:EeFf:h:ijk:lN:nOPp:r:S:sTt:v:W:-:";

/// The settings for which the switches stand, in their order.
pub fn parse(text: &[u8]) -> Result<Vec<Setting>, Report> {
    let words = split(text);
    let mut settings = Vec::new();
    let mut index = 0;
    // getopt moves words that are no switches behind those that are. When all has been read,
    // the first such word is where the reading stopped.
    let mut no_switch: Option<&[u8]> = None;
    while let Some(word) = words.get(index) {
        let word = word.as_slice();
        if word == b"--" {
            no_switch = no_switch.or(words.get(index + 1).map(Vec::as_slice));
            break;
        }
        let Some(mut bundle) = word.strip_prefix(b"-").filter(|rest| !rest.is_empty()) else {
            no_switch = no_switch.or(Some(word));
            index += 1;
            continue;
        };
        index += 1;
        while let Some((&switch, rest)) = bundle.split_first() {
            let Some(place) = SWITCHES
                .iter()
                .position(|known| *known == switch && switch != b':')
            else {
                return Err(invalid(complaint(&words, index, rest)));
            };
            if SWITCHES.get(place + 1) != Some(&b':') {
                apply(switch, b"", &mut settings)?;
                bundle = rest;
                continue;
            }
            let argument = if rest.is_empty() {
                let Some(next) = words.get(index) else {
                    return Err(invalid(word));
                };
                index += 1;
                next.as_slice()
            } else {
                rest
            };
            if !apply(switch, argument, &mut settings)? {
                return Err(invalid(complaint(&words, index, b"")));
            }
            break;
        }
    }
    match no_switch {
        Some(word) => Err(invalid(word)),
        None => Ok(settings),
    }
}

/// The word that the server's error names: the word before getopt's optind, which has not moved
/// on while a bundle has switches left.
fn complaint<'a>(words: &'a [Vec<u8>], index: usize, bundle_left: &[u8]) -> &'a [u8] {
    let back = if bundle_left.is_empty() { 1 } else { 2 };
    index
        .checked_sub(back)
        .and_then(|at| words.get(at))
        .map_or(b"postgres", Vec::as_slice)
}

fn invalid(word: &[u8]) -> Report {
    let mut message = b"invalid command-line argument for server process: ".to_vec();
    message.extend_from_slice(word);
    Report::fatal(b"42601", message).with_hint("Try \"postgres --help\" for more information.")
}

/// Adds the settings of one switch. False if its argument is not known.
fn apply(switch: u8, argument: &[u8], settings: &mut Vec<Setting>) -> Result<bool, Report> {
    let mut set = |name: &str, value: &[u8]| {
        settings.push((name.as_bytes().to_vec(), value.to_vec()));
    };
    match switch {
        b'B' => set("shared_buffers", argument),
        b'd' => debug_options(atoi(argument), set),
        b'e' => set("datestyle", b"euro"),
        b'F' => set("fsync", b"false"),
        b'f' => match plan_disabled_by(argument) {
            Some(name) => set(name, b"false"),
            None => return Ok(false),
        },
        b'h' => set("listen_addresses", argument),
        b'i' => set("listen_addresses", b"*"),
        b'k' => set("unix_socket_directories", argument),
        b'l' => set("ssl", b"true"),
        b'N' => set("max_connections", argument),
        b'O' => set("allow_system_table_mods", b"true"),
        b'P' => set("ignore_system_indexes", b"true"),
        b'p' => set("port", argument),
        b'S' => set("work_mem", argument),
        b's' => set("log_statement_stats", b"true"),
        b't' => match statistics_named(argument) {
            Some(name) => set(name, b"true"),
            None => return Ok(false),
        },
        b'W' => set("post_auth_delay", argument),
        b'c' | b'-' => settings.push(long_option(switch, argument)?),
        // b, C, D, E, j, n, r, T, v: no effect for a client.
        _ => {}
    }
    Ok(true)
}

/// ParseLongOption (utils/misc/guc.c): dashes in the name mean underscores.
fn long_option(switch: u8, argument: &[u8]) -> Result<Setting, Report> {
    let Some(equals) = argument.iter().position(|byte| *byte == b'=') else {
        let mut message = if switch == b'-' {
            b"--".to_vec()
        } else {
            b"-c ".to_vec()
        };
        message.extend_from_slice(argument);
        message.extend_from_slice(b" requires a value");
        return Err(Report::fatal(b"42601", message));
    };
    let name = argument[..equals]
        .iter()
        .map(|byte| if *byte == b'-' { b'_' } else { *byte })
        .collect();
    Ok((name, argument[equals + 1..].to_vec()))
}

/// set_debug_options (tcop/postgres.c).
fn debug_options(level: i32, mut set: impl FnMut(&str, &[u8])) {
    if level > 0 {
        set("log_min_messages", format!("debug{level}").as_bytes());
    } else {
        set("log_min_messages", b"notice");
    }
    for (from, name, value) in [
        (2, "log_statement", "all"),
        (3, "debug_print_parse", "true"),
        (4, "debug_print_plan", "true"),
        (5, "debug_print_rewritten", "true"),
    ] {
        if level >= from {
            set(name, value.as_bytes());
        }
    }
}

/// set_plan_disabling_options (tcop/postgres.c).
fn plan_disabled_by(argument: &[u8]) -> Option<&'static str> {
    match argument.first()? {
        b's' => Some("enable_seqscan"),
        b'i' => Some("enable_indexscan"),
        b'o' => Some("enable_indexonlyscan"),
        b'b' => Some("enable_bitmapscan"),
        b't' => Some("enable_tidscan"),
        b'n' => Some("enable_nestloop"),
        b'm' => Some("enable_mergejoin"),
        b'h' => Some("enable_hashjoin"),
        _ => None,
    }
}

/// get_stats_option_name (tcop/postgres.c).
fn statistics_named(argument: &[u8]) -> Option<&'static str> {
    match argument {
        [b'p', b'a', ..] => Some("log_parser_stats"),
        [b'p', b'l', ..] => Some("log_planner_stats"),
        [b'e', ..] => Some("log_executor_stats"),
        _ => None,
    }
}

/// C's atoi: leading space, sign, digits; the rest is ignored.
fn atoi(text: &[u8]) -> i32 {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let mut number = 0i32;
    for digit in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        number = number
            .saturating_mul(10)
            .saturating_add(i32::from(digit - b'0'));
    }
    if negative {
        -number
    } else {
        number
    }
}

/// pg_split_opts: words separated by white space; a backslash takes the next byte as it is.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    // isspace() in the C locale knows the vertical tab, unlike Rust.
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r');
    let mut words = Vec::new();
    let mut bytes = text.iter().copied().peekable();
    loop {
        while bytes.next_if(|byte| is_space(*byte)).is_some() {}
        if bytes.peek().is_none() {
            return words;
        }
        let mut word = Vec::new();
        let mut escaped = false;
        while let Some(byte) = bytes.next_if(|byte| escaped || !is_space(*byte)) {
            if byte == b'\\' && !escaped {
                escaped = true;
            } else {
                escaped = false;
                word.push(byte);
            }
        }
        words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: &[Setting]) -> String {
        settings
            .iter()
            .map(|(name, value)| {
                format!(
                    "{}={}",
                    String::from_utf8_lossy(name),
                    String::from_utf8_lossy(value)
                )
            })
            .collect::<Vec<_>>()
            .join("|")
    }

    #[test]
    fn switches_set_what_the_server_would_set() {
        for (options, expected) in [
            ("", ""),
            ("   ", ""),
            ("-c a=b", "a=b"),
            ("-ca=b", "a=b"),
            ("--a=b", "a=b"),
            ("--a-b-c=d-e", "a_b_c=d-e"),
            ("-c a=", "a="),
            ("-c a=b=c", "a=b=c"),
            ("-c a=b\\ c", "a=b c"),
            ("-c a=b\\\\c", "a=b\\c"),
            ("-c\ta=b\x0b-c\nc=d", "a=b|c=d"),
            ("-c search_path=a,b -c geqo=off", "search_path=a,b|geqo=off"),
            ("-e", "datestyle=euro"),
            ("-es", "datestyle=euro|log_statement_stats=true"),
            ("-ec a=b", "datestyle=euro|a=b"),
            ("-F -O -P -l -i", "fsync=false|allow_system_table_mods=true|ignore_system_indexes=true|ssl=true|listen_addresses=*"),
            ("-fs -f i -fo -fb -ft -fn -fm -fh", "enable_seqscan=false|enable_indexscan=false|enable_indexonlyscan=false|enable_bitmapscan=false|enable_tidscan=false|enable_nestloop=false|enable_mergejoin=false|enable_hashjoin=false"),
            ("-tpa -t pl -te", "log_parser_stats=true|log_planner_stats=true|log_executor_stats=true"),
            ("-S 100 -W 3 -B 9 -N 5 -p 1 -h x -k /y", "work_mem=100|post_auth_delay=3|shared_buffers=9|max_connections=5|port=1|listen_addresses=x|unix_socket_directories=/y"),
            ("-d 0", "log_min_messages=notice"),
            ("-d x", "log_min_messages=notice"),
            ("-d1", "log_min_messages=debug1"),
            ("-d 5x", "log_min_messages=debug5|log_statement=all|debug_print_parse=true|debug_print_plan=true|debug_print_rewritten=true"),
            ("-b -E -j -n -T -C x -D y -r z -v 3", ""),
            ("-c a=b --", "a=b"),
        ] {
            let settings = parse(options.as_bytes()).expect(options);
            assert_eq!(text(&settings), expected, "{options}");
        }
    }

    #[test]
    fn bad_switches_get_the_servers_complaint() {
        for (options, named) in [
            ("x", "x"),
            ("-", "-"),
            ("x -c a=b", "x"),
            ("-c a=b x y", "x"),
            ("-- x", "x"),
            ("-z", "-z"),
            ("-:", "-:"),
            ("-e -z", "-z"),
            ("-fx", "-fx"),
            ("-f x", "x"),
            ("-f", "-f"),
            ("-c", "-c"),
            ("-tq", "-tq"),
            ("-e -zs", "-e"),
            ("-zs", "postgres"),
        ] {
            let report = parse(options.as_bytes()).expect_err(options);
            assert_eq!(report.sqlstate, *b"42601");
            assert_eq!(
                String::from_utf8_lossy(&report.message),
                format!("invalid command-line argument for server process: {named}"),
                "{options}"
            );
            assert!(report.hint.is_some());
        }
        for (options, message) in [
            ("-c a", "-c a requires a value"),
            ("--a", "--a requires a value"),
            ("-c a-b", "-c a-b requires a value"),
        ] {
            let report = parse(options.as_bytes()).expect_err(options);
            assert_eq!(report.message, message.as_bytes());
        }
    }
}
