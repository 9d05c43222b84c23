//! A private key's file: who else may read it, and its passphrase.
//!
//! As in be-secure-common.c: check_ssl_key_file_permissions and
//! run_ssl_passphrase_command. Both block, and are called at the start and from
//! a thread of their own at a reload.

use crate::dispatcher::sys::process;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// Longer than OpenSSL's own buffer for it.
const MOST_PASSPHRASE_BYTES: u64 = 1024;

/// As %m of the server's texts: without the number.
pub fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Refuses a file that others can read, as the server does.
pub fn check_permissions(path: &str) -> Result<(), String> {
    let about = std::fs::metadata(path).map_err(|error| {
        let error = error_text(&error);
        format!("could not access private key file \"{path}\": {error}")
    })?;
    judge(
        path,
        about.is_file(),
        about.uid(),
        about.mode(),
        process::own_uid(),
    )
}

/// The rule alone.
fn judge(path: &str, is_file: bool, owner: u32, mode: u32, own: u32) -> Result<(), String> {
    if !is_file {
        return Err(format!("private key file \"{path}\" is not a regular file"));
    }
    if owner != own && owner != 0 {
        return Err(format!(
            "private key file \"{path}\" must be owned by the database user or root"
        ));
    }
    if (owner == own && mode & 0o077 != 0) || (owner == 0 && mode & 0o037 != 0) {
        return Err(format!(
            "private key file \"{path}\" has group or world access"
        ));
    }
    Ok(())
}

/// What the command prints, its first line. Blocks.
pub fn passphrase(command: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let command = with_prompt(command);
    let mut child = Command::new("/bin/sh")
        .args(["-c", &command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("could not execute command \"{command}\": {error}"))?;
    // Room for all of it: it does not grow, and leave pieces behind.
    let mut text = Zeroizing::new(Vec::with_capacity(2 * MOST_PASSPHRASE_BYTES as usize));
    let read = child
        .stdout
        .take()
        .map(|out| out.take(MOST_PASSPHRASE_BYTES).read_to_end(&mut text));
    let ended = child
        .wait()
        .map_err(|error| format!("could not close pipe to external command: {error}"))?;
    if let Some(Err(error)) = read {
        return Err(format!(
            "could not read from command \"{command}\": {error}"
        ));
    }
    if !ended.success() {
        return Err(format!("command \"{command}\" failed: {ended}"));
    }
    let end = text.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    if let Some(end) = end {
        text.truncate(end);
    }
    Ok(text)
}

/// %p is OpenSSL's prompt, %% a percent sign.
fn with_prompt(command: &str) -> String {
    let mut out = String::new();
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, letters.peek()) {
            ('%', Some('p')) => {
                letters.next();
                out.push_str("Enter PEM pass phrase:");
            }
            ('%', Some('%')) => {
                letters.next();
                out.push('%');
            }
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_others_may_read_is_refused_as_the_server_does() {
        let judged = |owner, mode| judge("k", true, owner, mode, 100).is_ok();
        assert!(judged(100, 0o100_600) && judged(100, 0o100_400));
        assert!(!judged(100, 0o100_640) && !judged(100, 0o100_604));
        assert!(judged(0, 0o100_640) && !judged(0, 0o100_660) && !judged(0, 0o100_644));
        assert!(!judged(7, 0o100_600));
        assert!(judge("k", false, 100, 0o600, 100).is_err());
    }

    #[test]
    fn the_passphrase_is_the_commands_first_line() {
        assert_eq!(passphrase("printf 'a b\\nc'").unwrap()[..], *b"a b");
        assert_eq!(
            passphrase("echo '%p %%'").unwrap()[..],
            *b"Enter PEM pass phrase: %"
        );
        assert!(passphrase("echo x; exit 3").is_err());
    }
}
