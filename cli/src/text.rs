//! Numbers and names as people read them, in a terminal.

/// A time in seconds, in the largest unit that says enough.
pub fn duration(seconds: f64) -> String {
    let whole = |unit: f64| (seconds / unit).floor();
    if seconds < 0.001 {
        format!("{:.0} us", seconds.max(0.0) * 1e6)
    } else if seconds < 1.0 {
        format!("{:.0} ms", (seconds * 1000.0).floor())
    } else if seconds < 10.0 {
        format!("{:.1} s", (seconds * 10.0).floor() / 10.0)
    } else if seconds < 120.0 {
        format!("{} s", whole(1.0))
    } else if seconds < 7200.0 {
        format!("{} min", whole(60.0))
    } else if seconds < 172_800.0 {
        format!("{} h", whole(3600.0))
    } else {
        format!("{} d", whole(86_400.0))
    }
}

/// With a comma between thousands.
pub fn count(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 session", "2 sessions".
pub fn counted(number: i64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// Text that a client has chosen, in one line: no character of it commands the terminal.
pub fn plain(text: &str) -> String {
    let is_unsafe = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let text: String = (text.chars())
        .map(|c| if is_unsafe(c) { ' ' } else { c })
        .collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A name of a role, a database or an application: quoted unless it is a word.
pub fn name(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || "_-.@".contains(c);
    if !text.is_empty() && text.chars().all(is_word) {
        return text.to_owned();
    }
    format!("\"{}\"", plain(text))
}

/// Text from hexadecimal bytes, of any encoding.
pub fn from_hex(hex: &str) -> String {
    let digits: Vec<u8> = (hex.chars())
        .filter_map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_the_largest_unit_that_says_enough() {
        let shown = |seconds: &[f64]| seconds.iter().map(|&s| duration(s)).collect::<Vec<_>>();
        assert_eq!(
            shown(&[0.0, 0.000_035, 0.012, 1.26, 42.9, 180.0, 7200.0, 180_000.0]),
            ["0 us", "35 us", "12 ms", "1.2 s", "42 s", "3 min", "2 h", "2 d"]
        );
    }

    #[test]
    fn thousands_are_parted() {
        assert_eq!(
            [0, 999, 1000, 1_234_567, -1000].map(count),
            ["0", "999", "1,000", "1,234,567", "-1,000"]
        );
        assert_eq!(counted(1, "session"), "1 session");
        assert_eq!(counted(10_000, "session"), "10,000 sessions");
    }

    #[test]
    fn a_client_s_text_cannot_command_the_terminal() {
        assert_eq!(
            plain("a\x1b[2Jb\nc\u{9b}31m\u{202e}d\r\x07"),
            "a [2Jb c 31m d"
        );
        assert_eq!(name("app"), "app");
        assert_eq!(name("my\x1b app"), "\"my app\"");
        assert_eq!(from_hex("c3a4ff"), "ä\u{fffd}");
    }
}
